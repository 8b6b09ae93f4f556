#include "heddle/check.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "base/element.h"
#include "check/criterion.h"
#include "check/host_copies.h"
#include "check/plain.h"
#include "problem/check_run.h"
#include "reference/attend.h"

namespace heddle {
namespace {

double element_at(const ConstTensorView& view, const reference::RowIndex& index, std::int64_t column) {
  const std::int64_t row = index.batch * view.strides[0] + index.head * view.strides[1] + index.row * view.strides[2];
  return base::load_element(view.data, view.dtype, row + column);
}

// Judges the rows of one attention.
class RowJudge {
 public:
  RowJudge(const problem::AttentionProblem& problem, const AttentionTensors& tensors, bool on_gpu)
      : on_gpu_(on_gpu),
        unit_(check::storage_unit(problem)),
        step_(check::sum_step(problem, on_gpu)),
        o_(tensors.o),
        lse_(tensors.lse),
        max_scores_(tensors.max_scores),
        lse_rest_(tensors.lse_rest),
        o_criterion_(o_.dtype, true),
        lse_criterion_(lse_ ? lse_->dtype : DType::f32, false),
        max_scores_criterion_(max_scores_ ? max_scores_->dtype : DType::f32, true),
        lse_rest_criterion_(lse_rest_ ? lse_rest_->dtype : DType::f32, false) {}

  /// inputs: null past the end of a sequence.
  void add(const reference::RowIndex& index, const reference::RowInputs* inputs, const reference::RowResult& reference,
           const check::PlainRow& plain) {
    check::Criterion own_o(o_.dtype, true);
    for (std::size_t d = 0; d < reference.o.size(); ++d) {
      if (inputs != nullptr && is_reached_by_masked_value(index, *inputs, reference, d)) continue;
      const double floor = reference.floor[d];
      own_o.add({.value = element_at(o_, index, static_cast<std::int64_t>(d)),
                 .reference = reference.o[d],
                 .plain = plain.o[d],
                 .floor = floor,
                 .tolerance = 4 * unit_ * reference.magnitude[d] + floor,
                 .rounding = plain.roundings.empty() ? 0 : plain.roundings[d],
                 .alike = plain.round_alike});
    }
    const std::lock_guard lock(mutex_);
    o_criterion_.merge(own_o);
    add_number(lse_, lse_criterion_, index, lse_floor(reference), reference.lse(), plain.lse);
    add_number(max_scores_, max_scores_criterion_, index, max_score_floor(reference), reference.max_score,
               plain.max_score);
    if (lse_rest_) add_lse_rest(index, reference, plain);
  }

  /// The rounding of one step of a sum.
  double step() const { return step_; }

  CheckReport report() const {
    CheckReport report;
    report.o = o_criterion_.finish();
    if (lse_) report.lse = lse_criterion_.finish();
    if (max_scores_) report.max_scores = max_scores_criterion_.finish();
    if (lse_rest_) report.lse_rest = lse_rest_criterion_.finish();
    report.passed = report.o.passed;
    for (const auto* of : {&report.lse, &report.max_scores, &report.lse_rest}) {
      report.passed = report.passed && (!*of || (*of)->passed);
    }
    return report;
  }

 private:
  /// e * max(1, |x|), but no more than 8 e: the size of x says too little of what a mod cancelled, and too much of 1e6.
  static double by_size(double e, double x) { return e * std::min(std::max(1.0, std::abs(x)), 8.0); }
  double lse_floor(const reference::RowResult& reference) const {
    const reference::RowBounds& bounds = reference.bounds;
    const double lse = reference.lse();
    if (bounds.proven) return bounds.lse_floor + step_ * std::max(1.0, std::abs(lse));
    return by_size(bounds.lse_floor, lse);
  }
  double max_score_floor(const reference::RowResult& reference) const {
    const double e = step_ * (1 + reference.bounds.score_terms);
    return reference.bounds.proven ? e : by_size(e, reference.max_score);
  }

  /// One number of a row: its lse or its largest score, if `of` has it.
  void add_number(const std::optional<ConstTensorView>& of, check::Criterion& criterion,
                  const reference::RowIndex& index, double floor, double reference, double plain) const {
    if (!of) return;
    criterion.add({.value = element_at(*of, index, 0),
                   .reference = reference,
                   .plain = plain,
                   .floor = floor,
                   .tolerance = floor});
  }

