#include "reference/row_bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "reference/dot.h"

namespace heddle::reference {
namespace {

// The share of a score's terms that counts towards the row's exponent. A sum of D terms in f32, one after the other, is
// off by about 0.6 * 2^-24 of their magnitudes' sum (one sigma; 1.3 was met over the elements of a tensor), and o by up
// to twice that: half covers it, and still leaves the largest |t| to decide in ordinary rows.
constexpr double kTermsShare = 0.5;
// A proof costs time. Rows whose ln p errs by less than this are judged without one.
constexpr double kWorthAProof = 0x1p-10;
constexpr double kUnitsOfAStep = 8;

// The exponent of the lowest bit of x that is set; of 0 a large one.
int lowest_bit(double x) {
  if (x == 0) return std::numeric_limits<int>::max() / 4;
  int exponent = 0;
  const auto significand = static_cast<std::int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
  return exponent - 53 + static_cast<int>(std::countr_zero(static_cast<std::uint64_t>(std::abs(significand))));
}

bool has_bits(double x, int bits) {
  int exponent = 0;
  const double scaled = std::ldexp(std::frexp(x, &exponent), bits);
  return scaled == std::nearbyint(scaled);
}

}  // namespace

RowBoundsFinder::RowBoundsFinder(const problem::AttentionProblem& problem, const ElementMods& in_reals, double step)
    : problem_(problem),
      in_reals_(in_reals),
      step_(step),
      bits_(problem.precision == expr::Precision::f64 ? 53 : 24),
      log_flushed_((problem.precision == expr::Precision::f64 ? -970 : -102) * std::numbers::ln2) {}

// By how much one score may err.
double RowBoundsFinder::error_of(double t, double terms) const {
  return step_ * (1 + std::max(std::abs(t), kTermsShare * terms));
}

// Whether a score counts: its weight, or what its weight errs by in steps, may be more than what the reals flush to 0,
// whatever the scores err by. Floors allow a weight that does not count a step of what is flushed.
bool RowBoundsFinder::is_live(const RowScores& scores, double t, double terms) const {
  if (!std::isfinite(t)) return false;
  const double error = error_of(t, terms);
  const double reach = error + std::log(error / step_);
  switch (problem_.normalizer) {
    case Normalizer::none:
      return true;
    case Normalizer::sigmoid:
      return t + reach >= log_flushed_;
    case Normalizer::softmax:
      break;
  }
  return t - scores.top + reach + step_ * (1 + std::abs(scores.top)) >= log_flushed_;
}

// Calls f(j) for each key that counts.
template <class F>
void RowBoundsFinder::for_each_live(const RowScores& scores, F&& f) const {
  for (std::size_t j = 0; j < scores.t.size(); ++j) {
    if (is_live(scores, scores.t[j], scores.terms[j])) f(j);
  }
}
template <class F>
bool RowBoundsFinder::all_live(const RowScores& scores, F&& holds) const {
  for (std::size_t j = 0; j < scores.t.size(); ++j) {
    if (is_live(scores, scores.t[j], scores.terms[j]) && !holds(j)) return false;
  }
  return true;
}

RowBounds RowBoundsFinder::operator()(const RowInputs& row, const RowScores& scores) {
  RowBounds bounds;
  const bool live_sink = is_live(scores, row.sink, 0);
  if (live_sink) bounds.exponent = std::abs(row.sink);
  double spread = 0;
  for_each_live(scores, [&](std::size_t j) {
    bounds.exponent = std::max({bounds.exponent, std::abs(scores.t[j]), kTermsShare * scores.terms[j]});
    spread = std::max(spread, scores.top - scores.t[j]);
  });
  const double of_largest = step_ * (1 + std::abs(scores.largest));
  for (std::size_t j = 0; j < scores.t.size(); ++j) {
    const double terms = std::max(std::abs(scores.t[j]), scores.terms[j]);
    if (!std::isfinite(scores.t[j]) || scores.t[j] + step_ * (1 + terms) < scores.largest - of_largest) continue;
    bounds.score_terms = std::max(bounds.score_terms, terms);
  }

  bounds.lse_floor = step_ * (1 + bounds.exponent);
  const bool provable = problem_.normalizer == Normalizer::softmax && !live_sink && std::isfinite(scores.top) &&
                        step_ * (1 + bounds.exponent) > kWorthAProof;
  double equal = 0;
  if (provable && all_are_exact(row, scores)) {
    bounds.proven = true;
    bounds.exponent = spread;
    bounds.lse_floor = step_ * (1 + spread + std::abs(scores.log_sum));
  } else if (provable && all_are_equal(row, scores, equal)) {
    take_equal(scores, equal, bounds);
  }
  return bounds;
}

// Whether the reals compute every score that counts without a rounding error, in whatever order they add: all products
// are multiples of one power of two, of which the largest sum is no more than a significand holds.
bool RowBoundsFinder::all_are_exact(const RowInputs& row, const RowScores& scores) const {
  if (!problem_.score_mod.empty() || row.scale != problem_.scale || step_ != kUnitsOfAStep * std::ldexp(1, -bits_)) {
    return false;
  }
  return all_live(scores, [&](std::size_t j) {
    const double* key = row.keys + static_cast<std::int64_t>(j) * problem_.qk_dim;
    int grid = std::numeric_limits<int>::max() / 2;
    for (std::size_t d = 0; d < row.query.size(); ++d) {
      if (row.query[d] == 0 || key[d] == 0) continue;
      grid = std::min(grid, lowest_bit(row.query[d]) + lowest_bit(key[d]));
    }
    const bool is_normal = grid >= (bits_ == 24 ? -126 : -1022);
    return is_normal && dot(row.query, key).terms <= std::ldexp(1, grid + bits_) && has_bits(scores.t[j], bits_);
  });
}

// Whether the mod gives all scores that count one number in the reals, also if s were 0 or twice as large: beside 1e9
// nothing of s is left.
bool RowBoundsFinder::all_are_equal(const RowInputs& row, const RowScores& scores, double& equal) const {
  bool is_first = true;
  return all_live(scores, [&](std::size_t j) {
    const double s = scores.s[j], reach = std::abs(s) + step_ * scores.terms[j];
    for (const double there : {s - reach, s, s + reach}) {
      const double t = in_reals_.score(row.position, static_cast<std::int64_t>(j), there);
      if (is_first) equal = t;
      is_first = false;
      if (!std::isfinite(t) || t != equal) return false;
    }
    return true;
  });
}

// The reals have equal weights, and float64, which keeps the scores apart, others.
void RowBoundsFinder::take_equal(const RowScores& scores, double equal, RowBounds& bounds) {
  double live = 0;
  for_each_live(scores, [&](std::size_t) { ++live; });
  shifts_.assign(scores.t.size(), 0);
  for_each_live(scores, [&](std::size_t j) {
    shifts_[j] = std::abs(std::exp((scores.t[j] - scores.top) - scores.log_sum) - 1 / live);
  });
  bounds.proven = true;
  bounds.exponent = 0;
  bounds.shifts = shifts_;
  bounds.lse_floor = std::abs((equal - scores.top) + (std::log(live) - scores.log_sum)) + step_ * (1 + std::log(live));
}

}  // namespace heddle::reference
