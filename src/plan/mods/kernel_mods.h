// What a GPU kernel computes of an attention's mods: simplified, and each in the cheapest form that it has. Knows no
// kernel family; families take the forms that their kernels have.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "plan/mods/drops.h"
#include "plan/mods/streamed_read.h"
#include "problem/problem.h"
#include "shared/forward_sm90.h"

namespace heddle::plan {

struct KernelMods {
  Expr mask;                                                      // empty: everything attends
  Expr weight;                                                    // empty: 1
  double weight_bound = std::numeric_limits<double>::infinity();  // of its magnitude
  std::optional<Drops> drops;                                     // the weight, where it is such a one

  shared::MaskForm mask_form = shared::MaskForm::direct;
  bool stores_mask = false;  // the mask's bits are to be stored, by kernels that can: a decision of the planner
  // In the other forms: mask = mask_distance and mask_rest, the former of kv_idx - q_idx alone; empty: true.
  Expr mask_distance, mask_rest;
  // Where both are there: mask_distance says that kv_idx - q_idx is in [least, most], i32 of b and h.
  Expr mask_least, mask_most;
  int mask_repeats_to =
      0;  // mask_distance: of any two kv_idx - q_idx up to this, whole periods apart, it says the same

  shared::ScoreForm form = shared::ScoreForm::plain;
  double factor = 1;  // of the score, in every form but mapped
  // plain, shifted, unless t itself is the weight: where it is not 0, t = cap * tanh(factor * score) + offset
  double cap = 0;
  Expr offset;                     // shifted, tilted, distant, added: t = factor * score + offset
  Expr slope;                      // tilted: what the offset grows by from one key to the next; reads no key
  int flat_from = 0, flat_to = 0;  // distant: the offset no longer changes from that kv_idx - q_idx on, and up to that
  Expr score;                      // mapped: t
  std::optional<StreamedRead> streamed{};  // added, mapped: of the offset or the score, what could come in tiles
  /// Key blocks are walked from the last one: the offset grows with the key, or may. A row's largest t then comes
  /// first, and the exponents' reference stays.
  bool descending = false;

  /// Something is read, drawn or mapped for each element of a run: many registers, maybe.
  bool heavy() const;
  /// All that are there.
  std::vector<Expr> all() const { return {mask, offset, slope, score, weight}; }  // drops read what the weight reads
  /// Those that a kernel's runs compute, for a layout of their captures and params: not a mask whose bits are stored.
  std::vector<Expr> of_kernel(bool mask_is_stored) const {
    return {mask_is_stored ? Expr() : mask, offset, slope, score, weight};
  }
};
KernelMods kernel_mods(const problem::AttentionProblem& problem);

/// The least n >= 0 for which range analysis proves that no weight of the weight_mod exceeds 2^n; more than
/// kMostWeightExponent where it proves less. In 8 bits P has little range, which the weights share with it.
int weight_exponent(const problem::AttentionProblem& problem, const KernelMods& mods);
inline constexpr int kMostWeightExponent = 4;

/// What a kernel needs to know of a cap: see ForwardSm90Params.
struct CapSeries {
  double inside, outside, coefficients[3], limit;
};
/// Of products of queries and keys that `scale` makes scores.
CapSeries cap_series(const KernelMods& mods, double scale);

/// What becomes of the score, and why: "tilted: t = 1 * score + ...; the term is linear in kv_idx: ...". Empty where t
/// is the score.
std::string describe_score(const KernelMods& mods);

}  // namespace heddle::plan
