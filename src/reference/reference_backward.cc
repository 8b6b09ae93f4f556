#include "reference/reference_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "base/element.h"
#include "base/precision.h"
#include "reference/attend.h"
#include "reference/row_offsets.h"

namespace heddle::reference {
namespace {

using problem::AttentionProblem;

// A sum of products in f32, one after the other, is off by about 0.6 * 2^-24 of their magnitudes' sum (one sigma). A
// step is 8 * 2^-24.
constexpr double kTermsSteps = 0.25;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How far two slopes are apart; NaN is none to compare with.
double finite_gap(double x, double y) { return std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) : 0; }

// Both mods' derivatives, in one arithmetic.
struct Slopes {
  ModSlopes score, weight;
  Slopes(const AttentionProblem& problem, const backend::RunArguments& arguments, const ModReads& of,
         expr::Precision arithmetic)
      : score(problem.score_mod, *arguments.bindings, of, arithmetic, problem.precision),
        weight(problem.weight_mod, *arguments.bindings, of, arithmetic, problem.precision) {}
};

// Gradients of the captures and params that the mods read.
class ReadSums {
 public:
  ReadSums(const Slopes& slopes, bool judged) {
    for (const ModSlopes* mod : {&slopes.score, &slopes.weight}) {
      for (const ReadSlope& read : mod->reads()) sums_of(read).try_emplace(read.name(), read.shape(), judged);
    }
  }
  GradientSum& of(const ReadSlope& read) { return sums_of(read).at(read.name()); }
  void finish(Gradients& gradients) const {
    for (const auto& [name, sum] : captures_) gradients.captures.emplace(name, sum.finish());
    for (const auto& [name, sum] : params_) gradients.params.emplace(name, sum.finish());
  }

 private:
  std::map<std::string, GradientSum>& sums_of(const ReadSlope& read) { return read.is_param() ? params_ : captures_; }
  std::map<std::string, GradientSum> captures_, params_;
};

// The loss's slope with respect to one element, and what its errors are judged by.
struct ElementTerms {
  std::int64_t j;
  Term p_w;  // of dv
  Term ds;   // of dq and dk
};
struct ReadTerm {
  const ReadSlope* read;
  std::int64_t offset;
  Term term;
};

class Backward {
 public:
  Backward(const AttentionProblem& problem, const backend::RunArguments& arguments, const BackwardArguments& backward,
           double step)
      : problem_(problem),
        arguments_(arguments),
        backward_(backward),
        step_(step),
        flushed_(problem.precision == expr::Precision::f64 ? 0x1p-970 : 0x1p-102),
        mods_(problem, arguments, expr::Precision::f64),
        slopes_(problem, arguments, backward.of, expr::Precision::f64),
        slopes_in_reals_(problem, arguments, backward.of, problem.precision),
        q_(arguments.tensors.q.shape, judged()),
        k_(arguments.tensors.k.shape, judged()),
        v_(arguments.tensors.v.shape, judged()),
        sinks_({problem.q_heads}, judged()),
        reads_(slopes_, judged()),
        head_mutexes_(static_cast<std::size_t>(problem.kv_heads)) {}

  // Called from several threads.
  void add_row(const RowIndex& index, const RowInputs& row, const RowResult& result) {
    const RowLoss loss = row_loss(index, result);
    std::vector<ElementTerms> elements;
    std::vector<ReadTerm> reads;
    for (std::int64_t j = 0; j < row.kv_len; ++j) {
      if (mods_.attends(row.position, j)) add_element(row, result, loss, j, elements, reads);
    }
    add_to_tensors(index, row, loss, elements);
    if (with_sink(row, result)) add_to_sink(row, result, loss, elements.empty());
    const std::lock_guard lock(reads_mutex_);
    for (const ReadTerm& read : reads) reads_.of(*read.read).add(read.offset, read.term);
  }

  Gradients finish() const {
    Gradients gradients{q_.finish(), k_.finish(), v_.finish(), {}, {}, {}};
    if (backward_.of_sinks) gradients.sinks = sinks_.finish();
    reads_.finish(gradients);
    return gradients;
  }

 private:
  // A row's share of the loss: dO, dlse, delta; and by what the row's p err.
  struct RowLoss {
    std::vector<double> d_o;
    double d_lse;
    Term delta;       // magnitude: D; floor: E
    double exponent;  // what rounding errors change ln p by
    double growth;    // e: and p, relative to it
  };

  bool judged() const { return step_ > 0; }
  bool softmax() const { return problem_.normalizer == Normalizer::softmax; }

  // p is the exponential of t - lse, each rounded; of proven scores t - m is exact, and lse is in two words.
  double exponent_of(const RowResult& result) const {
    const double subtracted = result.bounds.proven ? result.log_sum : result.lse();
    const double lse = softmax() && std::isfinite(subtracted) ? std::abs(subtracted) : 0;
    return step_ * (1 + std::max(result.bounds.exponent, lse));
  }

