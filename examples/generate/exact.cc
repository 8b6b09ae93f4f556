#include "exact.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

Row multiply(const Row& x, const Matrix& w) {
  Row y(w.columns);
  for (std::size_t in = 0; in < w.rows; ++in) {
    for (std::size_t out = 0; out < w.columns; ++out) y[out] += x[in] * w[in][out];
  }
  return y;
}

void add(const Row& x, Row& y) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
}

Row normed(Row x) {
  const auto count = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (const double value : x) mean += value / count;
  for (const double value : x) variance += (value - mean) * (value - mean) / count;
  for (double& value : x) value = (value - mean) / std::sqrt(variance + 1e-5);
  return x;
}

/// T5's bucket of a distance: one each below kBuckets / 2, then as many that grow with the logarithm up to the window.
std::size_t bucket_of(std::size_t distance) {
  constexpr std::size_t kExact = kBuckets / 2;
  if (distance < kExact) return distance;
  const double steps = std::log(static_cast<double>(distance) / kExact) /
                       std::log(static_cast<double>(kWindow) / kExact) * (kBuckets - kExact);
  return std::min(kExact + static_cast<std::size_t>(steps), kBuckets - 1);
}

/// Row `at` of o, from the rows of qkv up to it.
Row attend(const Rows& qkv, std::size_t at, const Block& block) {
  Row o(kWidth);
  for (std::size_t head = 0; head < kHeads; ++head) {
    const std::size_t first = head * kHeadDim;
    Row weights;
    for (std::size_t key = 0; key <= at; ++key) {
      double score = 0;
      for (std::size_t i = first; i < first + kHeadDim; ++i) score += qkv[at][i] * qkv[key][kWidth + i];
      score /= std::sqrt(static_cast<double>(kHeadDim));
      const std::size_t distance = at - key;
      score += block.table.value[bucket_of(distance)][head];
      score -= block.slopes.value[0][head] * static_cast<double>(distance);
      weights.push_back(score);
    }
    const double most = *std::ranges::max_element(weights);
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - most);
    for (std::size_t key = 0; key <= at; ++key) {
      for (std::size_t i = first; i < first + kHeadDim; ++i) o[i] += weights[key] / sum * qkv[key][2 * kWidth + i];
    }
  }
  return o;
}

}  // namespace

std::vector<double> exact_logits(const Model& model, std::span<const std::uint8_t> text) {
  Rows x;
  for (const std::uint8_t character : text) {
    const float* row = model.embedding()[character];
    x.emplace_back(row, row + kWidth);
  }
  for (const Block& block : model.blocks()) {
    Rows qkv;
    for (const Row& row : x) qkv.push_back(multiply(normed(row), block.qkv.value));
    for (std::size_t at = 0; at < x.size(); ++at) {
      add(multiply(attend(qkv, at, block), block.out.value), x[at]);
      Row hidden = multiply(normed(x[at]), block.up.value);
      for (double& value : hidden) value = std::max(value, 0.0) * std::max(value, 0.0);
      add(multiply(hidden, block.down.value), x[at]);
    }
  }
  return multiply(normed(x.back()), model.prediction());
}
