#include "plan/families/forward_sm90_mods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "expr/node.h"
#include "expr/simplify.h"

namespace heddle::plan {
namespace {

using shared::ScoreForm;

Expr simplified(const Expr& mod) { return mod.empty() ? mod : expr::simplify(mod, expr::Precision::f32); }

bool reads_keys(const Expr& e) { return e.node()->uses.intersects({expr::Leaf::kv_idx, expr::Leaf::kv_token}); }

bool is_zero(const Expr& e) { return e.node()->op == expr::Op::constant && e.node()->f32() == 0; }

int clamped(std::int64_t x) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;
  return static_cast<int>(std::clamp(x, -kFar, kFar));
}

/// The offset, in the cheapest form that it has.
void set_offset(ForwardSm90Mods& mods, const problem::AttentionProblem& problem) {
  if (!reads_keys(mods.offset)) {
    mods.form = ScoreForm::shifted;
    return;
  }
  mods.form = ScoreForm::added;
  if (!problem::has_elements(problem)) return;
  const expr::LeafRanges leaves = problem::leaf_ranges(problem);
  if (const std::optional<Expr> slope = expr::slope_over_keys(mods.offset, leaves)) {
    mods.form = ScoreForm::tilted;
    mods.slope = *slope;
    mods.descending = !(expr::RangeAnalysis(*slope, expr::Precision::f32, nullptr)(leaves).hi <= 0);
  } else if (const std::optional<expr::TermOfDistance> term = expr::term_of_distance(mods.offset, leaves)) {
    mods.form = ScoreForm::distant;
    mods.flat_from = clamped(term->from);
    mods.flat_to = clamped(term->to);
    mods.descending = !mods.mask.empty();  // without one there is no telling where it is largest
  }
}

/// t = factor * score + offset.
void set_linear(ForwardSm90Mods& mods, const expr::LinearInScore& linear, const problem::AttentionProblem& problem) {
  mods.factor = linear.scale;
  mods.offset = simplified(linear.offset);
  if (!mods.offset.empty() && is_zero(mods.offset)) mods.offset = Expr();
  if (!mods.offset.empty()) set_offset(mods, problem);
}

/// t = cap * tanh(factor * score) + offset, where the mod is that, both numbers positive and the offset free of keys.
bool set_capped(ForwardSm90Mods& mods, const Expr& score, const problem::AttentionProblem& problem) {
  const std::vector<const expr::Node*> nodes = expr::post_order(score);
  const auto is_tanh = [](const expr::Node* node) { return node->op == expr::Op::tanh; };
  if (std::ranges::count_if(nodes, is_tanh) != 1) return false;
  const expr::Node* tanh = *std::ranges::find_if(nodes, is_tanh);
  const auto with_tanh_as = [&](const Expr& other) {
    return expr::rewrite(score, [&](const expr::Node& node, std::span<const Expr> operands) {
      return &node == tanh ? other : expr::with_operands(node, operands);
    });
  };
  if (with_tanh_as(0.0).node()->uses.has(expr::Leaf::score)) return false;
  const std::optional<expr::LinearInScore> inside = expr::linear_in_score(expr::operand(*tanh, 0)),
                                           outside = expr::linear_in_score(with_tanh_as(leaf::score()));
  if (!inside || !inside->offset.empty() || !(inside->scale > 0) || !outside || !(outside->scale > 0)) return false;
  ForwardSm90Mods capped = mods;
  set_linear(capped, *outside, problem);
  if (capped.form != ScoreForm::plain && capped.form != ScoreForm::shifted) return false;
  capped.cap = capped.factor;
  capped.factor = inside->scale;
  mods = capped;
  return true;
}

}  // namespace

bool ForwardSm90Mods::heavy() const {
  const auto works = [](const expr::Node* node) {
    const expr::Kind kind = expr::info(node->op).kind;
    return kind == expr::Kind::read || kind == expr::Kind::random || node->op == expr::Op::floor_div ||
           node->op == expr::Op::mod;
  };
  return cap != 0 || form == ScoreForm::added || form == ScoreForm::mapped || !weight.empty() ||
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
  } else if (!(rising && set_capped(mods, score, problem))) {
    mods.form = ScoreForm::mapped;
    mods.score = score.empty() ? leaf::score() : score;
  }
  return mods;
}

int forward_sm90_weight_exponent(const problem::AttentionProblem& problem, const ForwardSm90Mods& mods) {
  if (mods.weight.empty() || !problem::has_elements(problem)) return 0;
  const expr::Range range =
      expr::RangeAnalysis(mods.weight, expr::Precision::f32, nullptr)(problem::leaf_ranges(problem));
  const double largest = std::max(std::abs(range.lo), std::abs(range.hi));
  int exponent = 0;
  while (exponent <= kMostWeightExponent && !(largest <= std::ldexp(1.0, exponent))) ++exponent;
  return exponent;
}

shared::ForwardSm90Config config_with(shared::ForwardSm90Config config, const ForwardSm90Mods& mods) {
  config.masked = !mods.mask.empty();
  config.scores = mods.form;
  config.descending = mods.descending;
  config.capped = mods.cap != 0;
  config.weighted = !mods.weight.empty();
  return config;
}

CapSeries cap_series(const ForwardSm90Mods& mods, double scale) {
  // tanh(x) / x in x^2, fitted at Chebyshev's points for |x| <= 0.33: x times it errs by 7e-7.
  constexpr std::array kTanh = {0.9999979734420776, -0.33299678564071655, 0.12495096027851105};
  constexpr double kLargest = 0.33;
  CapSeries series{};
  series.inside = mods.factor * scale;
  series.outside = mods.cap * std::numbers::log2e;
  for (std::size_t i = 0; i < kTanh.size(); ++i) {
    series.coefficients[i] = series.outside * kTanh[i] * std::pow(series.inside, 2.0 * static_cast<double>(i) + 1);
  }
  series.limit = kLargest / series.inside;
  return series;
}

std::string to_string(const ForwardSm90Mods& mods) {
  const std::string score = mods.cap == 0 ? fmt::format("{} * score", mods.factor)
                                          : fmt::format("{} * tanh({} * score)", mods.cap, mods.factor);
  switch (mods.form) {
    case ScoreForm::plain:
      return mods.factor == 1 && mods.cap == 0 ? std::string() : fmt::format("t = {}", score);
    case ScoreForm::shifted:
      return fmt::format("t = {} + {}; the latter once a row and block of keys", score, print(mods.offset));
    case ScoreForm::tilted:
      return fmt::format("t = {} + {}; the latter once a row and block of keys, and {} more from key to key", score,
                         print(mods.offset), print(mods.slope));
    case ScoreForm::distant:
      return fmt::format(
          "t = {} + {}; the latter once for each kv_idx - q_idx of a block of keys, or once a block from {} on "
          "and up to {}",
          score, print(mods.offset), mods.flat_from, mods.flat_to);
    case ScoreForm::added:
      return fmt::format("t = {} + {}", score, print(mods.offset));
    case ScoreForm::mapped:
      break;
  }
  return fmt::format("t = {}", print(mods.score));
}

}  // namespace heddle::plan
