// A CTA on the host, each of its threads a context of its own, all in one thread of the machine. A warp's threads go on
// together from one instruction of the whole warp to the next: that instruction is computed when the last of them has
// come to it. Warps take turns at barriers, in an order that a seed decides. Ends the process with a sentence where
// threads that must come together do not.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "mods/instructions.cuh"

struct LaneIndex {
  unsigned x;
};
inline LaneIndex blockIdx, blockDim, gridDim;

namespace heddle::lanes {

[[noreturn]] inline void fail(const char* sentence) {
  std::fprintf(stderr, "%s (CTA %u, thread %u)\n", sentence, blockIdx.x, threadIdx.x);
  std::abort();
}

/// A requested copy from global memory that has not arrived.
struct Copy {
  char* to;
  const char* from;
  int bytes, valid;
};

struct Warp {
  int arrived = 0, done = 0;
  const void* in[64];
  void* out[64];
  const char* instruction = nullptr;  // that the first of them came to
};

/// The number, beside those of barriers, of who waits for arrivals.
inline constexpr int kArrivals = 16;

enum class State { ready, in_warp, in_part, in_cta, done };

struct Lane {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state = State::ready;
  int barrier = 0;                       // in_part: which one
  std::vector<Copy> copies;              // since the last commit
  std::deque<std::vector<Copy>> groups;  // committed, the oldest first
  bool fenced = true;                    // since a wait for arrivals: products of warpgroups may read what was copied
};

/// A barrier at which each thread of those that share it arrives when its copies have been written, or with the bytes
/// that it waits for.
struct Arrival {
  bool is_of_threads = false;        // which copy themselves
  long long bytes = 0;               // that are still to come
  std::size_t expected = 0;          // threads that arrive in a phase
  unsigned arrived = 0, parity = 0;  // of the phase that goes on
  std::vector<Copy> copies;          // of it
  std::vector<Copy> over;            // of phases that are over, but for nobody yet
};

/// The CTA that runs.
struct Cta {
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  ucontext_t scheduler;
  int wave = 32;
  int arrived[16] = {};  // at the barriers of some of its threads
  std::map<unsigned, Arrival> arrivals;
  char* memory = nullptr;
  bool copies_at_once = false;  // as early as may be; else as late
  void (*body)(void*) = nullptr;
  void* argument = nullptr;

  Lane& own() { return lanes[threadIdx.x]; }
  Warp& own_warp() { return warps[threadIdx.x / static_cast<unsigned>(wave)]; }
  int lane() const { return static_cast<int>(threadIdx.x) % wave; }

