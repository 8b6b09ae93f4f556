#include "check/plain_backward.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/element.h"
#include "check/plain.h"
#include "reference/attend.h"
#include "reference/row_offsets.h"

namespace heddle::check {
namespace {

using problem::AttentionProblem;
using reference::ReadSlope;
using reference::RowIndex;
using reference::RowInputs;

std::vector<double> load_row(const ConstTensorView& view, const RowIndex& index) {
  const std::int64_t start = index.batch * view.strides[0] + index.head * view.strides[1] + index.row * view.strides[2];
  std::vector<double> row;
  for (std::int64_t d = 0; d < view.shape[3]; ++d) {
    row.push_back(base::load_element(view.data, view.dtype, start + d * view.strides[3]));
  }
  return row;
}

// A gradient summed in the problem's reals.
template <class Real>
struct RealSum {
  Dims shape;
  std::vector<Real> values;

  explicit RealSum(const Dims& of) : shape(of), values(static_cast<std::size_t>(element_count(of))) {}
  void add(std::int64_t offset, Real factor, const double* row, std::int64_t count) {
    for (std::int64_t d = 0; d < count; ++d) {
      values[static_cast<std::size_t>(offset + d)] += factor * static_cast<Real>(row[d]);
    }
  }
  Tensor tensor() const {
    Tensor tensor = Tensor::empty(DType::f64, shape);
    std::copy(values.begin(), values.end(), static_cast<double*>(tensor.data()));
    return tensor;
  }
};

template <class Real>
class PlainBackward {
 public:
  PlainBackward(const AttentionProblem& problem, const backend::RunArguments& arguments,
                const reference::BackwardArguments& backward, const StoredResults& stored)
      : problem_(problem),
        arguments_(arguments),
        backward_(backward),
        stored_(stored),
        bits_(significand_bits(problem.q_dtype)),
        mods_(problem, arguments, problem.precision),
        score_(problem.score_mod, *arguments.bindings, backward.of, problem.precision, problem.precision),
        weight_(problem.weight_mod, *arguments.bindings, backward.of, problem.precision, problem.precision),
        q_(arguments.tensors.q.shape),
        k_(arguments.tensors.k.shape),
        v_(arguments.tensors.v.shape),
        partials_(static_cast<std::size_t>(problem.batch * problem.kv_heads)),
        head_mutexes_(static_cast<std::size_t>(problem.kv_heads)) {
    for (Partial& partial : partials_) partial.sinks.resize(static_cast<std::size_t>(problem.q_heads));
  }

  void add_row(const RowIndex& index, const RowInputs& inputs) {
    Row row = load(index, inputs);
    Partial& partial = partials_[static_cast<std::size_t>(inputs.position.b * problem_.kv_heads + row.kv_head)];
    bool alone = true;
    for (std::int64_t j = 0; j < inputs.kv_len; ++j) {
      if (mods_.attends(inputs.position, j)) alone = !add_element(row, j, partial) && alone;
    }
    if (!backward_.of_sinks || row.lse == kMasked || static_cast<Real>(inputs.sink) == kMasked) return;
    const Real delta = alone ? -row.d_lse : row.delta;
    partial.sinks[static_cast<std::size_t>(index.head)] -=
        std::exp((static_cast<Real>(inputs.sink) - row.lse) - row.lse_rest) * delta;
  }

  PlainGradients finish() const {
    PlainGradients gradients{q_.tensor(), k_.tensor(), v_.tensor(), {}, {}, {}};
    if (backward_.of_sinks) {
      RealSum<Real> sinks({problem_.q_heads});
      for (const Partial& partial : partials_) {
        for (std::size_t h = 0; h < sinks.values.size(); ++h) sinks.values[h] += partial.sinks[h];
      }
      gradients.sinks = sinks.tensor();
    }
    for (const reference::ModSlopes* mod : {&score_, &weight_}) {
      for (const ReadSlope& read : mod->reads()) {
        auto& gradient = (read.is_param() ? gradients.params : gradients.captures)[read.name()];
        gradient = sum_of(read).tensor();
      }
    }
    return gradients;
  }

 private:
  static constexpr Real kMasked = -std::numeric_limits<Real>::infinity();

  // The sums of one sequence and kv head, which one thread computes.
  struct Partial {
    std::map<std::pair<std::string, bool>, std::unordered_map<std::int64_t, Real>> reads;  // by name, whether a param
    std::vector<Real> sinks;
  };
  struct Row {
    RowIndex index;
    const RowInputs* inputs;
    std::int64_t kv_head;
    std::vector<double> d_o;
    Real lse, lse_rest, d_lse, delta;
  };

  Row load(const RowIndex& index, const RowInputs& inputs) const {
    Row row{index, &inputs, inputs.position.h / problem_.group(), load_row(backward_.d_o, index), 0, 0, 0, 0};
    if (problem_.normalizer != Normalizer::softmax) return row;
    const Dims at = {index.batch, index.head, index.row};
    row.lse = static_cast<Real>(get_element(*stored_.lse, at));
    if (stored_.lse_rest) row.lse_rest = static_cast<Real>(get_element(*stored_.lse_rest, at));
    if (backward_.d_lse) row.d_lse = static_cast<Real>(get_element(*backward_.d_lse, at));
    row.delta = product(row.d_o, load_row(stored_.o, index).data()) - row.d_lse;
    return row;
  }

