#include "engine/large_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/element.h"

namespace heddle::test {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity(), kHalf = 0.5;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

double LargeScores::element(const Tensor& tensor, std::int64_t i) {
  return base::load_element(tensor.data(), tensor.dtype(), i);
}
void LargeScores::set(const Tensor& tensor, std::int64_t i, double x) {
  base::store_element(tensor.data(), tensor.dtype(), i, x);
}

LargeScores::LargeScores(const LargeShape& given, const Added& added, LargeForm form) : shape(given), form_(form) {
  const DType real = shape.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Dims of_queries = {1, shape.q_heads(), shape.queries, shape.dim},
             of_keys = {1, shape.kv_heads, shape.keys, shape.dim}, of_rows = {1, shape.q_heads(), shape.queries};
  for (Tensor* tensor : {&q, &d_o, &o, &dq}) *tensor = Tensor::zeros(shape.dtype, of_queries);
  for (Tensor* tensor : {&k, &v, &dk, &dv}) *tensor = Tensor::zeros(shape.dtype, of_keys);
  for (Tensor* tensor : {&lse, &rest}) *tensor = Tensor::zeros(real, of_rows);
  std::mt19937 rng(3);
  for (const Tensor* small : {&q, &k}) {
    for (std::int64_t i = 0; i < small->count(); ++i) set(*small, i, static_cast<int>(rng() % 3) - 1);
  }
  std::normal_distribution<double> normal;
  for (const Tensor* drawn : {&v, &d_o}) {
    for (std::int64_t i = 0; i < drawn->count(); ++i) set(*drawn, i, normal(rng));
  }
  options.scale = kHalf;
  options.threads = 2;
  bias = Tensor::zeros(real, {shape.queries, shape.keys});
  if (form == LargeForm::plain) {
    make_large(added(0, 0));
    return;
  }
  const bool by_key = form == LargeForm::of_keys, by_row = form == LargeForm::of_rows;
  for (std::int64_t i = 0; i < bias.count(); ++i) {
    set(bias, i, added(by_key ? 0 : i / shape.keys, by_row ? 0 : i % shape.keys));
  }
  Expr term = Capture("terms", real, 2)(leaf::q_idx(), leaf::kv_idx());
  terms = bias;
  if (by_key || by_row) {
    terms = Tensor::zeros(real, {by_key ? shape.keys : shape.queries});
    term = Capture("terms", real, 1)(by_key ? leaf::kv_idx() : leaf::q_idx());
    for (std::int64_t i = 0; i < terms->count(); ++i) set(*terms, i, by_key ? added(0, i) : added(i, 0));
  }
  options.score_mod = form == LargeForm::mapped ? min(leaf::score(), 1000.0) + term : leaf::score() + term;
  options.bindings.captures["terms"] = *terms;
}

void LargeScores::make_large(double level) {
  const double of_query = std::exp2(std::floor(std::log2(std::abs(level)) / 2));
  for (std::int64_t i = 0; i < q.count(); i += shape.dim) set(q, i, of_query);
  for (std::int64_t i = 0; i < k.count(); i += shape.dim) set(k, i, level / kHalf / of_query);
}

void LargeScores::set_sink(double sink) {
  sinks = Tensor::zeros(lse.dtype(), {shape.q_heads()}), d_sinks = Tensor::zeros(lse.dtype(), {shape.q_heads()});
  for (std::int64_t head = 0; head < shape.q_heads(); ++head) set(sinks, head, sink);
  options.sinks = sinks;
}

void LargeScores::attend(BackendChoice backend) {
  options.backend = backend;
  attention_into(forward(), options);
}

void LargeScores::differentiate(BackendChoice backend) {
  attend(backend);
  attention_backward_into(backward(), options);
}

BackwardTensors LargeScores::backward() const {
  BackwardTensors tensors{
      .q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .lse_rest = rest, .dq = dq, .dk = dk, .dv = dv};
  if (options.sinks) tensors.d_sinks = d_sinks;
  return tensors;
}

double LargeScores::sink() const { return options.sinks ? element(sinks, 0) : -kFar; }

/// As f32 (f64) has it.
double LargeScores::score(std::int64_t head, std::int64_t query, std::int64_t key) const {
  double s = 0;
  for (std::int64_t d = 0; d < shape.dim; ++d) {
    s += element(q, (head * shape.queries + query) * shape.dim + d) *
         element(k, (head / shape.group * shape.keys + key) * shape.dim + d);
  }
  const double t = kHalf * s + element(bias, query * shape.keys + key);
  return shape.dtype == DType::f64 ? t : static_cast<double>(static_cast<float>(t));
}

LargeScores::Row LargeScores::row(std::int64_t head, std::int64_t query) const {
  Row row;
  for (std::int64_t j = 0; j < shape.keys; ++j) row.p.push_back(score(head, query, j));
  row.top = std::max(sink(), *std::ranges::max_element(row.p));
  double sum = std::exp(sink() - row.top);
  for (double& t : row.p) sum += t = row.top == -kFar ? 0 : std::exp(t - row.top);
  for (double& x : row.p) x = row.top == -kFar ? 0 : x / sum;
  row.of_sink = std::exp(sink() - row.top) / sum;
  row.log_sum = std::log(sum);
  return row;
}

double LargeScores::error() const {
  std::vector<double> want_q(at(q.count())), want_k(at(k.count())), want_v(at(k.count())),
      want_sinks(at(shape.q_heads()));
  std::vector<double> d_p(at(shape.keys));
  for (std::int64_t i = 0; i < shape.q_heads() * shape.queries; ++i) {
    const std::int64_t head = i / shape.queries, keys = head / shape.group * shape.keys;
    const Row own = row(head, i % shape.queries);
    double delta = 0;
    for (std::int64_t j = 0; j < shape.keys; ++j) {
      d_p[at(j)] = 0;
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        d_p[at(j)] += element(d_o, i * shape.dim + d) * element(v, (keys + j) * shape.dim + d);
      }
      delta += own.p[at(j)] * d_p[at(j)];
    }
    want_sinks[at(head)] -= own.of_sink * delta;
    for (std::int64_t j = 0; j < shape.keys; ++j) {
      const double ds = kHalf * own.p[at(j)] * (d_p[at(j)] - delta);
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        const std::int64_t of_query = i * shape.dim + d, of_key = (keys + j) * shape.dim + d;
        want_q[at(of_query)] += ds * element(k, of_key);
        want_k[at(of_key)] += ds * element(q, of_query);
        want_v[at(of_key)] += own.p[at(j)] * element(d_o, of_query);
      }
    }
  }
  double worst = std::max({error_of(dq, want_q), error_of(dk, want_k), error_of(dv, want_v)});
  if (options.sinks) worst = std::max(worst, error_of(d_sinks, want_sinks));
  return worst;
}

