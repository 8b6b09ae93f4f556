// A CTA of Hopper, or a cluster of them, on the host: kernels of kernels/nvidia, compiled by the host's compiler, run
// with all of their threads, one at a time, in an order that a seed chooses. The files of emulated/ptx stand in for
// kernels/nvidia/ptx, an instruction a function: barriers, copies by TMA, products of warpgroups. Work that hardware
// does by itself (copies, adds, products) happens later than it was asked for, at a time that the seed chooses, and
// reads memory and registers then: a thread that gives a buffer back too early, or reads too early, gets wrong numbers.
// A CTA whose threads all wait for ever ends the process. The CTAs of a cluster are one here, with as many threads and
// as much memory; each has its own part of the addresses, so an access to the wrong CTA shows as wrong numbers alone.
// Not emulated: proxies (a missing fence goes unnoticed), rates, and registers.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace emulated {

struct Index {
  unsigned x, y;
};

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated CTA: %s\n", what);
  std::abort();
}

/// An mbarrier.
struct Barrier {
  int count = 0, pending = 0;
  std::int64_t bytes = 0;
  unsigned phase = 0;
  void complete() {
    if (pending < 0) fail("more arrivals at a barrier than it was made for");
    if (pending > 0 || bytes != 0) return;
    phase ^= 1;
    pending = count;
  }
};

/// Threads that meet: a warp, or all.
struct Meeting {
  int members = 0, arrived = 0;
  unsigned generation = 0;
};

/// One thread's part in a product of a warpgroup.
struct Product {
  float* d;
  const unsigned* a_registers;  // null: a is in shared memory
  std::uint64_t a, b;
  bool accumulates;
  int columns;
  bool b_by_rows;  // MN-major
  int rank = 0;    // of the warpgroup's CTA
};

/// Does the write, unless it has been done.
inline void show(std::function<void()>& write) {
  if (const auto once = std::exchange(write, nullptr)) once();
}

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  std::function<bool()> waits_for;  // empty: it runs
  std::deque<Product> products;     // not executed yet
  std::deque<int> groups;           // products left of each committed group, the oldest first
  int open = 0;                     // products of the group that is not committed
  int adds = 0;                     // bulk adds whose shared memory has not been read
  std::vector<std::shared_ptr<std::function<void()>>> unseen;  // its bulk writes, in the order in which they were read
  unsigned word = 0, words[4] = {};
  unsigned address = 0;

  /// Others see what it has waited for.
  void release() {
    for (auto& write : unseen) show(*write);
    unseen.clear();
  }
};

class Cta {
 public:
  static constexpr std::size_t kSharedBytes = 232448 + 1024, kStack = 128 << 10;

  /// `shared`: kSharedBytes for each of `ctas` CTAs of so many threads.
  Cta(int threads, char* shared, unsigned seed, int ctas = 1) : cta_threads_(threads), shared_(shared), random_(seed) {
    for (int i = 0; i < threads * ctas; ++i) threads_.push_back(std::make_unique<Thread>());
    all_.resize(static_cast<std::size_t>(ctas));
    for (Meeting& all : all_) all.members = threads;
    cluster_.members = threads * ctas;
    warps_.resize(static_cast<std::size_t>(threads + 31) / 32 * static_cast<std::size_t>(ctas));
    for (Meeting& warp : warps_) warp.members = 32;
    rests_until_.resize(warps_.size());
    std::memset(shared_, 0xff, kSharedBytes * static_cast<std::size_t>(ctas));
  }

  /// Runs kernel() by each thread to its end.
  void run(const std::function<void()>& kernel) {
    begin(kernel);
    int idle = 0;
    while (!turn()) {
      idle = progressed() ? 0 : idle + 1;
      if (idle > kMostIdle) fail("every thread waits for ever");
    }
    finish();
  }
  static constexpr int kMostIdle = 10000;