  RowLoss row_loss(const RowIndex& index, const RowResult& result) const {
    RowLoss loss{.d_o = {}, .d_lse = 0, .delta = {}, .exponent = exponent_of(result), .growth = 0};
    loss.growth = std::expm1(loss.exponent);
    const ConstTensorView& d_o = backward_.d_o;
    const std::int64_t start = index.batch * d_o.strides[0] + index.head * d_o.strides[1] + index.row * d_o.strides[2];
    for (std::int64_t d = 0; d < problem_.v_dim; ++d) {
      loss.d_o.push_back(base::load_element(d_o.data, d_o.dtype, start + d * d_o.strides[3]));
    }
    if (!softmax()) return loss;
    if (backward_.d_lse) loss.d_lse = get_element(*backward_.d_lse, {index.batch, index.head, index.row});
    loss.delta.value = dot(loss.d_o, result.o.data()).sum - loss.d_lse;
    loss.delta.magnitude = std::abs(loss.d_lse);
    const double unseen = judged() ? base::smallest_subnormal(problem_.o_dtype) / 2 : 0;
    for (std::size_t d = 0; d < loss.d_o.size(); ++d) {
      loss.delta.magnitude += times_size(result.magnitude[d], loss.d_o[d]);
      loss.delta.floor += times_size(result.floor[d] + unseen, loss.d_o[d]);
    }
    loss.delta.floor += kTermsSteps * step_ * loss.delta.magnitude;
    return loss;
  }

  // p, and its derivative by t.
  struct Weight {
    Term p, slope;
  };
  // j: no key for a sink.
  Weight weight_of(double t, std::optional<std::size_t> j, const RowResult& result, const RowLoss& loss) const {
    if (problem_.normalizer == Normalizer::none) {
      // p is t itself.
      return {{t, std::abs(t), loss.exponent}, {1, 1, step_}};
    }
    const auto floor = [&](double x) {
      const double share = std::max(x, flushed_);
      return j ? result.bounds.error_of_share(*j, share, loss.growth) : std::min(1.0, share * loss.growth);
    };
    const double p = softmax() ? std::exp((t - result.top) - result.log_sum) : 1 / (1 + std::exp(-t));
    const Term share = {p, std::max(p, flushed_), floor(p)};
    if (softmax()) return {share, share};
    const double slope = p / (1 + std::exp(t));
    return {share, {slope, slope, floor(slope) + step_ * p}};  // 1 - p cancels where p is near 1
  }

  void add_element(const RowInputs& row, const RowResult& result, const RowLoss& loss, std::int64_t j,
                   std::vector<ElementTerms>& elements, std::vector<ReadTerm>& reads) const {
    const Dot product = dot(row.query, row.keys + j * problem_.qk_dim);
    expr::Element at = mods_.element(row.position, j);
    at.score = row.scale * product.sum;
    const double t = mods_.score(row.position, j, at.score);
    if (t == -kInfinity) return;
    const Weight weight = weight_of(t, static_cast<std::size_t>(j), result, loss);
    const double w = mods_.weight(row.position, j);
    const Dot d_p = dot(loss.d_o, row.values + j * problem_.v_dim);

    // The loss's slope by t: errors of p, of dP and of delta.
    const double delta = std::abs(loss.delta.value);
    const double sums = kTermsSteps * step_ * times_size(d_p.terms, w) + loss.delta.floor;
    const double of_p = times_size(std::abs(d_p.sum), w);
    const Term dt = {weight.slope.value * (w * d_p.sum - loss.delta.value),
                     times_size(weight.slope.magnitude, of_p + loss.delta.magnitude),
                     times_size(weight.slope.floor, of_p + delta) + times_size(sums, weight.slope.magnitude)};
    const double reach = kTermsSteps * step_ * std::abs(row.scale) * product.terms;
    const double slope = slopes_.score.score(at);
    const double slope_error =
        error_of(at, reach, slope, slopes_.score.score_terms(at),
                 [&](const expr::Element& there) { return slopes_in_reals_.score.score(there); });
    elements.push_back(
        {j, through({weight.p.value, weight.p.magnitude, weight.p.floor}, w, 0), through(dt, slope, slope_error)});

    add_reads(slopes_.score, slopes_in_reals_.score, at, reach, dt, reads);
    // The loss's slope by w.
    const Term dw = {
        weight.p.value * d_p.sum, times_size(weight.p.magnitude, d_p.sum),
        times_size(weight.p.floor, d_p.sum) + times_size(kTermsSteps * step_ * d_p.terms, weight.p.magnitude)};
    add_reads(slopes_.weight, slopes_in_reals_.weight, at, 0, dw, reads);
  }

