// A day of calls in one process: random calls of the whole interface from several threads, on the CPU and on the fake
// CUDA driver, while the process's clocks run faster (fast_clock.h). A repeated call gives the result that it gave
// before, and nothing that the process holds grows.
//
// usage: reliability_soak [--seconds N] [--hours N] [--callers N] [--threads N] [--seed N]
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "expr/node.h"
#include "heddle/heddle.h"
#include "reliability/calls.h"
#include "reliability/failing_allocations.h"
#include "reliability/fast_clock.h"
#include "reliability/gpu_calls.h"
#include "reliability/scratch_folder.h"

namespace heddle::test {
namespace {

constexpr std::size_t kRepeated = 40;  // calls of a kind that come again; as many calls are new
constexpr int kOfARound = 60;          // calls of a caller
// Bounds of the caches: so small that plans and kernels give way all the time.
constexpr const char *kPlanBytes = "2048", *kKernelBytes = "65536";
constexpr std::int64_t kPlans = 256;  // that are kept at most

/// A kind of things that the process holds, and how many may come and go from round to round.
struct Held {
  const char* name;
  std::int64_t slack;
};
enum : std::size_t {
  kBlocks,
  kBytes,
  kResident,
  kNodes,
  kDescriptors,
  kThreads,
  kGpuMemory,
  kGpuModules,
  kCacheBytes,
  kLeftFiles,
  kKinds
};
constexpr std::array<Held, kKinds> kHeld = {{{"allocated blocks", 400},
                                             {"allocated bytes", 1 << 20},
                                             {"resident bytes", std::int64_t{8} << 20},
                                             {"nodes of expressions", 0},
                                             {"open files", 0},
                                             {"threads", 0},
                                             {"allocations on the GPU", 0},
                                             {"modules on the GPU", 0},
                                             {"bytes of kernels on disk", 65536},
                                             {"files of dead processes", 20}}};
using Counts = std::array<std::int64_t, kKinds>;

std::int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

constexpr double kHoursBetweenDeaths = 1.0 / 6;

/// Leaves in the kernel cache the file of a process that died while it wrote. It is to be removed an hour later.
void leave_file(const std::filesystem::path& cache, int number) {
  std::ofstream(cache / (".writing-dead-" + std::to_string(number))) << "half of a kernel";
}

std::int64_t files_left(const std::filesystem::path& cache) {
  const auto names = ScratchFolder::listing(cache);
  return std::ranges::count_if(names, [](const std::string& name) { return name.starts_with(".writing-"); });
}

std::int64_t bytes_of_kernels(const std::filesystem::path& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == ".kernel")
      bytes += static_cast<std::int64_t>(entry.file_size());
  }
  return bytes;
}

/// Between rounds, with the caches in memory emptied.
Counts held_now(const std::filesystem::path& cache) {
  clear_plan_cache();
  cuda::jit::forget();
  ::malloc_trim(0);
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  const GpuHeld gpu = gpu_held();
  Counts held{};
  held[kBlocks] = live_blocks();
  const struct mallinfo2 heap = ::mallinfo2();
  held[kBytes] = static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
  held[kResident] = resident * ::sysconf(_SC_PAGESIZE);
  held[kNodes] = static_cast<std::int64_t>(expr::live_nodes());
  held[kDescriptors] = entries_of("/proc/self/fd");
  held[kThreads] = entries_of("/proc/self/task");
  held[kGpuMemory] = gpu.allocations;
  held[kGpuModules] = gpu.modules;
  held[kCacheBytes] = bytes_of_kernels(cache);
  held[kLeftFiles] = files_left(cache);
  return held;
}

constexpr CallKind kOnGpu = {"on the fake GPU", draw_on_gpu};

const CallKind& kind_at(std::size_t number) { return number < call_kinds().size() ? call_kinds()[number] : kOnGpu; }

/// One thread's calls. It has a folder of its own, so that no other thread's files stand there.
class Caller {
 public:
  Caller(std::uint64_t seed, const CallSettings& settings) : random_(seed), settings_(settings) {
    std::filesystem::create_directories(settings_.folder);
  }

  /// Throws where a call throws, or gives another result than before.
  void make_round() {
    for (int i = 0; i < kOfARound; ++i) {
      const std::size_t kind = random_() % kMostKinds;
      const bool is_new = random_() % 2 == 0;
      const std::uint64_t number = is_new ? random_() : random_() % kRepeated;
      std::mt19937_64 random(number);
      const std::uint64_t result = kind_at(kind).draw(random, settings_)();
      ++calls;
      if (is_new) continue;
      std::optional<std::uint64_t>& before = results_[kind * kRepeated + number];
      if (before.value_or(result) != result)
        throw Error(ErrorCode::internal, std::string(kind_at(kind).name) + " gave another result");
      before = result;
    }
  }

  static inline std::atomic<std::int64_t> calls{0};

 private:
  static inline const std::size_t kMostKinds = call_kinds().size() + 1;
  std::mt19937_64 random_;
  CallSettings settings_;
  std::vector<std::optional<std::uint64_t>> results_ =
      std::vector<std::optional<std::uint64_t>>(kMostKinds * kRepeated);
};