  void wait(State state) {
    own().state = state;
    const unsigned self = threadIdx.x;
    swapcontext(&lanes[self].context, &scheduler);
    threadIdx.x = self;
  }
};
inline Cta cta;

/// An instruction of a whole warp: compute(ins, outs) when all its threads are there.
template <class Out, class In, class Compute>
Out together(const char* instruction, const In& in, Compute&& compute) {
  Warp& warp = cta.own_warp();
  Out out{};
  warp.in[cta.lane()] = &in;
  warp.out[cta.lane()] = &out;
  if (warp.arrived == 0) warp.instruction = instruction;
  if (std::strcmp(warp.instruction, instruction) != 0) fail("threads of a warp are at different instructions");
  if (++warp.arrived == cta.wave) {
    if (warp.done > 0) fail("a thread ended before an instruction of its warp");
    const In* ins[64];
    Out* outs[64];
    for (int i = 0; i < cta.wave; ++i)
      ins[i] = static_cast<const In*>(warp.in[i]), outs[i] = static_cast<Out*>(warp.out[i]);
    compute(ins, outs);
    warp.arrived = 0;
    const unsigned first = threadIdx.x / static_cast<unsigned>(cta.wave) * static_cast<unsigned>(cta.wave);
    for (int i = 0; i < cta.wave; ++i) cta.lanes[first + static_cast<unsigned>(i)].state = State::ready;
    return out;
  }
  cta.wait(State::in_warp);
  return out;
}

/// Any thread's value of the warp.
template <class T>
T from_lane(T x, int source) {
  struct Ask {
    T x;
    int source;
  };
  return together<T>("shuffle", Ask{x, source}, [](const Ask* const* in, T* const* out) {
    for (int i = 0; i < cta.wave; ++i) *out[i] = in[in[i]->source % cta.wave]->x;
  });
}

inline void perform(const Copy& copy) {
  std::memset(copy.to, 0, static_cast<std::size_t>(copy.bytes));
  if (copy.valid > 0) std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.valid));
}
inline void ask(const Copy& asked) {
  if (cta.copies_at_once) {
    perform(asked);
  } else {
    cta.own().copies.push_back(asked);
  }
}
inline long long copied_bytes = 0;  // that copy() was asked to read: of keys and values
inline void copy(const Copy& asked) {
  copied_bytes += asked.valid;
  ask(asked);
}
inline void commit_copies() {
  Lane& own = cta.own();
  own.groups.push_back(std::move(own.copies));
  own.copies.clear();
}
/// Performs all groups but the last `left`. What was not committed stays.
inline void await_groups(std::size_t left) {
  Lane& own = cta.own();
  for (; own.groups.size() > left; own.groups.pop_front()) {
    for (const Copy& copy : own.groups.front()) perform(copy);
  }
}
/// The phase ends when all have come.
inline void settle(Arrival& arrival) {
  if (arrival.arrived < arrival.expected || arrival.bytes != 0) return;
  arrival.over.insert(arrival.over.end(), arrival.copies.begin(), arrival.copies.end());
  arrival.copies.clear();
  arrival.arrived = 0;
  arrival.parity ^= 1;
  for (Lane& lane : cta.lanes) {
    if (lane.state == State::in_part && lane.barrier == kArrivals) lane.state = State::ready;
  }
}
/// The copies since the last commit or arrival.
inline void arrive_behind_copies(unsigned barrier) {
  Lane& own = cta.own();
  Arrival& arrival = cta.arrivals[barrier];
  arrival.is_of_threads = true;
  arrival.copies.insert(arrival.copies.end(), own.copies.begin(), own.copies.end());
  own.copies.clear();
  ++arrival.arrived;
  settle(arrival);
}
inline void arrive_expecting(unsigned barrier, long long bytes) {
  Arrival& arrival = cta.arrivals[barrier];
  ++arrival.arrived;
  arrival.bytes += bytes;
  settle(arrival);
}
/// A part of what comes with the next arrive_bytes().
inline void copy_to_arrival(unsigned barrier, const Copy& copy) {
  copied_bytes += copy.valid;
  if (cta.copies_at_once) return perform(copy);
  cta.arrivals[barrier].copies.push_back(copy);
}
inline void arrive_bytes(unsigned barrier, long long bytes) {
  Arrival& arrival = cta.arrivals[barrier];
  arrival.bytes -= bytes;
  settle(arrival);
}
/// Until all have arrived in the phase of that parity. Their copies are performed for the first one that waits. Whether
/// threads have made them.
inline bool await_arrival(unsigned barrier, unsigned parity) {
  Arrival& arrival = cta.arrivals[barrier];
  while (arrival.parity == parity) {
    cta.own().barrier = kArrivals;
    cta.wait(State::in_part);
  }
  for (const Copy& copy : arrival.over) perform(copy);
  arrival.over.clear();
  return arrival.is_of_threads;
}
inline void await_copies() {
  commit_copies();
  await_groups(0);
}

/// Comes to a barrier of `count` threads, of those that have its number. True: all have.
inline bool come(int number, int count) {
  if (++cta.arrived[number] < count) return false;
  cta.arrived[number] = 0;
  for (Lane& lane : cta.lanes) {
    if (lane.state == State::in_part && lane.barrier == number) lane.state = State::ready;
  }
  return true;
}
/// Until they have.
inline void meet(int number, int count) {
  if (come(number, count)) return;
  cta.own().barrier = number;
  cta.wait(State::in_part);
}

inline void entry() {
  cta.body(cta.argument);
  Lane& own = cta.own();
  bool under_way = !own.copies.empty();
  for (const std::vector<Copy>& group : own.groups) under_way |= !group.empty();
  if (under_way) fail("a thread ended with copies under way");
  own.groups.clear();
  cta.own().state = State::done;
  cta.own_warp().done += 1;
  setcontext(&cta.scheduler);
}

inline void run_lane(unsigned thread) {
  threadIdx.x = thread;
  swapcontext(&cta.scheduler, &cta.lanes[thread].context);
}

/// Runs one CTA to its end.
inline void run_cta(std::mt19937& rng) {
  constexpr std::size_t kStack = 256 << 10;
  const auto threads = static_cast<unsigned>(cta.lanes.size());
  for (unsigned i = 0; i < threads; ++i) {
    Lane& lane = cta.lanes[i];
    if (lane.stack == nullptr) lane.stack.reset(new char[kStack]);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = kStack;
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, entry, 0);
    lane.state = State::ready;
  }
  std::vector<unsigned> order(cta.warps.size());
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i, cta.warps[i] = {};
  cta.arrivals.clear();
  const auto wave = static_cast<unsigned>(cta.wave);
  for (;;) {
    std::shuffle(order.begin(), order.end(), rng);
    for (const unsigned warp : order) {
      for (bool any = true; any;) {  // until all its threads wait for the CTA, or are done
        any = false;
        for (unsigned i = warp * wave; i < (warp + 1) * wave; ++i) {
          if (cta.lanes[i].state == State::ready) any = true, run_lane(i);
        }
      }
    }
    if (std::ranges::any_of(cta.lanes, [](const Lane& lane) { return lane.state == State::ready; })) continue;
    unsigned waiting = 0, done = 0;
    for (const Lane& lane : cta.lanes) waiting += lane.state == State::in_cta, done += lane.state == State::done;
    if (done == threads) {
      for (const auto& [barrier, arrival] : cta.arrivals) {
        if (!arrival.copies.empty() || !arrival.over.empty()) fail("a CTA ended with copies that nobody waited for");
      }
      return;
    }
    if (waiting != threads) fail("threads wait for others that do not come");
    for (Lane& lane : cta.lanes) lane.state = State::ready;
  }
}

