// The mods of a GPU's backward: the forward's forms that a kernel over transposed scores has, and derivatives. Knows no
// kernel family.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/mods/drops.h"
#include "plan/mods/kernel_mods.h"
#include "problem/problem.h"

namespace heddle::plan {

struct BackwardMods {
  Expr mask;  // empty: everything attends
  Expr weight;
  std::optional<Drops> drops;                         // the weight, where it is such a one
  shared::ScoreForm form = shared::ScoreForm::plain;  // plain, added or mapped
  double factor = 1;                                  // of the score, in every form but mapped
  Expr offset;                                        // added: t = factor * score + offset
  Expr score, derivative;                             // mapped: t, and dt/ds
  KvStart kv_start;
  Places places;  // native: the mods read q_idx and kv_idx as positions

  std::vector<Expr> all() const { return {mask, weight, offset, score, derivative, places.query, places.key}; }
};
BackwardMods backward_mods(const problem::AttentionProblem& problem, OfPlaces of_places = OfPlaces::left);

/// Says how the score and its derivative are computed: a sentence; empty where t is the score.
std::string describe_derivative(const BackwardMods& mods);

}  // namespace heddle::plan