  /// lse_rest is judged as the rest of the given lse, so that both words together may err as the row's scores do.
  void add_lse_rest(const reference::RowIndex& index, const reference::RowResult& reference,
                    const check::PlainRow& plain) {
    const double stored = element_at(*lse_, index, 0);
    const double rest = reference.lse_rest(stored);
    const double floor = reference.bounds.lse_floor + step_ * std::abs(rest);
    lse_rest_criterion_.add({.value = element_at(*lse_rest_, index, 0),
                             .reference = rest,
                             .plain = reference.top == -INFINITY ? 0 : (plain.top - stored) + plain.log_sum,
                             .floor = floor,
                             .tolerance = floor});
  }

  /// A GPU's tiles multiply masked values by 0, so a value that is not finite may reach rows that do not attend it. If
  /// the reference is finite, every such value of the column is masked for the row.
  bool is_reached_by_masked_value(const reference::RowIndex& index, const reference::RowInputs& inputs,
                                  const reference::RowResult& reference, std::size_t column) const {
    if (!on_gpu_ || !std::isfinite(reference.o[column])) return false;
    if (std::isfinite(element_at(o_, index, static_cast<std::int64_t>(column)))) return false;
    for (std::int64_t j = 0; j < inputs.kv_len; ++j) {
      if (!std::isfinite(inputs.values[j * std::ssize(reference.o) + static_cast<std::int64_t>(column)])) return true;
    }
    return false;
  }

  const bool on_gpu_;
  const double unit_, step_;
  const ConstTensorView o_;
  const std::optional<ConstTensorView> lse_, max_scores_, lse_rest_;
  std::mutex mutex_;
  check::Criterion o_criterion_, lse_criterion_, max_scores_criterion_, lse_rest_criterion_;
};

}  // namespace

std::string CheckReport::text() const {
  std::vector<std::pair<std::string, TensorCheck>> rows = {{"o", o}};
  if (lse) rows.emplace_back("lse", *lse);
  if (max_scores) rows.emplace_back("max_scores", *max_scores);
  if (lse_rest) rows.emplace_back("lse_rest", *lse_rest);
  return check::table(rows);
}

namespace {

CheckReport check_on_host(const AttentionTensors& tensors, const AttentionOptions& options, bool on_gpu) {
  const problem::AttentionProblem problem = problem::validate(tensors, options);
  problem::validate_run(problem, problem::PlannedTensors(tensors), tensors, options, options.bindings);

  const backend::RunArguments arguments = {.tensors = tensors,
                                           .options = &options,
                                           .bindings = &options.bindings,
                                           .block_mask = options.block_mask.get(),
                                           .workspace = nullptr};
  const reference::ElementMods plain_mods(problem, arguments, problem.precision);
  const check::PlainRow nothing = {.o = std::vector<double>(static_cast<std::size_t>(problem.v_dim)),
                                   .top = -INFINITY,
                                   .log_sum = 0,
                                   .max_score = -INFINITY,
                                   .roundings = {},
                                   .round_alike = false,
                                   .lse = -INFINITY};
  RowJudge judge(problem, tensors, on_gpu);
  reference::attend(
      problem, arguments, judge.step(),
      [&](const reference::RowIndex& index, const reference::RowInputs* inputs, const reference::RowResult& result) {
        judge.add(index, inputs, result, inputs != nullptr ? check::plain_row(problem, plain_mods, *inputs) : nothing);
      });
  return judge.report();
}

}  // namespace

CheckReport check_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                            const AttentionOptions& options, const ConstTensorView& o,
                            const std::optional<ConstTensorView>& lse, const std::optional<ConstTensorView>& max_scores,
                            const std::optional<ConstTensorView>& lse_rest) {
  AttentionTensors tensors = {q, k, v, check::as_output(o), {}};
  if (lse) tensors.lse = check::as_output(*lse);
  if (max_scores) tensors.max_scores = check::as_output(*max_scores);
  if (lse_rest) tensors.lse_rest = check::as_output(*lse_rest);
  // Copies of what a GPU computed are known by the options.
  if (q.device.kind == DeviceKind::cpu) {
    return check_on_host(tensors, options,
                         options.backend == BackendChoice::cuda || options.backend == BackendChoice::amd);
  }

  const problem::AttentionProblem problem = problem::validate(tensors, options);  // before anything is copied
  problem::validate_run(problem, problem::PlannedTensors(tensors), tensors, options, options.bindings);
  base::OnHost host;
  AttentionTensors copies = {host.view(q), host.view(k), host.view(v), check::as_output(host.view(o)), {}};
  if (lse) copies.lse = check::as_output(host.view(*lse));
  if (max_scores) copies.max_scores = check::as_output(host.view(*max_scores));
  if (lse_rest) copies.lse_rest = check::as_output(host.view(*lse_rest));
  return check_on_host(copies, check::on_host(host, options), true);
}

}  // namespace heddle
