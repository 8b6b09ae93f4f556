// Stands in for kernels/nvidia/mods/instructions.cuh in an emulated CTA: the host's, with the CTA's threads.
#pragma once

#define threadIdx heddle_no_thread
#include "host/mods/instructions.cuh"
#undef threadIdx

#include "cta.h"

inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline bool isnan(float x) { return x != x; }