  void begin(const std::function<void()>& kernel) {
    kernel_ = &kernel;
    for (auto& thread : threads_) {
      thread->stack.resize(kStack);
      getcontext(&thread->context);
      thread->context.uc_stack.ss_sp = thread->stack.data();
      thread->context.uc_stack.ss_size = kStack;
      thread->context.uc_link = &scheduler_;
      makecontext(&thread->context, &Cta::enter, 0);
    }
    order_.resize(threads_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int>(i);
  }
  /// Each thread once, if it does not wait, nor its warp rests. True when all are at their ends.
  bool turn() {
    bool any = false;
    before_ = progress_;
    ++turns_;
    if (random_() % kRestDelay == 0) rests_until_[random_() % rests_until_.size()] = turns_ + random_() % kLongestRest;
    std::shuffle(order_.begin(), order_.end(), random_);
    for (const int i : order_) {
      Thread& thread = *threads_[static_cast<std::size_t>(i)];
      if (thread.done) continue;
      any = true;
      if (turns_ < rests_until_[static_cast<std::size_t>(i) / 32]) continue;
      if (thread.waits_for && !thread.waits_for()) continue;
      thread.waits_for = nullptr;
      ++progress_;
      current_ = i;
      swapcontext(&scheduler_, &thread.context);
      if (random_() % 8 == 0) work();
    }
    work();
    return !any;
  }
  /// In its last turn.
  bool progressed() const { return progress_ != before_; }
  /// Runs everything that is still to happen.
  void finish() {
    while (!jobs_.empty()) work();
  }

  int thread() const { return current_ % cta_threads_; }
  int rank() const { return current_ / cta_threads_; }  // of the thread's CTA
  Thread& own() { return *threads_[static_cast<std::size_t>(current_)]; }
  /// An address of shared memory, of this thread's CTA, has the CTA's rank above its low 24 bits, as on the GPU.
  static constexpr unsigned kRankBit = 24, kOffset = (1U << kRankBit) - 1;
  unsigned address_of(const char* shared) const {
    return static_cast<unsigned>(shared - shared_) | static_cast<unsigned>(rank()) << kRankBit;
  }
  /// The memory at an address.
  char* at(unsigned address) const { return shared_ + (address >> kRankBit) * kSharedBytes + (address & kOffset); }
  Barrier& barrier(unsigned address) { return barriers_[address]; }
  void progress() { ++progress_; }
  /// Something that happens later.
  void later(std::function<void()> job) {
    const unsigned draw = random_() % 32;
    const std::uint64_t longest = draw == 0 ? kVeryLongDelay : draw < 8 ? kLongestDelay : 1;
    const std::uint64_t delay = random_() % longest;
    jobs_.push_back({time_ + delay, std::move(job)});
  }

  template <class Condition>
  void wait_until(Condition&& condition) {
    own().waits_for = condition;
    swapcontext(&own().context, &scheduler_);
  }

  /// Until all members have come; the last one does `action`.
  template <class Action>
  void meet(Meeting& meeting, Action&& action) {
    const unsigned generation = meeting.generation;
    if (++meeting.arrived == meeting.members) {
      action();
      meeting.arrived = 0;
      ++meeting.generation;
      ++progress_;
      return;
    }
    wait_until([&meeting, generation] { return meeting.generation != generation; });
  }
  Meeting& all() { return all_[static_cast<std::size_t>(rank())]; }
  Meeting& cluster() { return cluster_; }
  Meeting& named(int id) { return named_[{rank(), id}]; }
  Meeting& warp() { return warps_[static_cast<std::size_t>(current_) / 32]; }
  Thread& lane(int number) { return *threads_[static_cast<std::size_t>(current_ / 32 * 32 + number)]; }

  /// A word of another lane.
  unsigned from_lane(unsigned word, int lane_number) {
    own().word = word;
    meet(warp(), [] {});
    const unsigned result = lane(lane_number).word;
    meet(warp(), [] {});
    return result;
  }

  /// Executes the oldest product of this warpgroup once all its threads have asked for it.
  std::function<void(std::vector<Thread*>&)> multiply;

 private:
  static Cta*& running() {
    static Cta* cta = nullptr;
    return cta;
  }
  static void enter() {
    Cta& cta = *running();
    const int self = cta.current_;
    (*cta.kernel_)();
    cta.threads_[static_cast<std::size_t>(self)]->done = true;
    ++cta.progress_;
  }

  // Now and then a warp rests while others go on: who does not wait for it, and should, does not find its work done.
  static constexpr std::uint64_t kRestDelay = 8, kLongestRest = 40;
  // Some of what happens by itself takes long, and others overtake it; a little takes as long as several steps.
  static constexpr std::uint64_t kLongestDelay = 400, kVeryLongDelay = 10000, kRareDelay = 64;

  /// One of the things that are to happen: a copy, an add, or a warpgroup's oldest product.
  void work() {
    ++time_;
    if (!jobs_.empty() && random_() % 4 != 0) {
      const std::size_t i = random_() % jobs_.size();
      if (jobs_[i].at <= time_) {
        const std::function<void()> job = std::move(jobs_[i].job);
        jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
        job();
        ++progress_;
      }
    }
    products_at_.resize(threads_.size() / 128);
    for (std::size_t first = 0; first + 128 <= threads_.size(); first += 128) {
      std::uint64_t& at = products_at_[first / 128];
      if (at > time_) continue;
      if (random_() % kRareDelay == 0) at = time_ + random_() % kLongestDelay;
      for (int often = static_cast<int>(random_() % 12); often > 0; --often) {
        std::vector<Thread*> group;
        for (std::size_t i = first; i < first + 128; ++i) {
          if (!threads_[i]->products.empty()) group.push_back(threads_[i].get());
        }
        if (group.size() != 128) break;
        multiply(group);
        for (Thread* thread : group) {
          thread->products.pop_front();
          if (thread->groups.empty()) {
            --thread->open;
          } else if (--thread->groups.front() == 0) {
            thread->groups.pop_front();
          }
        }
        ++progress_;
      }
    }
  }

 public:
  /// Makes this CTA the one that threads find.
  void make_current() { running() = this; }
  static Cta& now() { return *running(); }

 private:
  int cta_threads_;
  char* shared_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Thread>> threads_;
  ucontext_t scheduler_;
  const std::function<void()>* kernel_ = nullptr;
  int current_ = 0;
  std::uint64_t progress_ = 0, before_ = 0;
  std::vector<int> order_;
  std::map<unsigned, Barrier> barriers_;
  struct Job {
    std::uint64_t at;  // not before
    std::function<void()> job;
  };
  std::vector<Job> jobs_;
  std::uint64_t time_ = 0;
  std::uint64_t turns_ = 0;
  std::vector<std::uint64_t> rests_until_;  // of each warp: turns before
  std::vector<std::uint64_t> products_at_;  // of each warpgroup: none before
  std::vector<Meeting> all_;
  Meeting cluster_;
  std::map<std::pair<int, int>, Meeting> named_;  // by CTA and number
  std::vector<Meeting> warps_;
};

inline Cta& cta() { return Cta::now(); }
inline Index block_index;

/// CTAs that run at one time, in turns, in an order that the seed chooses. They have one piece of shared memory between
/// them, which each finds as it left it.
inline void run_together(int ctas, int threads, char* shared, unsigned seed, const std::function<void(Cta&)>& prepare,
                         const std::function<void()>& kernel) {
  struct Own {
    unsigned block;
    std::unique_ptr<Cta> cta;
    std::vector<char> shared;
  };
  std::vector<Own> all;
  std::mt19937 random(seed);
  for (int block = 0; block < ctas; ++block) {
    Own& own = all.emplace_back();
    own.block = static_cast<unsigned>(block);
    own.cta = std::make_unique<Cta>(threads, shared, seed + own.block);
    own.cta->make_current();
    prepare(*own.cta);
    own.cta->begin(kernel);
    own.shared.assign(shared, shared + Cta::kSharedBytes);
  }
  for (int idle = 0; !all.empty();) {
    const std::size_t i = random() % all.size();
    Own& own = all[i];
    std::copy(own.shared.begin(), own.shared.end(), shared);
    block_index = {own.block, 0};
    own.cta->make_current();
    bool done = false, any = false;
    for (unsigned turns = 1 + random() % 64; turns > 0 && !done; --turns) {
      done = own.cta->turn();
      any = any || own.cta->progressed();
    }
    if (done) own.cta->finish();
    std::copy(shared, shared + Cta::kSharedBytes, own.shared.begin());
    if (done) all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
    idle = any || done ? 0 : idle + 1;
    if (idle > Cta::kMostIdle) fail("every thread of every CTA waits for ever");
  }
}

}  // namespace emulated

