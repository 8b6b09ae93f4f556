// Rates of a softmax's instructions, alone and beside warpgroups that keep the tensor core busy.
#include "rates/instructions.cuh"
#include "rates/wgmma.cuh"  // generated: kColumns, wgmma_shared()

namespace rates {

constexpr int kProducts = 8;
constexpr int kStepsBetweenLooks = 16;
constexpr int kRowsBytes = 64 * 128;
constexpr int kColumnsBytes = kColumns * 64 * 2;

/// True in all 128 threads of a warpgroup when it is true in one.
__device__ __forceinline__ bool any_of_warpgroup(bool mine, int barrier) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.s32 mine, %1, 0;\n"
      "bar.red.or.pred any, %2, 128, mine;\n"
      "selp.s32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<int>(mine)), "r"(barrier)
      : "memory");
  return any != 0;
}

/// Multiplies until all pipe warps are done; returns its steps.
__device__ __forceinline__ long long multiply(float (&sums)[kColumns / 2], unsigned rows, unsigned columns,
                                              const volatile int* done, int pipe_warps, int barrier) {
  long long steps = 0;
  bool over = false;
  while (!over) {
#pragma unroll 1
    for (int i = 0; i < kStepsBetweenLooks; ++i) {
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        const unsigned long long left = descriptor(rows + k % 4 * 2), right = descriptor(columns + k % 4 * 2);
        k < 4 ? wgmma_shared<1>(sums, left, right) : wgmma_shared<-1>(sums, left, right);  // as in products.cuh
      }
      wgmma_commit();
      wgmma_wait<1>();
    }
    steps += kStepsBetweenLooks;
    over = any_of_warpgroup(*done == pipe_warps, barrier);
  }
  wgmma_wait<0>();
  return steps;
}

constexpr int kChains = 16;  // independent: more than any latency asks for
constexpr int kRounds = 8;   // of all chains in a step of the loop

/// kRounds * kChains of one operation a step: x = f(x, the next chain's x, y).
template <class Operation>
__device__ __forceinline__ float run_chains(int steps, float y, Operation operation) {
  float x[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) x[i] = __uint_as_float(random_pair(threadIdx.x * kChains + i));
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int i = 0; i < kChains; ++i) x[i] = operation(x[i], x[(i + 1) % kChains], y);
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += x[i];
  return sum;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned both;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// The softmax of kScores scores a thread and step, as a row of tiles sees it: subtract, exponentiate, add up, round to
/// storage; on request with a maximum. The results go to a store that never happens.
constexpr int kScores = kRounds * kChains;
template <bool kMaximum>
__device__ __forceinline__ float run_softmax(int steps, float scale, unsigned* never) {
  constexpr int kHeld = 32;
  float score[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) score[i] = __uint_as_float(random_pair(threadIdx.x * kHeld + i));
  float sums[2] = {}, offset = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int part = 0; part < kScores / kHeld; ++part) {
      // Another offset each time: else the compiler would do all this once.
      float largest[2] = {-1e30F, -1e30F};
      unsigned packed[kHeld / 2];
#pragma unroll
      for (int i = 0; i < kHeld; i += 2) {
        float p[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float t = fmaf(score[i + j], scale, offset);
          if constexpr (kMaximum) largest[j] = fmaxf(largest[j], t);
          p[j] = exp2_fast(t);
          sums[j] += p[j];
        }
        packed[i / 2] = pack(p[0], p[1]);
      }
      offset += kMaximum ? 1e-6F * fmaxf(largest[0], largest[1]) : -1e-6F;
#pragma unroll
      for (int i = 0; i < kHeld / 2; i += 4) {
        // As one instruction with a predicate: behind a branch the packing would be part of what never happens.
        asm volatile(
            "{\n"
            ".reg .pred never;\n"
            "setp.lt.s32 never, %0, 0;\n"
            "@never st.shared.v4.b32 [%1], {%2, %3, %4, %5};\n"
            "}" ::"r"(steps),
            "r"(address_of(never)), "r"(packed[i]), "r"(packed[i + 1]), "r"(packed[i + 2]), "r"(packed[i + 3])
            : "memory");
      }
    }
  }
  return sums[0] + sums[1];
}

__device__ __forceinline__ unsigned bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float real(unsigned x) { return __uint_as_float(x); }

/// A function of three inputs that the compiler cannot simplify.
__device__ __forceinline__ float majority(unsigned x, unsigned y, unsigned z) {
  unsigned result;
  asm volatile("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
  return real(result);
}

/// In the order of operations() of kernels.cc.
__device__ __forceinline__ float run(int operation, int steps, float y, unsigned* never) {
  switch (operation) {
    case 0:
      return run_chains(steps, y, [](float x, float, float) { return exp2_fast(x); });
    case 1:
      return run_chains(steps, y, [](float x, float, float) {
        asm volatile("tanh.approx.f32 %0, %0;" : "+f"(x));
        return x;
      });
    case 2:
      return run_chains(steps, y, [](float x, float, float a) { return fmaf(x, a, a); });
    case 3:
      return run_chains(steps, y, [](float x, float, float a) { return x + a; });
    case 4:
      return run_chains(steps, y, [](float x, float, float a) { return x * a; });
    case 5:
      return run_chains(steps, y, [](float x, float next, float) { return fmaxf(x, next); });
    case 6:
      return run_chains(steps, y, [](float x, float next, float) { return real(pack(x, next)); });
    case 7:
      return run_chains(steps, y, [](float x, float next, float a) { return majority(bits(x), bits(next), bits(a)); });
    case 8:
      return run_chains(steps, y, [](float x, float next, float a) { return real(bits(x) + bits(next) + bits(a)); });
    case 9:
      return run_chains(steps, y, [](float x, float, float a) { return real(bits(x) * bits(a) + bits(a)); });
    case 10:
      return run_chains(steps, y, [](float x, float next, float a) { return x > a ? next : x; });
    case 11:
      return run_chains(steps, y, [](float x, float, float) { return __shfl_xor_sync(~0U, x, 1); });
    case 12:
      return run_softmax<false>(steps, y, never);
    default:
      return run_softmax<true>(steps, y, never);
  }
}

}  // namespace rates

/// The first warpgroups multiply, if any, the others run the operation. spans: one a warp.
extern "C" __global__ void __launch_bounds__(384, 1)
    pipes(rates::Span* spans, float* sink, int operation, int steps, int product_warpgroups, float y) {
  using namespace rates;
  extern __shared__ __align__(1024) char shared[];
  __shared__ int done;
  __shared__ unsigned never[4];
  if (threadIdx.x == 0) done = 0;
  fill_operands(reinterpret_cast<unsigned*>(shared), (product_warpgroups * kRowsBytes + kColumnsBytes) / 4);
  const int warpgroup = threadIdx.x / 128;
  Span span;
  float sum = 0;
  if (warpgroup < product_warpgroups) {
    const unsigned columns = address_of(shared) / 16;
    const unsigned rows = (address_of(shared) + kColumnsBytes + warpgroup * kRowsBytes) / 16;
    const int pipe_warps = blockDim.x / 32 - product_warpgroups * 4;
    float sums[kColumns / 2] = {};
    begin(span);
    end(span, multiply(sums, rows, columns, &done, pipe_warps, 1 + warpgroup));
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sum += sums[i];
  } else {
    begin(span);
    sum = run(operation, steps, y, never);
    end(span, steps);
    if (threadIdx.x % 32 == 0) atomicAdd(&done, 1);
  }
  if (threadIdx.x % 32 == 0) spans[threadIdx.x / 32] = span;
  if (steps < 0) sink[threadIdx.x] = sum;
}
