// Fragments of matrices to shared memory, a warp together.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

/// Four matrices of 8 x 8 elements of 16 bits, transposed. Lane l holds in words[m] of matrix m row l / 4 and columns
/// 2 (l % 4) + {0, 1}; `to` of lane 8 m + r is where column r of matrix m goes, as 16 bytes.
__device__ __forceinline__ void store_transposed(Address to, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Likewise, not transposed: `to` of lane 8 m + r is where row r of matrix m goes.
__device__ __forceinline__ void store_matrices(Address to, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
/// Two matrices: lanes 0 to 15 name their rows.
__device__ __forceinline__ void store_two_matrices(Address to, const unsigned (&words)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(words[0]), "r"(words[1])
               : "memory");
}

}  // namespace heddle::ptx
