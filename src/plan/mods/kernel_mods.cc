#include "plan/mods/kernel_mods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>

#include "expr/long_operations.h"
#include "expr/node.h"
#include "expr/separate.h"
#include "expr/simplify.h"
#include "shared/philox.h"

namespace heddle::plan {
namespace {

using shared::ScoreForm;

Expr simplified(const Expr& mod, expr::Precision precision) {
  return mod.empty() ? mod : expr::simplify(mod, precision);
}

bool reads_keys(const Expr& e) { return e.node()->uses.intersects({expr::Leaf::kv_idx, expr::Leaf::kv_token}); }

bool is_zero(const Expr& e) { return e.node()->op == expr::Op::constant && e.node()->f32() == 0; }

/// A number that f32 has, to its full precision.
bool is_in_f32(double x) { return std::isnormal(static_cast<float>(x)); }

int clamped(std::int64_t x) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;
  return static_cast<int>(std::clamp(x, -kFar, kFar));
}

/// tilted or distant, where the offset is that.
bool set_by_distance(KernelMods& mods, const Expr& offset, const expr::LeafRanges& leaves) {
  if (const std::optional<Expr> slope = expr::slope_over_keys(offset, leaves)) {
    mods.form = ScoreForm::tilted;
    mods.slope = *slope;
    mods.descending = !(expr::RangeAnalysis(*slope, expr::Precision::f32, nullptr)(leaves).hi <= 0);
  } else if (const std::optional<expr::TermOfDistance> term = expr::term_of_distance(offset, leaves)) {
    mods.form = ScoreForm::distant;
    mods.flat_from = clamped(term->from);
    mods.flat_to = clamped(term->to);
    mods.descending = !mods.mask.empty();  // without one there is no telling where it is largest
  } else {
    return false;
  }
  mods.offset = offset;
  return true;
}

bool set_table(KernelMods& mods, const Expr& term, const expr::LeafRanges& leaves) {
  constexpr int kMostEntries = 1 << 15;  // 128 KB: no GPU's shared memory has room for two
  const std::optional<expr::TermOfSum> table = expr::term_of_sum(term, leaves, kMostEntries);
  if (!table) return false;
  mods.query_index = table->of_query;
  mods.key_index = table->of_key;
  mods.table_entry = table->entry;
  mods.table_entries = table->entries;
  return true;
}

/// The offset as a sum of what depends on the key, of a table's entry, and of the rest, where that is of a form with a
/// term of its own.
void set_separated(KernelMods& mods, const Expr& offset, const expr::LeafRanges& leaves, expr::Precision precision) {
  const expr::SeparatedTerm parts = expr::separate_term(offset);
  KernelMods separated = mods;
  separated.key_term = simplified(parts.of_key, precision);
  separated.offset = simplified(parts.of_query, precision);
  separated.form = separated.offset.empty() ? ScoreForm::plain : ScoreForm::shifted;
  if (!parts.of_both.empty()) {
    const Expr both = simplified(parts.of_both, precision);
    const Expr beside = parts.of_query.empty() ? both : simplified(both + parts.of_query, precision);
    if (!set_by_distance(separated, beside, leaves) && !set_table(separated, both, leaves)) return;
  }
  mods = separated;
}

/// A problem as its kernel sees it, and the ranges of its leaves by which forms are chosen.
struct Seen {
  problem::AttentionProblem problem;
  expr::LeafRanges leaves;
};

/// The offset, in the cheapest form that it has.
void set_offset(KernelMods& mods, const Expr& offset, const Seen& seen, OfKeys of_keys) {
  const problem::AttentionProblem& problem = seen.problem;
  mods.offset = simplified(offset, problem.precision);
  if (!mods.offset.empty() && is_zero(mods.offset)) mods.offset = Expr();
  if (mods.offset.empty()) return;
  if (!reads_keys(mods.offset)) {
    mods.form = ScoreForm::shifted;
    return;
  }
  mods.form = ScoreForm::added;
  if (!problem::has_elements(problem)) return;
  const Expr whole = mods.offset;
  if (!set_by_distance(mods, whole, seen.leaves) && of_keys == OfKeys::separated)
    set_separated(mods, whole, seen.leaves, problem.precision);
}

/// t = factor * key_factor * score + offset, where the mod is that, and the offset is not left to be added.
bool set_factor_of_key(KernelMods& mods, const Expr& score, const Seen& seen) {
  const problem::AttentionProblem& problem = seen.problem;
  const std::optional<expr::ScoreOfKey> found = expr::factor_of_key(score);
  if (!found || !is_in_f32(found->scale * problem.scale)) return false;
  KernelMods keyed = mods;
  keyed.factor = found->scale;
  keyed.key_factor = simplified(found->factor, problem.precision);
  set_offset(keyed, found->offset, seen, OfKeys::separated);
  if (keyed.form == ScoreForm::added) return false;
  mods = keyed;
  return true;
}

/// t = cap * tanh(factor * score) + offset, where the mod is that, both numbers positive and the offset free of keys.
bool set_capped(KernelMods& mods, const Expr& score, const Seen& seen) {
  const problem::AttentionProblem& problem = seen.problem;
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
  if (!is_in_f32(2 * std::numbers::log2e * inside->scale * problem.scale)) return false;
  if (!is_in_f32(2 * std::numbers::log2e * outside->scale)) return false;
  KernelMods capped = mods;
  capped.factor = outside->scale;
  set_offset(capped, outside->offset, seen, OfKeys::left);
  if (capped.form != ScoreForm::plain && capped.form != ScoreForm::shifted) return false;
  capped.cap = capped.factor;
  capped.factor = inside->scale;
  mods = capped;
  return true;
}

void set_weight(KernelMods& mods, const Seen& seen) {
  const problem::AttentionProblem& problem = seen.problem;
  mods.weight = simplified(problem.weight_mod, problem.precision);
  if (mods.weight.empty()) return;
  // A dropped element adds 0 times its weight, which is NaN if the weight is NaN or infinite. With a normalizer the sum
  // of weights shows this; with none there is no such sum, so the weight is multiplied.
  if (problem.normalizer != Normalizer::none) mods.drops = drops_of(mods.weight);
  if (!problem::has_elements(problem)) return;
  const expr::Range range = expr::RangeAnalysis(mods.weight, problem.precision, nullptr)(seen.leaves);
  mods.weight_bound = std::max(std::abs(range.lo), std::abs(range.hi));
}

/// The terms of a conjunction, from left to right.
std::vector<Expr> conjuncts(const Expr& mask) {
  std::vector<Expr> found, left = {mask};
  while (!left.empty()) {
    const Expr e = left.back();
    left.pop_back();
    if (e.node()->op == expr::Op::logical_and) {
      left.insert(left.end(), {expr::operand(*e.node(), 1), expr::operand(*e.node(), 0)});
    } else {
      found.push_back(e);
    }
  }
  return found;
}

/// Whether many positions would repeat a long computation.
bool is_long_of_positions(const expr::Node& node) {
  using expr::Leaf;
  return node.uses.intersects({Leaf::q_idx, Leaf::kv_idx, Leaf::q_token, Leaf::kv_token}) && expr::is_long(node);
}

bool has_long(const Expr& mask) {
  return std::ranges::any_of(expr::post_order(mask),
                             [](const expr::Node* node) { return is_long_of_positions(*node); });
}

/// Whether a mask has at most one comparison, joint, % or //, and no long computation: it is then cheaper computed
/// where it is needed.
bool is_one_comparison(const Expr& mask) {
  return !has_long(mask) && std::ranges::count_if(expr::post_order(mask), [](const expr::Node* node) {
                              const expr::Kind kind = expr::info(node->op).kind;
                              return kind == expr::Kind::cmp || kind == expr::Kind::logic ||
                                     node->op == expr::Op::mod || node->op == expr::Op::floor_div;
                            }) <= 1;
}

/// Sets the range of distances that a conjunction allows, if each term bounds the distance.
void set_mask_range(KernelMods& mods, const expr::LeafRanges& leaves, expr::Precision precision) {
  constexpr int kFar = 1 << 30;  // past any two positions
  Expr least = -kFar, most = kFar;
  for (const Expr& conjunct : conjuncts(mods.mask_distance)) {
    const std::optional<expr::BoundOfDistance> bound = expr::bound_of_distance(conjunct, leaves);
    if (!bound) return;
    Expr& end = bound->is_most ? most : least;
    end = bound->is_most ? min(end, bound->value) : max(end, bound->value);
  }
  mods.mask_least = simplified(least, precision);
  mods.mask_most = simplified(most, precision);
}

void set_mask(KernelMods& mods, const Seen& seen) {
  if (mods.mask.empty() || !problem::has_elements(seen.problem)) return;
  const expr::LeafRanges& leaves = seen.leaves;
  const auto join = [](Expr& all, const Expr& e) { all = all.empty() ? e : all && e; };
  Expr distance, rest;
  std::int64_t repeats_to = std::numeric_limits<std::int64_t>::max();
  for (const Expr& conjunct : conjuncts(mods.mask)) {
    const std::optional<expr::TermOfDistance> term = expr::term_of_distance(conjunct, leaves);
    if (term) repeats_to = std::min(repeats_to, term->repeats_to);
    join(term ? distance : rest, conjunct);
  }
  if (rest.empty() ? is_one_comparison(distance) : !has_long(rest)) return;
  using shared::MaskForm;
  mods.mask_form = rest.empty() ? MaskForm::distance : distance.empty() ? MaskForm::values : MaskForm::both;
  mods.mask_distance = distance;
  mods.mask_rest = rest;
  mods.mask_repeats_to = distance.empty() ? 0 : clamped(repeats_to);
  if (!distance.empty()) set_mask_range(mods, leaves, seen.problem.precision);
}

/// The mods of a problem whose sequences have no kv_start.
KernelMods mods_of_positions(const Seen& seen, OfKeys of_keys) {
  const problem::AttentionProblem& problem = seen.problem;
  KernelMods mods;
  mods.mask = simplified(problem.mask_mod, problem.precision);
  set_mask(mods, seen);
  set_weight(mods, seen);
  const Expr score = simplified(problem.score_mod, problem.precision);
  const bool rising = problem.scale > 0;
  if (score.empty() && rising) return mods;
  const std::optional<expr::LinearInScore> linear =
      score.empty() ? expr::LinearInScore{1, {}} : expr::linear_in_score(score);
  // The largest product has the largest t only where both grow.
  if (linear && rising && linear->scale > 0) {
    mods.factor = linear->scale;
    set_offset(mods, linear->offset, seen, of_keys);
  } else if (!linear && of_keys == OfKeys::separated && set_factor_of_key(mods, score, seen)) {
    return mods;
  } else if (!(rising && problem.normalizer != Normalizer::none && set_capped(mods, score, seen))) {
    mods.form = ScoreForm::mapped;
    mods.score = score.empty() ? leaf::score() : score;
  }
  if (mods.form == ScoreForm::added) mods.streamed = streamed_read(mods.offset);
  if (mods.form == ScoreForm::mapped) mods.streamed = streamed_read(mods.score);
  return mods;
}

}  // namespace