  // A term times a derivative that errs by `error`.
  static Term through(const Term& term, double slope, double error) {
    return {term.value * slope, times_size(term.magnitude, slope),
            times_size(term.floor, slope) + times_size(term.magnitude + term.floor, error)};
  }

  // The error of a derivative that is computed in the problem's reals: its score is off by up to `reach`, and its
  // functions err by a few units in the last place of its terms. At a kink the derivative of either side is right.
  template <class F>
  double error_of(const expr::Element& at, double reach, double slope, double terms, F&& in_reals) const {
    if (!judged() || terms == 0) return 0;
    double error = std::isfinite(terms) ? step_ * terms : 0;
    for (const double move : {-reach, 0.0, reach}) {
      expr::Element there = at;
      there.score += move;
      error = std::max(error, finite_gap(in_reals(there), slope));
    }
    return error;
  }

  void add_reads(const ModSlopes& mod, const ModSlopes& in_reals, const expr::Element& at, double reach,
                 const Term& term, std::vector<ReadTerm>& reads) const {
    for (std::size_t i = 0; i < mod.reads().size(); ++i) {
      const ReadSlope& read = mod.reads()[i];
      const double slope = read.slope(at);
      const std::optional<std::int64_t> offset = read.offset(at, slope);
      if (!offset) continue;
      const double error = error_of(at, reach, slope, read.slope_terms(at),
                                    [&](const expr::Element& there) { return in_reals.reads()[i].slope(there); });
      reads.push_back({&read, *offset, through(term, slope, error)});
    }
  }

  static Term times(const Term& term, double factor) {
    return {term.value * factor, times_size(term.magnitude, factor), times_size(term.floor, factor)};
  }

  std::int64_t kv_head(const RowInputs& row) const { return row.position.h / problem_.group(); }
  std::mutex& mutex_of(const RowInputs& row) { return head_mutexes_[static_cast<std::size_t>(kv_head(row))]; }
  std::int64_t key(const GradientSum& sum, const RowInputs& row, std::int64_t j) const {
    return key_begin(sum.shape(), problem_, *arguments_.options, row.position.b, kv_head(row), j);
  }

  void add_to_tensors(const RowIndex& index, const RowInputs& row, const RowLoss& loss,
                      const std::vector<ElementTerms>& elements) {
    const std::int64_t query = row_begin(q_.shape(), index.batch, index.head, index.row);
    const std::lock_guard lock(mutex_of(row));
    for (const ElementTerms& element : elements) {
      const Term ds = times(element.ds, row.scale);
      const double* keys = row.keys + element.j * problem_.qk_dim;
      q_.add(query, ds, std::span(keys, static_cast<std::size_t>(problem_.qk_dim)));
      k_.add(key(k_, row, element.j), ds, row.query);
      v_.add(key(v_, row, element.j), times(element.p_w, row.v_descale), loss.d_o);
    }
  }

  // A sink of -inf takes no part; in a row of lse = -inf nothing does.
  bool with_sink(const RowInputs& row, const RowResult& result) const {
    return backward_.of_sinks && row.sink != -kInfinity && result.top != -kInfinity;
  }
  void add_to_sink(const RowInputs& row, const RowResult& result, const RowLoss& loss, bool alone) {
    const Term p = weight_of(row.sink, std::nullopt, result, loss).p;
    // o is 0 whatever dO is where nothing attends.
    const Term delta = alone ? Term{-loss.d_lse, std::abs(loss.d_lse), 0} : loss.delta;
    const Term term = {-p.value * delta.value, p.magnitude * delta.magnitude,
                       p.floor * std::abs(delta.value) + p.magnitude * delta.floor};
    const std::lock_guard lock(mutex_of(row));
    sinks_.add(row.position.h, term);
  }

  const AttentionProblem& problem_;
  const backend::RunArguments& arguments_;
  const BackwardArguments& backward_;
  const double step_, flushed_;
  const ElementMods mods_;
  const Slopes slopes_, slopes_in_reals_;
  GradientSum q_, k_, v_, sinks_;
  ReadSums reads_;
  std::vector<std::mutex> head_mutexes_;  // one a kv head, for its own and its query heads' sums
  std::mutex reads_mutex_;
};

}  // namespace

Gradients attend_backward(const AttentionProblem& problem, const backend::RunArguments& arguments,
                          const BackwardArguments& backward, double step) {
  Backward sums(problem, arguments, backward, step);
  const auto add_row = [&](const RowIndex& index, const RowInputs* row, const RowResult& result) {
    if (row != nullptr) sums.add_row(index, *row, result);
  };
  attend(problem, arguments, step, add_row);
  return sums.finish();
}

}  // namespace heddle::reference
