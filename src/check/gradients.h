// The criterion of check.h for gradients: what the backward returned, the reference, and plain's backward side by side.
//
// Each tensor (dq, dk, dv, and those of sinks, captures and params) passes if both hold:
//   (a) Its largest and its mean error are each at most 2 * base + floor, as for o.
//   (b) No element errs by more than 4 u * magnitude + floor + one rounding to the gradient's dtype.
// magnitude and floor are those of backend/reference/backward.h. The magnitude of delta is that of o's terms, not
// |delta|: the stored o is rounded, and delta with it.
//
// NaN and infinities must stand where the reference has them. Exceptions, for results of a GPU, whose tiles multiply
// masked numbers by 0: an element that is not finite where the reference is counts as right
//   - in dq, if k holds in its column, within the sequence, something that is not finite;
//   - in dk, if q does, in dv, if dO does.
#pragma once

#include "check/plain_backward.h"
#include "heddle/check.h"

namespace heddle::check {

/// What is judged: any floating dtypes, the shapes of what they are gradients of. Captures and params that are not
/// given are not judged.
struct GivenGradients {
  ConstTensorView q, k, v;
  std::optional<ConstTensorView> sinks{};
  std::map<std::string, ConstTensorView> captures{}, params{};
};

struct GradientReport {
  std::map<std::string, TensorCheck> tensors;  // "dq", "dk", "dv", "dsinks", "d NAME"
  bool passed = false;
  std::string text() const;  // a table of the figures
};

/// tensors: the forward's, with the stored o and lse, which plain takes; the reference does not. All on the CPU;
/// options.backend is cuda for copies of what a GPU computed. Throws as attention() does, and internal for a gradient
/// of another shape than its tensor's or of a name that has none.
GradientReport check_gradients(const AttentionTensors& tensors, const AttentionOptions& options,
                               const ConstTensorView& d_o, const std::optional<ConstTensorView>& d_lse,
                               const GivenGradients& given);

}  // namespace heddle::check
