// Stands in for kernels/nvidia/mods/f64_instructions.cuh when the host's compiler compiles the text of mods: functions
// are what the interpreter computes.
#pragma once

#include <cmath>

#include "mods/instructions.cuh"

inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }

namespace heddle::ops::f64 {

#define HEDDLE_REAL_FUNCTION(name) \
  inline double name(double x) { return static_cast<double>(std::name(static_cast<long double>(x))); }
#include "shared/real_functions.def"
inline double pow(double x, double y) { return static_cast<double>(std::pow(static_cast<long double>(x), y)); }
inline double rsqrt(double x) { return static_cast<double>(1 / std::sqrt(static_cast<long double>(x))); }
inline double sqrt(double x) { return std::sqrt(x); }
inline double fabs(double x) { return std::fabs(x); }
inline double floor(double x) { return std::floor(x); }
inline double ceil(double x) { return std::ceil(x); }
inline double rint(double x) { return std::rint(x); }
inline double trunc(double x) { return std::trunc(x); }
inline double fmod(double x, double y) { return std::fmod(x, y); }
inline double copysign(double x, double y) { return std::copysign(x, y); }

}  // namespace heddle::ops::f64
