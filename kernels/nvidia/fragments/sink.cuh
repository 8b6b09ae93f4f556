// Closes the rows of a head with a sink: e^sink joins the row's sum of exponentials.
#pragma once

#include "ptx/math.cuh"

namespace heddle {

struct RowEnd {
  float factor;  // what the row of O is multiplied by
  float lse;     // natural
  bool sunk;     // so far below the sink that weights much above m, if m is not the true maximum, lose bits
};

/// A row's maximum m, in powers of two, or what stands for it, and its sum l of exponentials to that. With m' the
/// larger of m and the sink: l' = l 2^(m - m') + 2^(sink - m'), and O is divided by l' 2^(m' - m).
__device__ __forceinline__ RowEnd end_with_sink(float m, float l, float sink) {
  const float own = sink * ptx::kLog2E;
  const float top = fmaxf(m, own);
  const float from = top == -ptx::infinity() ? 0.0F : top;
  // Far below a sink the row's share becomes a subnormal number, which ex2 would flush: weights of 2^24 make it count.
  const float share = ptx::exp2_fast(m - from + 24) * 0x1p-24F;
  const float sum = fmaf(l, share, ptx::exp2_fast(own - from));
  RowEnd end;
  end.factor = sum > 0 ? share * ptx::reciprocal(sum) : sum;  // NaN stays
  end.lse = l == 0 ? (sum == sum ? sink : sum) : ptx::kLn2 * (top + ptx::log2_fast(sum));
  end.sunk = own - m > 64;
  return end;
}

}  // namespace heddle
