// The most that a multiprocessor of an NVIDIA GPU does, by NVIDIA's documents: for times of portable kernels on chips
// where they were not measured.
#pragma once

#include "backend/portable/shared/fragments.h"
#include "device/caps.h"

namespace heddle::plan {

/// FLOP a clock of one multiprocessor, 2 a multiply-add: of products of f16 and bf16 with sums of f32, of tf32, and of
/// plain multiply-adds of f32. The clock is the boost clock, and the memory that, of the chip's usual cards.
struct PortableRates {
  double clocks_per_second, halves, tf32, floats;
  double memory_bytes_per_second;
};

/// GeForce cards have half of the tensor cores' rate with sums of f32. Null: a compute capability that is not known.
const PortableRates* portable_rates(const device::CudaCaps& caps);

/// The most FLOP a clock of the products of these fragments. f64, which has no row: those of f16.
double peak_of(shared::FragmentKind fragments, const PortableRates& rates);

/// Kernels reach at most this share of a chip's peak where instructions do not bind. A guess.
inline constexpr double kOfPeak = 0.85;

/// On an H100, where the portable kernels' times were taken, it held this clock.
inline constexpr double kMeasuredClocksPerSecond = 1.755e9;

}  // namespace heddle::plan
