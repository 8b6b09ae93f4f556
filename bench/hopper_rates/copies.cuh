// Memory to memory, 16 bytes a thread and access, four accesses in flight.

extern "C" __global__ void __launch_bounds__(512) copies(uint4* to, const uint4* from, long long count) {
  constexpr int kAtOnce = 4;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long mine = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (long long at = mine; at < count; at += kAtOnce * threads) {
    uint4 words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at + i * threads < count) words[i] = __ldcs(from + at + i * threads);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at + i * threads < count) __stcs(to + at + i * threads, words[i]);
    }
  }
}
