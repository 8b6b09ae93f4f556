// ptx/float_sums.cuh on the host.
#pragma once

namespace heddle::ptx {

inline constexpr int kFloatsAdded = 4;
inline void add_floats(float* to, const float (&x)[kFloatsAdded]) {
  for (int i = 0; i < kFloatsAdded; ++i) to[i] += x[i];
}

}  // namespace heddle::ptx
