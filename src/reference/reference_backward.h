// The backward of attention in float64, an element of the score matrix at a time, as plain as its definition:
//
//   dP = dO.v      delta = dO.o - dlse      dt = p (w dP - delta)      ds = dt/ds dt      p = exp((t - m) - ln l)
//   dq = scale sum_j ds k      dk = scale sum_i ds q      dv = sum_i p w dO      dsink = -sum_i p(sink) delta
//   d of what score_mod reads: sum dt * dt/d read      d of what weight_mod reads: sum p dP * dw/d read
//
// sigmoid: dt = (p - p^2) w dP; none: dt = w dP with p = t. Both have no delta.
//
// It recomputes o and lse in float64 and ignores the stored ones: it gives the gradient of the function. The rounding
// of the stored ones counts as an error of the judged result.
//
// An element that takes no part (masked, or t = -inf) contributes nothing, whatever it holds, dO included: a row in
// which nothing attends gives zeros, and its sink the gradient of lse alone. A row that is NaN makes gradients NaN of
// all elements that take part in it. Masks and indices have no gradient.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "reference/gradient_sum.h"
#include "reference/mod_slopes.h"

namespace heddle::reference {

/// Arguments of the backward beside the forward's.
struct BackwardArguments {
  ConstTensorView d_o;                     // [B, Hq, Sq, Dv], any floating dtype
  std::optional<ConstTensorView> d_lse{};  // [B, Hq, Sq]; softmax only
  ModReads of{};                           // which values that mods read get a gradient
  bool of_sinks = false;                   // only if there are some
};

/// Each with the shape of what it is the gradient of; axes of extent 1 that serve several batches have the sum. q, k
/// and v count as stored: their descale factors are constants.
struct Gradients {
  Gradient q, k, v;
  std::optional<Gradient> sinks;
  std::map<std::string, Gradient> captures, params;  // those that some mod depends on smoothly
};

/// Everything was validated. arguments.tensors.o and lse are not touched. Sums are taken in no fixed order, beyond
/// float64's precision where the machine has more. `step`: the rounding error of one step of a sum; 0: magnitudes and
/// floors are not computed. These are sums of absolute values, as the gradient is a sum:
///   magnitude   of dt: p (|w dP| + D), D = sum |dO| sum |p w v| / l + |dlse|; of dv: p |w| |dO|. For dq, dk and reads
///               those of dt times |dt/ds scale k| and so on.
///   floor       of dt: e (|w dP| + |delta|) + p (E + step / 4 |w| sum |dO v|), where rounding errors of `step` change
///   p
///               by up to e (attend.h), and delta by E: what follows from o's floor and from o's rounding below its
///               dtype's smallest number, and step / 4 of D. Of dq, dk and reads also what dt/ds errs by if it is
///               computed in the problem's reals, from a score that is off by step / 4 of its terms; at a kink either
///               side's slope is right.
Gradients attend_backward(const problem::AttentionProblem& problem, const backend::RunArguments& arguments,
                          const BackwardArguments& backward, double step);

}  // namespace heddle::reference