  static Real product(std::span<const double> x, const double* y) {
    Real sum = 0;
    for (std::size_t d = 0; d < x.size(); ++d) sum += static_cast<Real>(x[d]) * static_cast<Real>(y[d]);
    return sum;
  }
  Real stored(Real x) const { return static_cast<Real>(round_significand(static_cast<double>(x), bits_)); }

  // False where t is -inf.
  bool add_element(const Row& row, std::int64_t j, Partial& partial) {
    const RowInputs& inputs = *row.inputs;
    const double* key = inputs.keys + j * problem_.qk_dim;
    expr::Element at = mods_.element(inputs.position, j);
    at.score = static_cast<double>(static_cast<Real>(inputs.scale) * product(inputs.query, key));
    const Real t = static_cast<Real>(mods_.score(inputs.position, j, at.score));
    if (t == kMasked) return false;
    const Real w = static_cast<Real>(mods_.weight(inputs.position, j));
    const Real d_p = product(row.d_o, inputs.values + j * problem_.v_dim);
    Real p = t;
    Real p_slope = 1;
    if (problem_.normalizer == Normalizer::softmax) p = p_slope = std::exp((t - row.lse) - row.lse_rest);
    if (problem_.normalizer == Normalizer::sigmoid) p = 1 / (1 + std::exp(-t)), p_slope = p - p * p;
    const Real through = w * d_p - row.delta;
    const Real d_s = p_slope * static_cast<Real>(score_.score(at)) * through;
    add_to_tensors(row, j, stored(p * w) * static_cast<Real>(inputs.v_descale),
                   stored(d_s) * static_cast<Real>(inputs.scale));
    add_reads(score_, at, p_slope * through, partial);
    add_reads(weight_, at, p * d_p, partial);
    return true;
  }

  void add_to_tensors(const Row& row, std::int64_t j, Real p_w, Real d_s) {
    const AttentionOptions& options = *arguments_.options;
    const std::int64_t b = row.inputs->position.b;
    const std::lock_guard lock(head_mutexes_[static_cast<std::size_t>(row.kv_head)]);
    q_.add(reference::row_begin(q_.shape, row.index.batch, row.index.head, row.index.row), d_s,
           row.inputs->keys + j * problem_.qk_dim, problem_.qk_dim);
    k_.add(reference::key_begin(k_.shape, problem_, options, b, row.kv_head, j), d_s, row.inputs->query.data(),
           problem_.qk_dim);
    v_.add(reference::key_begin(v_.shape, problem_, options, b, row.kv_head, j), p_w, row.d_o.data(), problem_.v_dim);
  }

  static void add_reads(const reference::ModSlopes& mod, const expr::Element& at, Real term, Partial& partial) {
    for (const ReadSlope& read : mod.reads()) {
      const double slope = read.slope(at);
      const std::optional<std::int64_t> offset = read.offset(at, slope);
      if (offset) partial.reads[{read.name(), read.is_param()}][*offset] += term * static_cast<Real>(slope);
    }
  }

  RealSum<Real> sum_of(const ReadSlope& read) const {
    RealSum<Real> sum(read.shape());
    for (const Partial& partial : partials_) {
      const auto found = partial.reads.find({read.name(), read.is_param()});
      if (found == partial.reads.end()) continue;
      for (const auto& [offset, value] : found->second) sum.values[static_cast<std::size_t>(offset)] += value;
    }
    return sum;
  }

  const AttentionProblem& problem_;
  const backend::RunArguments& arguments_;
  const reference::BackwardArguments& backward_;
  const StoredResults& stored_;
  const int bits_;
  const reference::ElementMods mods_;
  const reference::ModSlopes score_, weight_;
  RealSum<Real> q_, k_, v_;
  std::vector<Partial> partials_;
  std::vector<std::mutex> head_mutexes_;  // sequences may share rows of q, k and v
};

template <class Real>
PlainGradients compute(const AttentionProblem& problem, const backend::RunArguments& arguments,
                       const reference::BackwardArguments& backward, const StoredResults& stored) {
  PlainBackward<Real> plain(problem, arguments, backward, stored);
  reference::attend(
      problem, arguments, 0,
      [&](const RowIndex& index, const RowInputs* inputs, const reference::RowResult&) {
        if (inputs != nullptr) plain.add_row(index, *inputs);
      },
      reference::RowOrder::of_a_head);
  return plain.finish();
}

}  // namespace

PlainGradients plain_backward(const AttentionProblem& problem, const backend::RunArguments& arguments,
                              const reference::BackwardArguments& backward, const StoredResults& stored) {
  if (problem.precision == expr::Precision::f64) return compute<double>(problem, arguments, backward, stored);
  return compute<float>(problem, arguments, backward, stored);
}

}  // namespace heddle::check
