// The four lanes of a warp that hold a row of a fragment between them.
#pragma once

namespace heddle {

/// Four words of each lane of a quad, turned: lane t has word t of all.
__device__ __forceinline__ void turn_words(unsigned (&words)[4]) {
  const bool odd = (threadIdx.x & 1) != 0, upper = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int pair = 0; pair < 4; pair += 2) {
    const unsigned got = __shfl_xor_sync(~0U, odd ? words[pair] : words[pair + 1], 1);
    (odd ? words[pair] : words[pair + 1]) = got;
  }
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    const unsigned got = __shfl_xor_sync(~0U, upper ? words[word] : words[word + 2], 2);
    (upper ? words[word] : words[word + 2]) = got;
  }
}

}  // namespace heddle
