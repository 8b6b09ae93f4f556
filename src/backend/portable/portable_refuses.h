// Refusals of all kernels over the portable fragments, in sentences that name the given value and the accepted ones;
// and the chips on which these kernels have run.
#pragma once

#include <string>

#include "device/caps.h"
#include "problem/problem.h"

namespace heddle::plan {

/// Empty when forward and backward kernels may take the problem. Any strides are taken.
std::string portable_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options);
/// But for types and head dimensions.
std::string portable_refuses_values(const problem::AttentionProblem& problem, const AttentionOptions& options);
/// Empty when the kernels are compiled for the chip.
std::string portable_device_refuses(const device::CudaCaps& caps);
std::string portable_device_refuses(const device::AmdCaps& caps);
template <class Caps>
std::string portable_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                             const Caps& caps) {
  std::string reason = portable_device_refuses(caps);
  return reason.empty() ? portable_refuses(problem, options) : reason;
}

/// Says that the portable kernels have not run on a chip like this one, and how far they are tested for it. Empty: they
/// have.
std::string portable_untried(const device::CudaCaps& caps);
std::string portable_untried(const device::AmdCaps& caps);

}  // namespace heddle::plan
