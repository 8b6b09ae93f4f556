// The values behind a mod's leaves, params and captures, as kernels take them. Host and device code read this file:
// plain integers only.
#pragma once

#include "shared/sequence_span.h"

namespace heddle::shared {

/// A tensor that a mod reads: element strides, i32 extents. Indices are clamped on the device.
struct ModCapture {
  const void* data;
  long long stride[4];
  int extent[4];
};
inline constexpr int kModParams = 16;   // 4-byte words: f32, i32, or boolean as 0 and 1; the lower words of f64
inline constexpr int kModCaptures = 8;  // of rank 4 at most

/// In constant memory (a kernel parameter).
struct ModValues {
  int q_len, kv_len, q_start;  // of every sequence
  unsigned params[kModParams];
  ModCapture captures[kModCaptures];
  const SequenceSpan* sequences;      // of each, where they differ
  unsigned upper_params[kModParams];  // the upper words of params of f64
};

}  // namespace heddle::shared
