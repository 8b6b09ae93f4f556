// Refusals of all kernels over the portable fragments, in sentences that name the given value and the accepted ones;
// and the chips on which these kernels have run.
#pragma once

#include <cstdint>
#include <string>

#include "device/caps.h"
#include "problem/problem.h"

namespace heddle::plan {

/// The largest head dimensions that kernels take.
struct LargestDims {
  std::int64_t of_keys, of_values, of_f64;  // of_f64: of both
};
/// A thread's registers hold the sums of the first ones. Slices of columns make twice as many, and keys may be those of
/// latent attention.
inline constexpr LargestDims kDimsOfRegisters = {256, 256, 128}, kDimsOfSlices = {576, 512, 256};

/// Elements of 8 bits: kernels make f16 of them, where k and v have 8 bits, and q 16 or 8.
bool keys_become_halves(const problem::AttentionProblem& problem);

/// Empty when kernels may take the problem. Any strides are taken.
std::string portable_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                             const LargestDims& largest = kDimsOfRegisters);
/// But for types and head dimensions.
std::string portable_refuses_values(const problem::AttentionProblem& problem, const AttentionOptions& options);
/// Empty when the kernels are compiled for the chip.
std::string portable_device_refuses(const device::CudaCaps& caps);
std::string portable_device_refuses(const device::AmdCaps& caps);
template <class Caps>
std::string portable_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                             const Caps& caps, const LargestDims& largest = kDimsOfRegisters) {
  std::string reason = portable_device_refuses(caps);
  return reason.empty() ? portable_refuses(problem, options, largest) : reason;
}

/// Says that the portable kernels have not run on a chip like this one, and how far they are tested for it. Empty: they
/// have.
std::string portable_untried(const device::CudaCaps& caps);
std::string portable_untried(const device::AmdCaps& caps);

}  // namespace heddle::plan
