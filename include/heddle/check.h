// Is a result right? One criterion for all backends, against attention computed in float64.
//
// "Plain" is the unfused computation on the same stored inputs: S, mods and softmax in f32, P rounded to the storage
// dtype before P V, f32 accumulation, o rounded once. Per tensor x (o, lse), against the float64 reference:
//   (a) the largest and the mean error are at most twice plain's, plus floor = 8 * 2^-24 * (1 + max|t|) * magnitude,
//   where the magnitude is
//       the sum of |p w v| / l of the element for o, and max(1, |lse|) for lse (f64 inputs: 2^-53)
//   (b) no row of o errs by more than 4 u * (sum |p w v| / l) + floor + one rounding of o, u the storage dtype's unit
//   roundoff
// NaN and infinities must stand where the reference has them; NaN equals NaN only where the reference is NaN.
#pragma once

#include <optional>
#include <string>

#include "heddle/attention.h"

namespace heddle {

struct TensorCheck {
  double max_error = 0, mean_error = 0;              // of the checked result
  double plain_max_error = 0, plain_mean_error = 0;  // of plain
  double max_allowed = 0, mean_allowed = 0;
  double worst_row = 0;                  // the largest ratio of a row's error to what (b) allows; o only
  std::int64_t mismatched_specials = 0;  // NaN or infinity on one side only
  bool passed = false;
};

struct CheckReport {
  TensorCheck o;
  std::optional<TensorCheck> lse;
  bool passed = false;
  std::string text() const;  // a table of the figures
};

/// Checks a result of attention() with these inputs and options. Cost: Sq * Skv interpreted elements per head and two
/// dense [Sq, Skv] rows.
CheckReport check_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                            const AttentionOptions& options, const ConstTensorView& o,
                            const std::optional<ConstTensorView>& lse);

}  // namespace heddle
