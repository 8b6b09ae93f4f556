#pragma once

#include <cstring>

namespace heddle::ptx {

inline void load_floats(const float* from, float* to) { std::memcpy(to, from, 16); }
inline void store_floats(float* to, const float* from) { std::memcpy(to, from, 16); }
inline void store_zeros(float* to) { std::memset(to, 0, 16); }

}  // namespace heddle::ptx
