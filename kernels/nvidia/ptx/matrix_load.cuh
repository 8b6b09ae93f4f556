// Fragments of matrices from shared memory, a warp together.
#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

/// Four matrices of 8 x 8 elements of 16 bits. `from` of lane 8 m + r is where row r of matrix m stands, in 16 bytes;
/// lane l gets in words[m] of matrix m row l / 4 and columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void load_matrices(Address from, unsigned* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
/// Likewise, transposed: lane l gets in words[m] of matrix m column l / 4 and rows 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void load_transposed(Address from, unsigned* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

}  // namespace heddle::ptx
