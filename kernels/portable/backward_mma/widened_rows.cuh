// The kernel before the passes where tensors have 8 bits: it copies them to 16 bits, which is exact, row after row.
#pragma once

#include "families/backward_mma/shared/backward_mma_params.h"
#include "mods/captures.cuh"
#include "portable/backward_mma/row_kernels.cuh"

namespace heddle::portable {

/// By kSumThreads threads of each of params.ctas CTAs. `kF16`: of the copies; else they are bf16. `kTypes`: of q, k, v.
template <bool kF16, shared::Fp8... kTypes>
class WidenedRows {
 public:
  __device__ __forceinline__ static void run(const shared::MmaWidenParams& params, int cta) {
    int number = 0;
    (copy<kTypes>(params, params.tensors[number++], cta), ...);
  }

 private:
  static constexpr int kRun = shared::kWidenedRun;
  struct alignas(16) Run {
    unsigned short half[kRun];
  };

  template <shared::Fp8 kType>
  __device__ __forceinline__ static void copy(const shared::MmaWidenParams& params, const shared::WidenedTensor& tensor,
                                              int cta) {
    if constexpr (kType != shared::Fp8::none) {
      const long long step = static_cast<long long>(params.ctas) * shared::kSumThreads;
      const long long first = static_cast<long long>(cta) * shared::kSumThreads + static_cast<int>(threadIdx.x);
      for (long long i = first; i < tensor.runs; i += step) {
        const int runs_of_row = tensor.pitch / kRun, column = static_cast<int>(i % runs_of_row) * kRun;
        const long long line = i / runs_of_row, of_head = line / tensor.rows;
        const unsigned char* const row =
            static_cast<const unsigned char*>(tensor.from) + of_head / tensor.heads * tensor.stride[0] +
            of_head % tensor.heads * tensor.stride[1] + line % tensor.rows * tensor.stride[2];
        Run run;
#pragma unroll
        for (int e = 0; e < kRun; ++e) {
          run.half[e] = column + e < tensor.dim ? half_of<kType>(row[column + e]) : static_cast<unsigned short>(0);
        }
        static_cast<Run*>(tensor.to)[i] = run;
      }
    }
  }
  template <shared::Fp8 kType>
  __device__ __forceinline__ static unsigned short half_of(unsigned char byte) {
    float x;
    if constexpr (kType == shared::Fp8::e4m3) {
      x = ops::E4m3::value(byte);
    } else {
      x = ops::E5m2::value(byte);
    }
    return kF16 ? RoundedHalves::half_bits(x) : RoundedHalves::bfloat_bits(x);
  }
};

}  // namespace heddle::portable
