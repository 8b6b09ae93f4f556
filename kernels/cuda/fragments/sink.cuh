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

/// A row's end in both words of lse.
struct RowEndInTwo {
  RowEnd first;
  float rest;
};

/// Where lse is asked for in two words: a row's m times the sum of `unit` and `rest` is natural, and its l has
/// `headroom` powers of two besides.
struct NaturalUnit {
  float unit, rest, headroom;
};

/// Closes a row with a sink in both words of lse. The maximum and the sink meet before they are powers of two: beside
/// large ones those have no digits left. (Selections, no branches: lanes that part here would cost every address of the
/// loop its one value a warp.)
__device__ __forceinline__ RowEndInTwo end_with_sink_in_two(float m, const NaturalUnit& of, float l, float sink) {
  const float apart = (fmaf(m, of.unit, -sink) + m * of.rest) * ptx::kLog2E;
  const bool above = apart > 0;
  const float share = ptx::exp2_fast((above ? 0.0F : apart) - of.headroom + 24) * 0x1p-24F;
  const float sum = fmaf(l, share, ptx::exp2_fast(above ? -apart : sink - sink));  // an infinite sink makes NaN
  const float of_sum = ptx::kLn2 * ptx::log2_fast(sum);
  const float lse = above ? fmaf(m, of.unit, fmaf(m, of.rest, of_sum)) : sink + of_sum;
  const float rest = (above ? fmaf(m, of.unit, -lse) + m * of.rest : sink - lse) + of_sum;
  const float alone = sink < ptx::infinity() ? sink : __int_as_float(0x7fffffff), none = alone == alone ? 0.0F : alone;
  RowEndInTwo end;
  end.first.factor = l == 0 ? none : sum > 0 ? share * ptx::reciprocal(sum) : sum;  // NaN stays
  end.first.lse = l == 0 ? alone : lse;
  end.first.sunk = -apart > 64;
  end.rest = l == 0 ? none : rest;
  return end;
}

/// A row without a sink: lse_rest.
__device__ __forceinline__ float rest_of_lse(float m, const NaturalUnit& of, float l, float lse) {
  const float rest = fmaf(m, of.unit, -lse) + fmaf(m, of.rest, ptx::kLn2 * (ptx::log2_fast(l) - of.headroom));
  return lse == -ptx::infinity() ? 0.0F : rest;
}

}  // namespace heddle
