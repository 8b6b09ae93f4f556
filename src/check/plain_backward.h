// "Plain" for the backward: what a backward computes that is not fused, from the stored o, lse and lse_rest.
//
//   S, t, P = exp((t - lse) - lse_rest), dP, delta = rowsum(dO o) - dlse, dS = (P dt/ds)(w dP - delta) in the problem's
//   reals P w rounded to the storage dtype's precision before dV, dS before dQ and dK; all sums in the reals captures,
//   params and sinks from unrounded P and dt
#pragma once

#include <map>
#include <string>

#include "reference/reference_backward.h"

namespace heddle::check {

/// Results that the forward stored.
struct StoredResults {
  ConstTensorView o;
  std::optional<ConstTensorView> lse{}, lse_rest{};  // softmax only; without lse_rest it is 0
};

/// f64 tensors that hold numbers of the problem's reals, not yet rounded to a gradient's dtype.
struct PlainGradients {
  Tensor q, k, v, sinks;  // sinks: empty unless asked for
  std::map<std::string, Tensor> captures, params;
};

/// Everything was validated; all memory is on the CPU. The result does not depend on the number of threads, but for
/// sums over sequences that share a row of q, k or v.
PlainGradients plain_backward(const problem::AttentionProblem& problem, const backend::RunArguments& arguments,
                              const reference::BackwardArguments& backward, const StoredResults& stored);

}  // namespace heddle::check
