// Matrix products without a pause: what one m64nNk16 takes, and how the clock falls when all multiprocessors do it.
#include "rates/instructions.cuh"
#include "rates/wgmma.cuh"  // generated: kColumns, wgmma_shared(), wgmma_registers()

namespace rates {

constexpr int kProducts = 8;                      // a step: as many as a head of 128 has
constexpr int kRowsBytes = 64 * 128;              // a warpgroup's left operand, 64 x 64
constexpr int kColumnsBytes = kColumns * 64 * 2;  // the right one, 64 x kColumns
constexpr int kPanel = 4;                         // products in 64 elements of depth
constexpr unsigned kNext = 16 * 2 / 16;           // from one to the next, in a descriptor

template <bool kFromRegisters>
__device__ __forceinline__ void multiply(float (&sums)[kColumns / 2], unsigned rows, unsigned columns, int steps) {
  const unsigned a[4] = {random_pair(threadIdx.x), random_pair(threadIdx.x + 1000), random_pair(threadIdx.x + 2000),
                         random_pair(threadIdx.x + 3000)};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const unsigned at = i % kPanel * kNext;
      const unsigned long long right = descriptor(columns + at);
      // The second half subtracts the products that the first half adds, so that the sums stay of a size. (Nobody would
      // use sums that begin anew, so the compiler would drop their products.)
      if constexpr (kFromRegisters) {
        i < kPanel ? wgmma_registers<1>(sums, a, right) : wgmma_registers<-1>(sums, a, right);
      } else {
        const unsigned long long left = descriptor(rows + at);
        i < kPanel ? wgmma_shared<1>(sums, left, right) : wgmma_shared<-1>(sums, left, right);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
  }
  wgmma_wait<0>();
}

}  // namespace rates

/// spans: one a warpgroup.
extern "C" __global__ void __launch_bounds__(256, 1)
    products(rates::Span* spans, float* sink, int steps, int from_registers) {
  using namespace rates;
  extern __shared__ __align__(1024) char shared[];
  const int warpgroup = threadIdx.x / 128;
  const int warpgroups = blockDim.x / 128;
  fill_operands(reinterpret_cast<unsigned*>(shared), (warpgroups * kRowsBytes + kColumnsBytes) / 4);
  const unsigned columns = address_of(shared) / 16;
  const unsigned rows = (address_of(shared) + kColumnsBytes + warpgroup * kRowsBytes) / 16;
  float sums[kColumns / 2] = {};
  Span span;
  begin(span);
  if (from_registers != 0) {
    multiply<true>(sums, rows, columns, steps);
  } else {
    multiply<false>(sums, rows, columns, steps);
  }
  end(span, steps);
  if (threadIdx.x % 128 == 0) spans[blockIdx.x * warpgroups + warpgroup] = span;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sum += sums[i];
  if (steps < 0) sink[threadIdx.x] = sum;
}