double LargeScores::error_of(const Tensor& got, const std::vector<double>& want) const {
  const bool skips = form_ == LargeForm::plain && (&got == &dq || &got == &dk);
  double worst = 0, largest = 1e-3;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (skips && static_cast<std::int64_t>(i) % shape.dim == 0) continue;
    const double error = std::abs(element(got, static_cast<std::int64_t>(i)) - want[i]);
    worst = std::isnan(error) ? kFar : std::max(worst, error);
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst / largest;
}

double LargeScores::error_of_o() const {
  double worst = 0;
  for (std::int64_t i = 0; i < shape.q_heads() * shape.queries; ++i) {
    const std::int64_t head = i / shape.queries, keys = head / shape.group * shape.keys;
    const Row own = row(head, i % shape.queries);
    for (std::int64_t d = 0; d < shape.dim; ++d) {
      double want = 0;
      for (std::int64_t j = 0; j < shape.keys; ++j) want += own.p[at(j)] * element(v, (keys + j) * shape.dim + d);
      const double error = std::abs(element(o, i * shape.dim + d) - want) / std::max(1.0, std::abs(want));
      worst = std::isnan(error) ? kFar : std::max(worst, error);
    }
  }
  return worst;
}

double LargeScores::error_of_lse() const {
  double worst = 0;
  for (std::int64_t i = 0; i < lse.count(); ++i) {
    const Row own = row(i / shape.queries, i % shape.queries);
    const double error = std::abs((element(lse, i) - own.top) + element(rest, i) - own.log_sum);
    worst = std::isnan(error) ? kFar : std::max(worst, error);
  }
  return worst;
}

}  // namespace heddle::test
