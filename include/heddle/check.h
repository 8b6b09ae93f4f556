// Is a result right? One criterion for all backends, against attention computed in float64.
//
// "Plain" is the unfused computation on the same stored inputs: S, mods and softmax in f32, P rounded to the storage
// dtype's precision before P V, f32 accumulation, o rounded once (f64 inputs: all in f64). The storage dtype is q's;
// only its precision counts, not its range, so that P neither overflows nor vanishes. Per tensor x (o, lse), against
// the float64 reference:
//   (a) the largest and the mean error are at most twice plain's, or twice those of the reference itself rounded to the
//   tensor's dtype when these are larger (on few elements plain may be exact by luck), plus floor = 8 * 2^-24 * (1 + m)
//   * magnitude: sum |p w v| / l of the element for o, max(1, |lse|) for lse (f64 inputs: 2^-53). The tensor's largest
//   floor counts for the largest error, the mean one for the mean. What a GPU makes of q, k and v of 8 bits: 2^-14
//   instead of 8 * 2^-24, since its tensor cores keep some 14 bits of a sum of such products (check/criterion.h)
//   (b) no element of a row of o errs by more than 4 u * magnitude + floor + one rounding of o, u the storage dtype's
//   unit roundoff
// m is the row's largest |t|, |sink| and half of |scale| * sum |q_d k_d| among what takes part: a score in which much
// cancels is as uncertain as what cancelled. With normalizer none p is t itself, not its exponential, and floor = 8 *
// 2^-24 * m * sum |w v|. p counts at least 2^-102 in the magnitude (f64: 2^-970), since f32 flushes smaller ones.
//
// NaN and infinities must stand where the reference has them, once that is rounded to the tensor's dtype (either side
// of the overflow threshold is right within what (b) allows). NaN is right only where the reference is NaN.
//
// The criterion speaks of mods that f32 can compute: one that amplifies rounding errors of s (exp(50 * score), a jump
// at score == 0) may fail it on any backend.
#pragma once

#include <optional>
#include <string>

#include "heddle/attention.h"

namespace heddle {

struct TensorCheck {
  double max_error = 0, mean_error = 0;              // of the checked result
  double plain_max_error = 0, plain_mean_error = 0;  // of plain
  double max_allowed = 0, mean_allowed = 0;
  double worst_row = 0;                  // the largest ratio of an element's error to what (b) allows; o only
  std::int64_t mismatched_specials = 0;  // NaN or infinity on one side only
  bool passed = false;
};

struct CheckReport {
  TensorCheck o;
  std::optional<TensorCheck> lse;
  bool passed = false;
  std::string text() const;  // a table of the figures
};

/// Checks a result of attention() with these inputs and options; o may have any floating dtype. Cost: Sq * Skv
/// interpreted elements per head, twice, on all cores (options.threads). Tensors on a GPU are copied to the CPU first;
/// wait for the stream that computed them. Throws as attention() does.
CheckReport check_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                            const AttentionOptions& options, const ConstTensorView& o,
                            const std::optional<ConstTensorView>& lse);

}  // namespace heddle
