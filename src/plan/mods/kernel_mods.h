// An attention's mods as a GPU kernel computes them: simplified, and each in the cheapest form that it has. Knows no
// kernel family; families take the forms that their kernels have.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "plan/mods/drops.h"
#include "plan/mods/kv_start.h"
#include "plan/mods/places.h"
#include "plan/mods/streamed_read.h"
#include "problem/problem.h"
#include "shared/mod_forms.h"

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
  // If both are set: mask_distance holds for kv_idx - q_idx in [least, most], i32 of b and h.
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
  std::optional<StreamedRead> shifted{};   // what could, if no kv_start shifted the columns of its tiles
  KvStart kv_start;                        // what the mods read as such; they read kv_idx as the position
  Places places;                           // native: the mods read q_idx and kv_idx as positions
  Expr mask_of_rows;                       // then: the mask as it reads rows of the tensors
  // Not added, mapped or capped: numbers of the key, which change the scores before the form's own term joins them:
  // t = factor * key_factor * score + key_term + table[query_index + key_index] + offset.
  Expr key_factor, key_term;                 // empty: 1, 0
  Expr query_index, key_index, table_entry;  // of a table: the sum of the places is the kv_idx of its entry
  int table_entries = 0;
  /// Key blocks are walked from the last one: the offset grows with the key, or may. A row's largest t then comes
  /// first, and the exponents' reference stays.
  bool descending = false;

  /// Something is read, drawn or mapped for each element of a run: many registers, maybe.
  bool heavy() const;
  bool has_key_numbers() const { return !key_factor.empty() || !key_term.empty() || table_entries > 0; }
  /// The mask by which its bits are stored.
  const Expr& stored_mask() const { return places.any() ? mask_of_rows : mask; }
  /// Mods that are computed where the scores are. (Drops read what the weight reads.)
  std::vector<Expr> of_scores(bool mask_is_stored) const {
    return {mask_is_stored ? Expr() : mask, offset, slope, score, weight};
  }
  std::vector<Expr> of_keys() const { return {key_factor, key_term, query_index, key_index, table_entry}; }
  std::vector<Expr> of_places() const { return {places.query, places.key}; }
  /// All that are there.
  std::vector<Expr> all() const { return of_kernel(false); }
  /// Mods that a kernel's runs compute, for a layout of their captures and params. A mask whose bits are stored is not
  /// among them.
  std::vector<Expr> of_kernel(bool mask_is_stored) const {
    std::vector<Expr> mods = of_scores(mask_is_stored);
    for (const Expr& mod : of_keys()) mods.push_back(mod);
    for (const Expr& position : of_places()) mods.push_back(position);
    return mods;
  }
};
/// The part of the score_mod that depends on the key alone. separated: it is an expression of its own, for kernels that
/// compute it once a key. left: it stays in the score_mod.
enum class OfKeys : bool { separated, left };
/// Positions by granules. native: kernels look them up, once a tile. left: mods do, for each row or key.
enum class OfPlaces : bool { native, left };
KernelMods kernel_mods(const problem::AttentionProblem& problem, OfKeys of_keys = OfKeys::separated,
                       OfPlaces of_places = OfPlaces::left);

/// The least n >= 0 for which range analysis proves that no weight exceeds 2^n; more than kMostWeightExponent if it
/// proves none. In 8 bits P has little range, and the weights use some of it.
int weight_exponent(const problem::AttentionProblem& problem, const KernelMods& mods);
inline constexpr int kMostWeightExponent = 4;

/// Constants of a cap: see shared::Cap.
struct CapSeries {
  double inside, outside, coefficients[3], limit;
};
/// The series of a cap over raw products q.k, which `scale` makes scores.
CapSeries cap_series(const KernelMods& mods, double scale);

/// Says how the score is computed, and why: "tilted: t = 1 * score + ...; the term is linear in kv_idx: ...". Empty
/// where t is the score.
std::string describe_score(const KernelMods& mods);

}  // namespace heddle::plan
