// Attention as three loops in double, with mods as C++ functions: what the CPU kernels' tests compare with. It shares
// nothing with the library but the tensors.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "heddle/attention.h"

namespace heddle {

struct PlainMods {
  using Element = std::int64_t;
  std::function<double(double s, Element b, Element h, Element i, Element j)> score;
  std::function<bool(Element b, Element h, Element i, Element j)> mask;
  std::function<double(Element b, Element h, Element i, Element j)> weight;
};

struct PlainProblem {
  Tensor q, k, v;                   // f64, contiguous
  std::vector<Sequence> sequences;  // q_begin and kv_begin 0 and one a batch entry, or all in batch entry 0 (packed)
  bool packed = false;
  double scale = 1;
  PlainMods mods;
  Normalizer normalizer = Normalizer::softmax;
  std::vector<double> sinks;
};

/// One row's result; `magnitude` is sum |p w v| / l of each element, the scale of rounding errors.
struct PlainRow {
  std::vector<double> o, magnitude;
  double lse = -std::numeric_limits<double>::infinity();
};

/// The elements of one row.
inline const double* row_of(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t row) {
  const Dims& shape = x.shape();
  const std::int64_t entry = shape[0] == 1 ? 0 : b;
  return static_cast<const double*>(x.data()) + ((entry * shape[1] + h) * shape[2] + row) * shape[3];
}

/// Row i of head h in sequence n.
inline PlainRow plain_row(const PlainProblem& p, std::int64_t n, std::int64_t h, std::int64_t i) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  const Sequence& sequence = p.sequences[static_cast<std::size_t>(n)];
  const std::int64_t b = p.packed ? 0 : n, kv_head = h / (p.q.shape()[1] / p.k.shape()[1]);
  const double* q = row_of(p.q, b, h, sequence.q_begin + i);
  std::vector<double> t(static_cast<std::size_t>(sequence.kv_len), kMinusInfinity);
  double top = p.sinks.empty() ? kMinusInfinity : p.sinks[static_cast<std::size_t>(h)];
  bool any = false;
  for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
    const std::int64_t q_idx = i + sequence.q_start, kv_idx = j + sequence.kv_start;
    if (p.mods.mask && !p.mods.mask(n, h, q_idx, kv_idx)) continue;
    double s = 0;
    const double* k = row_of(p.k, b, kv_head, sequence.kv_begin + j);
    for (std::int64_t d = 0; d < p.q.shape()[3]; ++d) s += q[d] * k[d];
    s *= p.scale;
    double& x = t[static_cast<std::size_t>(j)];
    x = p.mods.score ? p.mods.score(s, n, h, q_idx, kv_idx) : s;
    any = any || x != kMinusInfinity;
    top = std::max(top, x);
  }
  PlainRow row;
  row.o.assign(static_cast<std::size_t>(p.v.shape()[3]), 0);
  row.magnitude = row.o;
  if (!any) {
    row.lse = top;
    return row;
  }
  double sum = p.sinks.empty() ? 0 : std::exp(p.sinks[static_cast<std::size_t>(h)] - top);
  for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
    const double x = t[static_cast<std::size_t>(j)];
    if (x == kMinusInfinity) continue;
    const double weight = p.mods.weight ? p.mods.weight(n, h, i + sequence.q_start, j + sequence.kv_start) : 1;
    double probability = x;
    if (p.normalizer == Normalizer::softmax) probability = std::exp(x - top);
    if (p.normalizer == Normalizer::sigmoid) probability = 1 / (1 + std::exp(-x));
    sum += probability;
    const double* v = row_of(p.v, b, kv_head, sequence.kv_begin + j);
    for (std::size_t d = 0; d < row.o.size(); ++d) {
      const double term = probability * weight * v[d];
      row.o[d] += term;
      row.magnitude[d] += std::abs(term);
    }
  }
  if (p.normalizer != Normalizer::softmax) return row;
  for (double& x : row.o) x /= sum;
  for (double& x : row.magnitude) x /= sum;
  row.lse = top + std::log(sum);
  return row;
}

}  // namespace heddle
