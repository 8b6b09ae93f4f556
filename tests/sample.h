// The part of a list of cases that a run takes: by default a few, drawn by HEDDLE_TEST_SEED; under HEDDLE_TEST_FULL
// all. Under HEDDLE_TEST_REDUCED, which sanitizers run with, tests of random cases take a tenth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace heddle::test {

inline bool takes_all() { return std::getenv("HEDDLE_TEST_FULL") != nullptr; }

inline bool is_reduced() { return std::getenv("HEDDLE_TEST_REDUCED") != nullptr; }

/// The random cases that a run takes; `count` is the default number.
inline int random_cases(int count) { return is_reduced() ? count / 10 : count; }

inline std::uint64_t sample_seed() {
  const char* seed = std::getenv("HEDDLE_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0;
}

/// HEDDLE_TEST_PART=i/n: a process runs part i, from 0 on, of n parts of each list of cases; n processes run them all.
struct CasePart {
  std::size_t number = 0, count = 1;
  bool has(std::size_t i) const { return i % count == number; }
};
inline CasePart case_part() {
  const char* const text = std::getenv("HEDDLE_TEST_PART");
  if (text == nullptr) return {};
  CasePart part;
  char end = 0;
  if (std::sscanf(text, "%zu/%zu%c", &part.number, &part.count, &end) != 2 || part.number >= part.count) {
    throw std::invalid_argument("HEDDLE_TEST_PART is '" + std::string(text) + "'; i/n with i < n is accepted");
  }
  return part;
}

/// One of `count` cases. Independent of is_drawn() and of draws for other numbers, so that some seed draws each case
/// beside each other draw.
inline std::size_t drawn_case(std::uint64_t number, std::size_t count) {
  std::uint64_t x = sample_seed() * 0x9e3779b97f4a7c15 + (number + 1) * 0xd1b54a32d192ed03;  // SplitMix64's mixing
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return static_cast<std::size_t>((x ^ x >> 31) % count);
}

/// Whether the run takes this case: one in `share`.
inline bool is_drawn(std::uint64_t number, std::uint64_t share) {
  return takes_all() || (number + sample_seed()) % share == 0;
}

/// HEDDLE_TEST_KERNELS=unchanged, which ./test.sh sets: the change that is tested alters no kernel, so the compiler
/// would see what it saw for the commit before.
inline bool kernels_are_unchanged() {
  const char* kernels = std::getenv("HEDDLE_TEST_KERNELS");
  return kernels != nullptr && std::string(kernels) == "unchanged";
}

/// Whether the run compiles this kernel: one in `share`, a third of these if kernels are unchanged.
inline bool is_kernel_drawn(std::uint64_t number, std::uint64_t share) {
  return is_drawn(number, share * (kernels_are_unchanged() ? 3 : 1));
}

}  // namespace heddle::test