#define threadIdx (emulated::Index{static_cast<unsigned>(emulated::cta().thread()), 0})
#define blockIdx \
  (emulated::Index{emulated::block_index.x + static_cast<unsigned>(emulated::cta().rank()), emulated::block_index.y})
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __global__
#define __grid_constant__
#define __align__(bytes)

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
struct float2 {
  float x, y;
};
struct double2 {
  double x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int max(int x, int y) { return x < y ? y : x; }
inline int min(int x, int y) { return y < x ? y : x; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T>
T atomicAdd(T* to, T x) {
  return std::exchange(*to, *to + x);
}
inline unsigned atomicMax(unsigned* to, unsigned x) { return std::exchange(*to, *to < x ? x : *to); }

inline void __syncthreads() {
  emulated::cta().meet(emulated::cta().all(), [] {});
}
inline void __syncwarp() {
  emulated::cta().meet(emulated::cta().warp(), [] {});
}
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  static_assert(sizeof(T) == 4);
  unsigned word;
  std::memcpy(&word, &x, 4);
  word = emulated::cta().from_lane(word, lane);
  std::memcpy(&x, &word, 4);
  return x;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int with) {
  return __shfl_sync(mask, x, (emulated::cta().thread() % 32) ^ with);
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned distance) {
  const int lane = emulated::cta().thread() % 32, from = lane - static_cast<int>(distance);
  return __shfl_sync(mask, x, from < 0 ? lane : from);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) votes |= __shfl_sync(mask, static_cast<unsigned>(vote), lane) << lane;
  return votes;
}
