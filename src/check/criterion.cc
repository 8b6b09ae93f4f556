#include "check/criterion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/precision.h"
#include "check/plain.h"

namespace heddle::check {
namespace {

// 0 finite, 1 +inf, 2 -inf, 3 NaN
int special_class(double x) { return std::isfinite(x) ? 0 : std::isnan(x) ? 3 : x > 0 ? 1 : 2; }

// At least half a unit in the last place of whatever is allowed before it is rounded: all that is as near to the
// reference as `tolerance`.
double one_rounding(DType dtype, const Judged& element) {
  const double largest = std::abs(element.reference) + element.tolerance;
  return std::max(std::ldexp(largest, -significand_bits(dtype)), base::smallest_subnormal(dtype) / 2);
}

}  // namespace

double sum_step(const problem::AttentionProblem& problem, bool on_gpu) {
  if (problem.precision == expr::Precision::f64) return kSumUnitF64;
  if (problem.allow_tf32) return kTf32SumUnit;
  const bool fp8 = size_of(problem.q_dtype) == 1 && size_of(problem.k_dtype) == 1 && size_of(problem.v_dtype) == 1;
  return on_gpu && fp8 ? kFp8SumUnit : kSumUnit;
}

double storage_unit(const problem::AttentionProblem& problem) { return unit_of(problem.q_dtype); }

double unit_of(DType dtype) { return std::ldexp(1.0, -significand_bits(dtype)); }

void Criterion::Errors::add(double error) {
  largest = std::max(largest, error);
  sum += error;
}

void Criterion::Errors::merge(const Errors& other) {
  largest = std::max(largest, other.largest);
  sum += other.sum;
}

bool Criterion::special_matches(const Judged& element, double expected) const {
  const int own = special_class(element.value);
  if (own == special_class(expected)) return true;
  if (!std::isfinite(element.reference)) return false;
  // The reference lies near the dtype's overflow threshold: either side is right. Both ends of what is allowed may lie
  // beyond the range, on opposite sides.
  const double low = element.reference - element.tolerance, high = element.reference + element.tolerance;
  if (own != 0) return own == special_class(round_to(dtype_, low)) || own == special_class(round_to(dtype_, high));
  const double error = std::abs(element.value - element.reference);
  return special_class(round_to(dtype_, std::clamp(0.0, low, high))) == 0 &&
         (!by_row_ || error <= element.tolerance + one_rounding(dtype_, element));
}

void Criterion::add(const Judged& element) {
  const double expected = round_to(dtype_, element.reference);
  if (!special_matches(element, expected)) {
    ++mismatched_specials_;
    return;
  }
  if (!std::isfinite(element.value) || !std::isfinite(expected)) return;
  ++finite_;
  const double error = std::abs(element.value - element.reference);
  own_.add(error);
  if (std::isfinite(element.plain)) plain_.add(std::abs(element.plain - element.reference));
  rounding_.add(std::abs(expected - element.reference));
  floor_.add(element.floor);
  (element.alike ? alike_ : weight_).add(element.rounding);
  if (by_row_ && error > 0) {
    worst_ = std::max(worst_, error / (element.tolerance + one_rounding(dtype_, element)));
  }
}

void Criterion::merge(const Criterion& other) {
  finite_ += other.finite_;
  mismatched_specials_ += other.mismatched_specials_;
  own_.merge(other.own_);
  plain_.merge(other.plain_);
  rounding_.merge(other.rounding_);
  floor_.merge(other.floor_);
  alike_.merge(other.alike_);
  weight_.largest = std::max(weight_.largest, other.weight_.largest);
  weight_.sum = std::max(weight_.sum, other.weight_.sum);
  worst_ = std::max(worst_, other.worst_);
}

TensorCheck Criterion::finish() const {
  const double count = static_cast<double>(std::max<std::int64_t>(finite_, 1));
  TensorCheck check;
  check.max_error = own_.largest;
  check.mean_error = own_.sum / count;
  check.plain_max_error = plain_.largest;
  check.plain_mean_error = plain_.sum / count;
  const double base = std::max(plain_.largest, rounding_.largest), base_sum = std::max(plain_.sum, rounding_.sum);
  double largest = base, sum = base_sum;
  for (const Errors& weight : {weight_, alike_}) {
    if (weight.sum <= base_sum) continue;
    largest = std::max(largest, weight.largest);
    sum = std::max(sum, weight.sum);
  }
  check.max_allowed = base + largest + floor_.largest;
  check.mean_allowed = (base_sum + sum + floor_.sum) / count;
  check.worst_row = worst_;
  check.mismatched_specials = mismatched_specials_;
  check.passed = mismatched_specials_ == 0 && check.max_error <= check.max_allowed &&
                 check.mean_error <= check.mean_allowed && worst_ <= 1;
  return check;
}

std::string table(std::span<const std::pair<std::string, TensorCheck>> tensors) {
  std::size_t width = 4;
  for (const auto& [name, check] : tensors) width = std::max(width, name.size());
  std::string text =
      fmt::format("{:<{}} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "", width, "max error", "allowed",
                  "plain's", "mean error", "allowed", "plain's", "worst row", "NaN or inf");
  for (const auto& [name, check] : tensors) {
    text += fmt::format("{:<{}} {:>10.3g} {:>10.3g} {:>10.3g} {:>10.3g} {:>10.3g} {:>10.3g} {:>10.3g} {:>10}  {}\n",
                        name, width, check.max_error, check.max_allowed, check.plain_max_error, check.mean_error,
                        check.mean_allowed, check.plain_mean_error, check.worst_row, check.mismatched_specials,
                        check.passed ? "passed" : "FAILED");
  }
  return text;
}

}  // namespace heddle::check
