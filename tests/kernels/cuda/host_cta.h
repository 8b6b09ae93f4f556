// A CTA of device code on the host, a thread for each of its own: what kernels without Hopper's instructions need of
// CUDA's words. Include before the kernels, in one file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)
#define __shared__ static  // one CTA at a time
#define __align__(bytes) alignas(bytes)

namespace heddle::host_cta {

struct Index {
  unsigned x;
};

/// Memory through which the threads of a warp show each other words.
struct Warp {
  std::barrier<> all{32};
  int words[32];
};
struct Cta {
  explicit Cta(int threads) : all(threads), warps(static_cast<std::size_t>(threads / 32)) {}
  std::barrier<> all;
  std::vector<Warp> warps;
};

}  // namespace heddle::host_cta

inline thread_local heddle::host_cta::Index threadIdx, blockIdx;
inline heddle::host_cta::Index gridDim;
inline heddle::host_cta::Cta* cta = nullptr;

inline int max(int x, int y) { return std::max(x, y); }
inline int min(int x, int y) { return std::min(x, y); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline void __syncthreads() { cta->all.arrive_and_wait(); }
/// `read` of the warp's words, one for each lane; all lanes read before any goes on.
template <class Read>
auto of_warp(int word, Read&& read) {
  heddle::host_cta::Warp& warp = cta->warps[threadIdx.x / 32];
  warp.words[threadIdx.x % 32] = word;
  warp.all.arrive_and_wait();
  const auto result = read(warp.words);
  warp.all.arrive_and_wait();
  return result;
}
inline int __shfl_up_sync(unsigned, int word, unsigned distance) {
  const unsigned lane = threadIdx.x % 32;
  return of_warp(word, [&](const int* words) { return words[lane >= distance ? lane - distance : lane]; });
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  return of_warp(vote, [](const int* words) {
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane) votes |= static_cast<unsigned>(words[lane] != 0) << lane;
    return votes;
  });
}
inline int atomicAdd(int* to, int x) { return std::atomic_ref<int>(*to).fetch_add(x); }

namespace heddle::host_cta {

/// Runs the CTAs of a launch, one after the other; the last first, since none may count on an order.
template <class Kernel, class Params>
void launch(Kernel kernel, int ctas, int threads, const Params& params) {
  for (int block = ctas - 1; block >= 0; --block) {
    Cta own(threads);
    cta = &own;
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; ++thread) {
      all.emplace_back([&, thread] {
        threadIdx.x = static_cast<unsigned>(thread);
        blockIdx.x = static_cast<unsigned>(block);
        kernel(params);
      });
    }
    for (std::thread& thread : all) thread.join();
  }
}

}  // namespace heddle::host_cta
