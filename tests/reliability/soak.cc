// Random calls of the whole interface on the CPU from several threads, for long: each result is the one that the same
// call gave before, and memory stays flat.
//
// usage: reliability_soak [--seconds N] [--callers N] [--threads N] [--seed N]
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "heddle/heddle.h"
#include "reliability/calls.h"
#include "reliability/failing_allocations.h"
#include "reliability/scratch_folder.h"

namespace heddle::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kDifferent = 40;                                 // calls of a kind
constexpr int kOfARound = 60;                                          // calls of a caller
constexpr std::int64_t kBlocks = 400, kBytes = std::int64_t{8} << 20;  // that may come and go from round to round

struct Memory {
  std::int64_t blocks = 0, bytes = 0;
};

Memory memory_now() {
  clear_plan_cache();
  ::malloc_trim(0);
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return {live_blocks(), resident * ::sysconf(_SC_PAGESIZE)};
}

/// One thread's calls. It has a folder of its own, so that no other thread's files stand there.
class Caller {
 public:
  Caller(std::uint64_t seed, const CallSettings& settings) : random_(seed), settings_(settings) {
    std::filesystem::create_directories(settings_.folder);
  }

  /// Throws where a call throws, or gives another result than before.
  void make_round() {
    for (int i = 0; i < kOfARound; ++i) {
      const std::size_t kind = random_() % call_kinds().size();
      const std::uint64_t number = random_() % kDifferent;
      const Call call = drawn_call(call_kinds()[kind].name, number, settings_);
      const std::uint64_t result = call();
      std::optional<std::uint64_t>& before = results_[kind * kDifferent + number];
      if (before.value_or(result) != result)
        throw Error(ErrorCode::internal, std::string(call_kinds()[kind].name) + " gave another result");
      before = result;
      ++calls;
    }
  }

  static inline std::atomic<std::int64_t> calls{0};

 private:
  std::mt19937_64 random_;
  CallSettings settings_;
  std::vector<std::optional<std::uint64_t>> results_ =
      std::vector<std::optional<std::uint64_t>>(call_kinds().size() * kDifferent);
};

/// Whether all went well.
bool make_round(std::vector<Caller>& callers) {
  std::atomic<bool> well{true};
  std::vector<std::jthread> threads;
  for (Caller& caller : callers) {
    threads.emplace_back([&] {
      try {
        caller.make_round();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        well = false;
      }
    });
  }
  threads.clear();
  return well;
}

/// The most of each in a part of the rounds.
Memory most(const std::vector<Memory>& rounds, std::size_t begin, std::size_t end) {
  Memory found;
  for (std::size_t i = begin; i < end; ++i) {
    found = {std::max(found.blocks, rounds[i].blocks), std::max(found.bytes, rounds[i].bytes)};
  }
  return found;
}

int soak(double seconds, int count, int threads, std::uint64_t seed) {
  const ScratchFolder scratch;
  std::vector<Caller> callers;
  for (int i = 0; i < count; ++i) {
    callers.emplace_back(seed + static_cast<std::uint64_t>(i),
                         CallSettings{.threads = threads, .folder = scratch.path() / std::to_string(i)});
  }
  std::vector<Memory> rounds;
  for (const Clock::time_point began = Clock::now();
       rounds.size() < 6 || std::chrono::duration<double>(Clock::now() - began).count() < seconds;) {
    if (!make_round(callers)) return 1;
    rounds.push_back(memory_now());
  }
  // The second third of the rounds has seen what grows for a while: tables, results, pages of the threads.
  const std::size_t third = rounds.size() / 3;
  const Memory middle = most(rounds, third, 2 * third), end = most(rounds, 2 * third, rounds.size());
  std::printf(
      "%ld calls in %zu rounds; blocks %ld in the first round, at most %ld and then %ld; resident %.1f MiB, at most "
      "%.1f and then %.1f MiB\n",
      static_cast<long>(Caller::calls), rounds.size(), static_cast<long>(rounds.front().blocks),
      static_cast<long>(middle.blocks), static_cast<long>(end.blocks),
      static_cast<double>(rounds.front().bytes) / 1048576, static_cast<double>(middle.bytes) / 1048576,
      static_cast<double>(end.bytes) / 1048576);
  if (end.blocks <= middle.blocks + kBlocks && end.bytes <= middle.bytes + kBytes) return 0;
  std::fprintf(stderr, "memory grows\n");
  return 1;
}

}  // namespace
}  // namespace heddle::test

int main(int argc, char** argv) {
  CLI::App options("Random calls of the whole interface on the CPU, for long.");
  double seconds = 300;
  int callers = 2, threads = 2;
  std::uint64_t seed = 1;
  options.add_option("--seconds", seconds, "how long");
  options.add_option("--callers", callers, "threads that call");
  options.add_option("--threads", threads, "threads of each call");
  options.add_option("--seed", seed, "of the calls");
  CLI11_PARSE(options, argc, argv);
  return heddle::test::soak(seconds, callers, threads, seed);
}
