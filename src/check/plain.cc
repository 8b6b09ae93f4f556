#include "check/plain.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/element.h"

namespace heddle::check {
namespace {

template <class Real>
class Plain {
 public:
  Plain(const problem::AttentionProblem& problem, const reference::ElementMods& mods,
        const reference::RowInputs& inputs)
      : problem_(problem), mods_(mods), inputs_(inputs) {}

  PlainRow compute() {
    compute_scores();
    switch (problem_.normalizer) {
      case Normalizer::softmax:
        return softmax();
      case Normalizer::sigmoid:
        for (Real& t : p_) t = t == kMasked ? 0 : 1 / (1 + std::exp(-t));
        break;
      case Normalizer::none:
        for (Real& t : p_) t = t == kMasked ? 0 : t;
        break;
    }
    return without_lse(multiply_by_values(1), static_cast<double>(kMasked));
  }

 private:
  static constexpr Real kMasked = -std::numeric_limits<Real>::infinity();

  static PlainRow without_lse(std::vector<double> o, double largest) {
    return {.o = std::move(o),
            .top = -INFINITY,
            .log_sum = 0,
            .max_score = largest,
            .roundings = {},
            .round_alike = false,
            .lse = -INFINITY};
  }

  void compute_scores() {
    p_.assign(static_cast<std::size_t>(inputs_.kv_len), kMasked);
    attends_.assign(p_.size(), false);
    for (std::int64_t j = 0; j < inputs_.kv_len; ++j) {
      if (!mods_.attends(inputs_.position, j)) continue;
      Real sum = 0;
      const double* key = inputs_.keys + j * problem_.qk_dim;
      for (std::size_t d = 0; d < inputs_.query.size(); ++d) {
        sum += static_cast<Real>(inputs_.query[d]) * static_cast<Real>(key[d]);
      }
      const Real s = static_cast<Real>(inputs_.scale) * sum;
      const auto at = static_cast<std::size_t>(j);
      p_[at] = static_cast<Real>(mods_.score(inputs_.position, j, static_cast<double>(s)));
      attends_[at] = p_[at] != kMasked;
    }
  }

  PlainRow softmax() {
    const Real sink = static_cast<Real>(inputs_.sink);
    Real m = sink;
    for (Real t : p_) m = std::max(m, t);
    const double largest = static_cast<double>(p_.empty() ? kMasked : *std::ranges::max_element(p_));
    if (m == kMasked) return without_lse(std::vector<double>(static_cast<std::size_t>(problem_.v_dim)), largest);
    Real l = std::exp(sink - m);
    // A weight that is 1 is exact beside the row's maximum. If all are 1 and a kernel began with another maximum, its
    // weights are another number, and all round alike.
    std::vector<bool> largest_of_row(p_.size());
    bool alike = true;
    for (std::size_t j = 0; j < p_.size(); ++j) {
      largest_of_row[j] = p_[j] == m;
      alike = alike && (largest_of_row[j] || !attends_[j]);
    }
    for (Real& t : p_) {
      t = std::exp(t - m);
      l += t;
    }
    const Real log_sum = std::log(l);
    return {.o = multiply_by_values(l),
            .top = static_cast<double>(m),
            .log_sum = static_cast<double>(log_sum),
            .max_score = largest,
            .roundings = roundings(l, largest_of_row, alike),
            .round_alike = alike,
            .lse = static_cast<double>(m + log_sum)};
  }

  /// u |p w v| / l of the term that is largest in each column; of the sum of all, if they round alike. Empty where P is
  /// not rounded.
  std::vector<double> roundings(Real l, const std::vector<bool>& exact, bool alike) const {
    const int bits = significand_bits(problem_.q_dtype);
    if (bits >= std::numeric_limits<Real>::digits) return {};
    std::vector<double> found(static_cast<std::size_t>(problem_.v_dim));
    for (std::int64_t j = 0; j < inputs_.kv_len; ++j) {
      const auto at = static_cast<std::size_t>(j);
      if (!attends_[at] || (exact[at] && !alike)) continue;
      const double weight = static_cast<double>(p_[at]) * mods_.weight(inputs_.position, j);
      const double unit = std::ldexp(weight / static_cast<double>(l), -bits);
      const double* value = inputs_.values + j * problem_.v_dim;
      for (std::size_t d = 0; d < found.size(); ++d) {
        const double term = unit * value[d];
        found[d] = alike ? found[d] + term : std::max(found[d], std::abs(term));
      }
    }
    for (double& x : found) x = std::abs(x);
    return found;
  }

  std::vector<double> multiply_by_values(Real l) const {
    const int bits = significand_bits(problem_.q_dtype);
    std::vector<Real> sums(static_cast<std::size_t>(problem_.v_dim));
    for (std::int64_t j = 0; j < inputs_.kv_len; ++j) {
      if (!attends_[static_cast<std::size_t>(j)]) continue;
      const Real weighted = p_[static_cast<std::size_t>(j)] * static_cast<Real>(mods_.weight(inputs_.position, j));
      const Real stored = static_cast<Real>(round_significand(static_cast<double>(weighted), bits));
      const double* value = inputs_.values + j * problem_.v_dim;
      for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += stored * static_cast<Real>(value[d]);
    }
    std::vector<double> o;
    o.reserve(sums.size());
    for (Real sum : sums) o.push_back(round_to(problem_.o_dtype, static_cast<double>(sum / l)));
    return o;
  }

  const problem::AttentionProblem& problem_;
  const reference::ElementMods& mods_;
  const reference::RowInputs& inputs_;
  std::vector<Real> p_;  // t, then p
  std::vector<bool> attends_;
};

}  // namespace

int significand_bits(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 53;
    case DType::f16:
      return 11;
    case DType::bf16:
      return 8;
    case DType::e4m3:
      return 4;
    case DType::e5m2:
      return 3;
    default:
      return 24;
  }
}

double round_significand(double x, int bits) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

double round_to(DType dtype, double x) {
  alignas(8) std::byte storage[8];
  base::store_element(storage, dtype, 0, x);
  return base::load_element(storage, dtype, 0);
}

PlainRow plain_row(const problem::AttentionProblem& problem, const reference::ElementMods& mods,
                   const reference::RowInputs& inputs) {
  if (problem.precision == expr::Precision::f64) return Plain<double>(problem, mods, inputs).compute();
  return Plain<float>(problem, mods, inputs).compute();
}

}  // namespace heddle::check