/// Runs the CTAs of a launch one after the other, in an order that the seed decides. Shared memory is full of NaN.
template <class Body>
void launch(unsigned ctas, unsigned threads, int wave, int shared_bytes, unsigned seed, Body&& body) {
  std::mt19937 rng(seed);
  constexpr std::size_t kAlignment = 1024;
  std::vector<char> memory(static_cast<std::size_t>(shared_bytes) + kAlignment);
  cta.wave = wave;
  cta.copies_at_once = seed % 2 == 1;
  cta.lanes = std::vector<Lane>(threads);
  cta.warps.assign(threads / static_cast<unsigned>(wave), {});
  cta.memory = memory.data() + (kAlignment - reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment);
  cta.body = [](void* argument) { (*static_cast<std::remove_reference_t<Body>*>(argument))(cta.memory); };
  cta.argument = &body;
  blockDim.x = threads;
  gridDim.x = ctas;
  std::vector<unsigned> order(ctas);
  for (unsigned i = 0; i < ctas; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), rng);
  for (const unsigned block : order) {
    blockIdx.x = block;
    std::memset(cta.memory, 0xff, static_cast<std::size_t>(shared_bytes));
    run_cta(rng);
  }
}

}  // namespace heddle::lanes

inline void __syncthreads() { heddle::lanes::cta.wait(heddle::lanes::State::in_cta); }
inline void __threadfence() {}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return heddle::lanes::from_lane(x, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return heddle::lanes::from_lane(x, heddle::lanes::cta.lane() ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T x, int distance) {
  const int lane = heddle::lanes::cta.lane();
  return heddle::lanes::from_lane(x, lane < distance ? lane : lane - distance);
}
inline unsigned __ballot_sync(unsigned, bool x) {
  return heddle::lanes::together<unsigned>("ballot", x, [](const bool* const* in, unsigned* const* out) {
    unsigned all = 0;
    for (int i = 0; i < heddle::lanes::cta.wave; ++i) all |= (*in[i] ? 1U : 0U) << i;
    for (int i = 0; i < heddle::lanes::cta.wave; ++i) *out[i] = all;
  });
}
inline unsigned __match_any_sync(unsigned, int x) {
  return heddle::lanes::together<unsigned>("match", x, [](const int* const* in, unsigned* const* out) {
    for (int i = 0; i < heddle::lanes::cta.wave; ++i) {
      *out[i] = 0;
      for (int j = 0; j < heddle::lanes::cta.wave; ++j) *out[i] |= (*in[j] == *in[i] ? 1U : 0U) << j;
    }
  });
}
inline int __ffs(int bits) { return std::countr_zero(static_cast<unsigned>(bits)) % 32 + (bits != 0 ? 1 : 0); }
inline unsigned __activemask() { return 0; }  // not known
/// A whole warp waits here; without its mask it is about the order of the compiler alone.
inline void __syncwarp(unsigned mask) {
  if (mask != ~0U) return;
  heddle::lanes::together<bool>("barrier of a warp", true, [](const bool* const*, bool* const*) {});
}
inline bool __any_sync(unsigned, bool x) {
  return heddle::lanes::together<bool>("vote", x, [](const bool* const* in, bool* const* out) {
    bool any = false;
    for (int i = 0; i < heddle::lanes::cta.wave; ++i) any |= *in[i];
    for (int i = 0; i < heddle::lanes::cta.wave; ++i) *out[i] = any;
  });
}
template <class Real>
Real atomicAdd(Real* at, Real x) {
  const Real found = *at;
  *at = found + x;
  return found;
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long x) {
  const unsigned long long found = *at;
  *at = found + x;
  return found;
}
inline unsigned long long atomicMax(unsigned long long* at, unsigned long long x) {
  const unsigned long long found = *at;
  if (x > found) *at = x;
  return found;
}
inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long from, unsigned long long to) {
  const unsigned long long found = *at;
  if (found == from) *at = to;
  return found;
}
