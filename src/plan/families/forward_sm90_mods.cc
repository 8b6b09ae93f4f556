#include "plan/families/forward_sm90_mods.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "expr/node.h"
#include "expr/simplify.h"

namespace heddle::plan {
namespace {

using shared::ScoreForm;

Expr simplified(const Expr& mod) { return mod.empty() ? mod : expr::simplify(mod, expr::Precision::f32); }

bool reads_keys(const Expr& e) { return e.node()->uses.intersects({expr::Leaf::kv_idx, expr::Leaf::kv_token}); }

bool is_zero(const Expr& e) { return e.node()->op == expr::Op::constant && e.node()->f32() == 0; }

/// t = factor * score + offset with the offset in the cheapest form.
void set_linear(ForwardSm90Mods& mods, const expr::LinearInScore& linear, const problem::AttentionProblem& problem) {
  mods.factor = linear.scale;
  mods.offset = simplified(linear.offset);
  if (mods.offset.empty() || is_zero(mods.offset)) {
    mods.offset = Expr();
    mods.form = ScoreForm::plain;
  } else if (!reads_keys(mods.offset)) {
    mods.form = ScoreForm::shifted;
  } else if (const std::optional<Expr> slope = problem::has_elements(problem)
                                                   ? expr::slope_over_keys(mods.offset, problem::leaf_ranges(problem))
                                                   : std::nullopt) {
    mods.form = ScoreForm::tilted;
    mods.slope = *slope;
  } else {
    mods.form = ScoreForm::added;
  }
}

}  // namespace

bool ForwardSm90Mods::heavy() const {
  const auto works = [](const expr::Node* node) {
    const expr::Kind kind = expr::info(node->op).kind;
    return kind == expr::Kind::read || kind == expr::Kind::random || node->op == expr::Op::floor_div ||
           node->op == expr::Op::mod;
  };
  return form == ScoreForm::added || form == ScoreForm::mapped || !weight.empty() ||
         (!mask.empty() && std::ranges::any_of(expr::post_order(mask), works));
}

ForwardSm90Mods forward_sm90_mods(const problem::AttentionProblem& problem) {
  ForwardSm90Mods mods;
  mods.mask = simplified(problem.mask_mod);
  mods.weight = simplified(problem.weight_mod);
  const Expr score = simplified(problem.score_mod);
  const bool rising = problem.scale > 0;
  if (score.empty() && rising) return mods;
  const std::optional<expr::LinearInScore> linear =
      score.empty() ? expr::LinearInScore{1, {}} : expr::linear_in_score(score);
  // The largest product has the largest t only where both grow.
  if (linear && rising && linear->scale > 0) {
    set_linear(mods, *linear, problem);
  } else {
    mods.form = ScoreForm::mapped;
    mods.score = score.empty() ? leaf::score() : score;
  }
  return mods;
}

shared::ForwardSm90Config config_with(shared::ForwardSm90Config config, const ForwardSm90Mods& mods) {
  config.masked = !mods.mask.empty();
  config.scores = mods.form;
  config.weighted = !mods.weight.empty();
  return config;
}

std::string to_string(const ForwardSm90Mods& mods) {
  switch (mods.form) {
    case ScoreForm::plain:
      return mods.factor == 1 ? std::string() : fmt::format("t = {} * score", mods.factor);
    case ScoreForm::shifted:
      return fmt::format("t = {} * score + {}; the latter once a row and block of keys", mods.factor,
                         print(mods.offset));
    case ScoreForm::tilted:
      return fmt::format("t = {} * score + {}; the latter once a row and block of keys, and {} more from key to key",
                         mods.factor, print(mods.offset), print(mods.slope));
    case ScoreForm::added:
      return fmt::format("t = {} * score + {}", mods.factor, print(mods.offset));
    case ScoreForm::mapped:
      break;
  }
  return fmt::format("t = {}", print(mods.score));
}

}  // namespace heddle::plan
