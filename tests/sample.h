// The part of a list of cases that a run takes: by default a few, drawn by HEDDLE_TEST_SEED; under HEDDLE_TEST_FULL
// all.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace heddle::test {

inline bool takes_all() { return std::getenv("HEDDLE_TEST_FULL") != nullptr; }

inline std::uint64_t sample_seed() {
  const char* seed = std::getenv("HEDDLE_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0;
}

/// Whether the run takes this case: one in `share`.
inline bool is_drawn(std::uint64_t number, std::uint64_t share) {
  return takes_all() || (number + sample_seed()) % share == 0;
}

}  // namespace heddle::test