/// The system lists a thread for a moment after it has been joined: waits until it does not, five seconds at most.
void await_end(pid_t thread) {
  const std::filesystem::path entry = "/proc/self/task/" + std::to_string(thread);
  for (int i = 0; i < 5000 && std::filesystem::exists(entry); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Whether all went well.
bool make_round(std::vector<Caller>& callers) {
  std::atomic<bool> well{true};
  std::vector<std::jthread> threads;
  std::vector<pid_t> ids(callers.size());
  for (std::size_t i = 0; i < callers.size(); ++i) {
    threads.emplace_back([&, i] {
      Caller& caller = callers[i];
      ids[i] = ::gettid();
      try {
        caller.make_round();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        well = false;
      }
    });
  }
  threads.clear();
  for (const pid_t id : ids) await_end(id);
  return well;
}

/// Whether the plan cache kept to its bounds.
bool keeps_bounds(const PlanCacheCounts& kept) {
  if (kept.plans <= kPlans && (kept.plans <= 1 || kept.bytes <= std::stoll(kPlanBytes))) return true;
  std::fprintf(stderr, "the plan cache keeps %ld plans of %ld bytes\n", static_cast<long>(kept.plans),
               static_cast<long>(kept.bytes));
  return false;
}

/// The most of a kind in a part of the rounds.
std::int64_t most(const std::vector<Counts>& rounds, std::size_t kind, std::size_t begin, std::size_t end) {
  std::int64_t found = 0;
  for (std::size_t i = begin; i < end; ++i) found = std::max(found, rounds[i][kind]);
  return found;
}

/// Whether the last third of the rounds held no more than the second, which has seen what grows for a while: tables,
/// results, pages of the threads.
bool is_flat(const std::vector<Counts>& rounds) {
  bool flat = true;
  const std::size_t third = rounds.size() / 3;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const std::int64_t first = rounds.front()[kind], middle = most(rounds, kind, third, 2 * third),
                       end = most(rounds, kind, 2 * third, rounds.size());
    const bool grows = end > middle + kHeld[kind].slack;
    std::printf("%s: %ld in the first round, at most %ld and then %ld%s\n", kHeld[kind].name, static_cast<long>(first),
                static_cast<long>(middle), static_cast<long>(end), grows ? ": it grows" : "");
    flat &= !grows;
  }
  return flat;
}

struct Soak {
  double seconds = 300, hours = 24;
  int callers = 2, threads = 2;
  std::uint64_t seed = 1;
};

int run(const Soak& soak) {
  // Few arenas, whose ends go back to the system: else what a round needed at most stays resident in each.
  ::mallopt(M_ARENA_MAX, 4);
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 128 << 10);
  const ScratchFolder scratch;
  const ScopedVariable plans("HEDDLE_PLAN_CACHE_BYTES", kPlanBytes), kernels("HEDDLE_CACHE_BYTES", kKernelBytes);
  take_fake_gpu();
  std::vector<Caller> callers;
  for (int i = 0; i < soak.callers; ++i) {
    callers.emplace_back(soak.seed + static_cast<std::uint64_t>(i),
                         CallSettings{.threads = soak.threads, .folder = scratch.path() / std::to_string(i)});
  }
  std::vector<Counts> rounds;
  const double rate = soak.hours * 3600 / soak.seconds, began = seconds_of_the_world();
  run_clock_faster(rate);
  const auto passed = [&] { return seconds_of_the_world() - began; };
  const auto hours = [&] { return passed() * rate / 3600; };
  int deaths = 0;
  while (rounds.size() < 6 || passed() < soak.seconds) {
    if (!make_round(callers) || !keeps_bounds(plan_cache_counts())) return 1;
    for (; deaths * kHoursBetweenDeaths < hours(); ++deaths) leave_file(scratch.cache(), deaths);
    rounds.push_back(held_now(scratch.cache()));
  }
  std::printf("%ld calls in %zu rounds and %.1f simulated hours; %ld plans gave way\n",
              static_cast<long>(Caller::calls), rounds.size(), hours(),
              static_cast<long>(plan_cache_counts().evictions));
  if (const GpuHeld gpu = gpu_held(); gpu.wrong != 0) {
    std::fprintf(stderr, "%ld frees of what was not there\n", static_cast<long>(gpu.wrong));
    return 1;
  }
  return is_flat(rounds) ? 0 : 1;
}

}  // namespace
}  // namespace heddle::test

int main(int argc, char** argv) {
  CLI::App options("Random calls of the whole interface in one process, for simulated hours.");
  heddle::test::Soak soak;
  options.add_option("--seconds", soak.seconds, "how long")->check(CLI::PositiveNumber);
  options.add_option("--hours", soak.hours, "of the process's own clocks in that time")->check(CLI::NonNegativeNumber);
  options.add_option("--callers", soak.callers, "threads that call");
  options.add_option("--threads", soak.threads, "threads of each call");
  options.add_option("--seed", soak.seed, "of the calls");
  CLI11_PARSE(options, argc, argv);
  return heddle::test::run(soak);
}