bool KernelMods::heavy() const {
  const auto works = [](const expr::Node* node) {
    const expr::Kind kind = expr::info(node->op).kind;
    if (kind == expr::Kind::read) return node->capture().name != kKvStartName;  // that is read once a tile
    return kind == expr::Kind::random || node->op == expr::Op::floor_div || node->op == expr::Op::mod;
  };
  return cap != 0 || form == ScoreForm::added || form == ScoreForm::mapped || !weight.empty() ||
         (!mask.empty() && !stores_mask && std::ranges::any_of(expr::post_order(mask), works));
}

KernelMods kernel_mods(const problem::AttentionProblem& problem, OfKeys of_keys, OfPlaces of_places) {
  const KvStart start = kv_start_of(problem);
  const bool looks_up = of_places == OfPlaces::native && problem::has_elements(problem);
  const Places places = looks_up ? places_of(problem) : Places();
  const problem::AttentionProblem positioned = by_position(problem, start);
  const Seen seen = {at_places(positioned, places), at_places(problem::form_ranges(positioned), places)};
  KernelMods mods = mods_of_positions(seen, of_keys);
  // A tile's table is of rows that are neighbours.
  if (mods.table_entries > 0 && places.any()) mods = mods_of_positions(seen, OfKeys::left);
  mods.kv_start = start;
  mods.places = places;
  if (places.any()) {
    mods.mask_of_rows = simplified(positioned.mask_mod, problem.precision);
    mods.streamed.reset();  // a warpgroup's tile would have to begin at its own granule
  }
  const bool reads_each = mods.form == ScoreForm::added || mods.form == ScoreForm::mapped;
  if (start.form != KvStart::Form::zero && reads_each && !mods.streamed && !problem.score_mod.empty()) {
    mods.shifted = streamed_read(simplified(problem.score_mod, problem.precision));
  }
  if (problem.reads_leave) mods.streamed.reset();  // outside TMA gives 0, but a clamped read gives an element
  return mods;
}

int weight_exponent(const problem::AttentionProblem& problem, const KernelMods& mods) {
  if (mods.weight.empty() || !problem::has_elements(problem)) return 0;
  int exponent = 0;
  while (exponent <= kMostWeightExponent && !(mods.weight_bound <= std::ldexp(1.0, exponent))) ++exponent;
  return exponent;
}

CapSeries cap_series(const KernelMods& mods, double scale) {
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
  // A small cap's coefficients leave f32: then no score is far from it.
  const auto fits = [](double x) { return std::isfinite(static_cast<float>(x)); };
  if (!std::ranges::all_of(series.coefficients, fits)) series.limit = -1;
  return series;
}

}  // namespace heddle::plan
