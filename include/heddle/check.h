// Checks a result, with one criterion for all backends, against attention, or its backward, computed in float64.
//
// "Plain" is the unfused computation on the same stored inputs: S, mods and softmax in f32, P rounded to the storage
// dtype's precision before P V, f32 accumulation, o rounded once (f64 inputs: all in f64). The storage dtype is q's.
// Only its precision counts, not its range, so that P neither overflows nor vanishes.
//
// A tensor (o, lse, lse_rest, max_scores) passes if both hold, relative to the float64 reference:
//   (a) Its largest and its mean error are each at most 2 * base + floor. `base` is plain's error, or the error of the
//       reference rounded to the tensor's dtype if that is larger (on few elements plain may be exact by luck). The
//       largest error takes the tensor's largest floor, the mean error the mean one. Of o with softmax one of the
//       two bases is `one weight` instead, if that is larger.
//   (b) o and max_scores: no element of a row errs by more than 4 u * magnitude + floor + one rounding of the tensor.
//       u is the storage dtype's unit roundoff, and 0 for max_scores. The rounding is that of the largest number that
//       the other two allow.
//
//   one weight what rounding a single weight to the storage dtype may change: u * max |p w v| / l of an element, over
//              the keys whose p is below 1. A kernel rounds its weights beside the maximum that it has by then, so it
//              rounds other numbers than plain. If one weight decides the tensor (a weight_mod drops the others), the
//              errors of plain and of the result are one draw each between 0 and this. Twice a lucky draw is less than
//              a right result's error. It counts only if, summed over a row, it is more in one row than plain's errors
//              are in all: else many roundings count. Weights of f32 and f64 are not rounded. Where all weights of a
//              row are equal they round alike, as those of other such rows do: then it is what rounding all of them may
//              change, u * |sum p w v| / l, and the sum over all such rows is compared with plain's errors.
//   floor      of an element of o: e * magnitude if e is small, in general sum min(1, (p / l) * (exp(e) - 1)) |w v|,
//              and with softmax no more than 2 max |w v|; of lse and max_scores: e * magnitude, but no more than 8 e;
//              of lse_rest, which is judged as the rest of the given lse: e.
//   e          8 * 2^-24 * (1 + m). Instead of 2^-24: 2^-53 for f64 inputs. Instead of 8 * 2^-24: 2^-9 for f32 with
//              allow_tf32, whose products may have operands of 11 bits; and 2^-14 for what a GPU computes of q, k and
//              v of 8 bits, since its tensor cores keep some 14 bits of a sum of such products (check/criterion.h).
//              With normalizer none the floor is 8 * 2^-24 * m * sum |w v|, or that with what stands instead.
//   magnitude  of an element of o: sum |p w v| / l; of lse: max(1, |lse|), and max_scores likewise. p counts at least
//              2^-102 (f64: 2^-970), since f32 flushes smaller ones. With normalizer none p is t itself, not its
//              exponential.
//   m          the row's largest of |t|, |sink| and half of |scale| * sum |q_d k_d|, among keys and sinks whose
//              weight, times 1 + m of this key alone, may be more than 2^-102 (f64: 2^-970): a key hidden by a mask of
//              -1e9 says nothing of the others. The last one counts because a score in which much cancels is as
//              uncertain as what cancelled. For max_scores it counts wholly, among the scores that may be the largest:
//              o and lse are means over keys, the largest score is a single one.
//
// If e is above 2^-10, a row with softmax and without a sink that counts is judged more closely. In two cases it is
// known which result the reals give for its scores:
//   exact      There is no score_mod, and every score that counts is exact in the reals in whatever order its products
//              are added: they are multiples of one power of two, and their sum has no more digits than a number of the
//              reals. m is then the largest difference of the row's scores, since softmax only sees differences.
//   equal      The mod gives all scores that count one number, also if s were 0 or twice as large: beside -1e9 nothing
//              of s is left. m is then 0, and the weights may be the reference's, or equal, or anything between.
//
// Why the floor is not e * magnitude everywhere: e bounds the error of ln(p / l), so p / l errs by at most exp(e) - 1
// times itself. It also errs by at most 1, because it lies between 0 and 1. With softmax the weights p / l sum to at
// most 1, so |o| is at most max |w v|, whatever they are. If e is small, all this is e * magnitude. If
// the t of a row are 1e9 and differ, e is 477: f32 keeps few digits of the scores, and the weights may be any. The
// magnitude then says nothing: it is next to 0 if v is 0 where p / l should be 1.
//
// NaN and infinities must stand where the reference has them, once that is rounded to the tensor's dtype (either side
// of the overflow threshold is right within what (b) allows). NaN is right only where the reference is NaN. One
// exception, for results of a GPU: an element of o that is not finite where the reference is counts as right if its
// column of v holds, within the sequence, something that is not finite and therefore masked for the row (attention.h).
//
// Gradients (dq, dk, dv, and those of sinks, captures and params) are judged tensor by tensor, by (a) and by (b), with
// all elements as rows. u is o's unit roundoff if that is larger than the storage dtype's, because delta is computed
// from the stored o. "Plain" is the backward that is not fused: S, t, p = exp((t - lse) - lse_rest), dP, delta from the
// stored o, lse and lse_rest (0 where it is not given), all in f32; p w is rounded to the storage dtype's precision
// before dv, ds before dq and dk; gradients of captures, params and sinks are f32 sums of unrounded dt.
//
// Where scores are large, gradients that were computed without lse_rest may fail: lse alone has lost digits of ln l
// (backward.h).
//
//   magnitude  of dt: p (|w dP| + D), D = sum |dO| sum |p w v| / l + |dlse|; of dv: sum p |w| |dO|. Of dq, dk and the
//              rest those of dt times |dt/ds scale k| and so on, summed.
//   floor      what follows for the gradient, as a sum of absolute values, from errors of p by e, of dP and delta by
//              2 * 2^-24 of their terms, and of dt/ds by what evaluating it in f32 costs; at a kink either side's
//              derivative is right.
//
// An element whose magnitude passes the reals' range (3.4e38; f64: 1.8e308) counts as right whatever it is: its sum may
// have overflowed on the way.
//
// In a GPU's gradients an element that is not finite where the reference is counts as right if k (of dq), q (of dk), or
// dO (of dv) holds in its column, within the sequence, something that is not finite.
//
// The criterion speaks of mods that f32 can compute: one that amplifies rounding errors of s (exp(50 * score), a jump
// at score == 0) may fail it on any backend.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "heddle/attention.h"
#include "heddle/backward.h"

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
  std::optional<TensorCheck> lse, max_scores, lse_rest;
  bool passed = false;
  std::string text() const;  // a table of the figures
};

/// Checks a result of attention() with these inputs and options; o may have any floating dtype. lse_rest is judged as
/// what the given lse leaves out, so lse is given with it. Cost: Sq * Skv
/// interpreted elements per head, twice, on all cores (options.threads). Tensors on a GPU are copied to the CPU first;
/// wait for the stream that computed them. Throws as attention() does.
CheckReport check_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                            const AttentionOptions& options, const ConstTensorView& o,
                            const std::optional<ConstTensorView>& lse,
                            const std::optional<ConstTensorView>& max_scores = {},
                            const std::optional<ConstTensorView>& lse_rest = {});

/// By the names "dq", "dk", "dv", "d_sinks", "d_captures['NAME']", "d_params['NAME']".
struct GradientReport {
  std::map<std::string, TensorCheck> tensors;
  bool passed = false;
  std::string text() const;  // a table of the figures
};

/// Checks the gradients that `tensors` has: results of attention_backward() with these inputs and options. Cost: three
/// to four times check_attention's. Tensors on a GPU are copied to the CPU first; wait for the stream that computed
/// them. Throws as attention_backward() does.
GradientReport check_backward(const BackwardTensors& tensors, const AttentionOptions& options);

}  // namespace heddle
