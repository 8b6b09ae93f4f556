// The backward of attention: gradients of a loss with respect to the inputs of attention().
//
//   dP = dO.v      delta = dO.o - dlse      dt = p (w dP - delta)      ds = dt/ds dt      p = exp((t - lse) - lse_rest)
//   dq = scale sum_j ds k      dk = scale sum_i ds q      dv = sum_i p w dO      d_sinks = -sum_i p(sink) delta
//   d of a tensor x that score_mod reads: sum dt * dt/dx      that weight_mod reads: sum p dP * dw/dx
//
// normalizer sigmoid: dt = (p - p^2) w dP; none: dt = w dP with p = t. Both have no delta.
//
// The library derives the derivatives of the mods. At a kink (abs, min, max, where, floor) it takes the derivative of
// the branch taken; at a tie of min or max, half of each. Masks, indices, scale, lengths and descale factors are
// constants: q, k and v count as stored. A tensor that serves several sequences (batch 1) gets the sum of their
// gradients.
//
// Keys and values that a row does not attend to never affect it. A row without an attending key contributes zeros,
// whatever its dO holds; its sink gets the gradient of lse, because lse is the sink. Rows past a sequence's end
// contribute and get zeros. On the CPU this holds without exception. On a GPU a masked element that is not finite may
// affect results of the same tile: k affects dq, q dk, and dO dv.
//
// Sums are taken in f32 (f64 for f64 inputs): if a partial sum passes 3.4e38, the result is infinite or NaN.
//
// Pass lse_rest if scores can be large. Without it, the rounding error of lse makes p wrong: by 0.1 % if |t| is 3e4, by
// 3 % if it is 1e6, and by a factor of the number of keys if all t of a row are -1e9.
//
// The backward does not check that o and lse belong to this problem. If they do not, results are wrong; rows with lse
// more than 88 (f64: 709) below a score become infinite or NaN.
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "heddle/attention.h"

namespace heddle {

/// Gradients by the names of captures or params.
using NamedViews = std::map<std::string, TensorView, std::less<>>;

/// The tensors of one backward. Shapes, dtypes and strides of q, k, v, o and lse are those of the forward. Everything
/// is on one device. There is no backward for paged keys and values.
struct BackwardTensors {
  ConstTensorView q, k, v;
  ConstTensorView o;                          // as the forward stored it
  std::optional<ConstTensorView> lse{};       // as the forward stored it. Normalizers none and sigmoid: absent
  ConstTensorView d_o{};                      // [B, Hq, Sq, Dv], o's dtype or q's
  std::optional<ConstTensorView> d_lse{};     // [B, Hq, Sq], lse's dtype; absent: 0. Normalizer softmax only
  std::optional<ConstTensorView> lse_rest{};  // as the forward stored it; absent: 0. Only with lse

  // Outputs, at least one. Each has the shape of its input (dq that of q), and any floating dtype. dq, dk and dv have a
  // unit last stride; the others any strides. None overlaps an input or another output.
  std::optional<TensorView> dq{}, dk{}, dv{};
  std::optional<TensorView> d_sinks{};
  /// Gradients of floating captures that score_mod or weight_mod reads. Elements that no score reads get 0.
  NamedViews d_captures{};
  /// Gradients of f32 params that score_mod or weight_mod reads: tensors of rank 0.
  NamedViews d_params{};
};

/// Which gradients attention_backward() computes. A gradient costs its own time and memory.
struct GradientRequest {
  bool q = true, k = true, v = true, sinks = false;
  std::vector<std::string> captures{}, params{};
};

/// Gradients that were not requested are empty tensors. dq, dk, dv: dtype of q, k, v (bf16 for fp8). d_sinks and
/// d_params: f32 (f64 for f64 inputs). d_captures: the capture's dtype if it is f64, f32, f16 or bf16, else f32.
struct BackwardResult {
  Tensor dq, dk, dv, d_sinks;
  std::map<std::string, Tensor, std::less<>> d_captures, d_params;
};

/// One call: plans, allocates, runs. Throws Error before anything is written. The plan is cached as in attention().
/// tensors: the inputs; its gradients must be absent.
BackwardResult attention_backward(const BackwardTensors& tensors, const AttentionOptions& options = {},
                                  const GradientRequest& request = {});
/// Writes into the caller's tensors: each gradient that `tensors` has.
void attention_backward_into(const BackwardTensors& tensors, const AttentionOptions& options = {});

extern template AttentionPlan::AttentionPlan(const BackwardTensors& tensors, const AttentionOptions& options);
extern template void AttentionPlan::run(const BackwardTensors& tensors, const RunOptions& options) const;

/// cached_plan() and explain_on() for a backward.
template <std::same_as<BackwardTensors> Tensors>
AttentionPlan cached_plan(const Tensors& tensors, const AttentionOptions& options);
template <std::same_as<BackwardTensors> Tensors>
Explanation explain_on(std::string_view gpu, const Tensors& tensors, const AttentionOptions& options);
extern template AttentionPlan cached_plan(const BackwardTensors& tensors, const AttentionOptions& options);
extern template Explanation explain_on(std::string_view gpu, const BackwardTensors& tensors,
                                       const AttentionOptions& options);

}  // namespace heddle
