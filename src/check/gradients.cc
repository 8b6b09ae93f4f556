#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/on_host.h"
#include "check/criterion.h"
#include "check/host_copies.h"
#include "check/plain.h"
#include "check/plain_backward.h"
#include "check/reached.h"
#include "heddle/check.h"
#include "problem/check_run.h"

namespace heddle::check {
namespace {

// By row-major number.
double element_of(const Tensor& tensor, std::int64_t i) { return static_cast<const double*>(tensor.data())[i]; }

class GradientJudge {
 public:
  GradientJudge(const problem::AttentionProblem& problem, bool on_gpu)
      : unit_(std::max(storage_unit(problem), unit_of(problem.o_dtype))),
        step_(sum_step(problem, on_gpu)),
        largest_(problem.precision == expr::Precision::f64 ? std::numeric_limits<double>::max()
                                                           : std::numeric_limits<float>::max()) {}

  double step() const { return step_; }

  /// reached: elements that need not be finite; may be empty.
  void add(const std::string& name, const ConstTensorView& given, const reference::Gradient& reference,
           const Tensor& plain, const std::vector<bool>& reached) {
    const Tensor values = copy(given, DType::f64);  // row-major
    Criterion criterion(given.dtype, true);
    for (std::int64_t i = 0; i < values.count(); ++i) {
      const double value = element_of(values, i);
      const double exact = element_of(reference.value, i);
      const bool may_be_any = !reached.empty() && reached[static_cast<std::size_t>(i)] && std::isfinite(exact);
      if (may_be_any && !std::isfinite(value)) continue;
      if (std::isfinite(exact) && !(element_of(reference.magnitude, i) <= largest_)) continue;
      const double floor = element_of(reference.floor, i);
      criterion.add({.value = value,
                     .reference = exact,
                     .plain = round_to(given.dtype, element_of(plain, i)),
                     .floor = floor,
                     .tolerance = 4 * unit_ * element_of(reference.magnitude, i) + floor});
    }
    report_.tensors[name] = criterion.finish();
  }

  /// Adds the gradients of captures, or of params. One on which no mod depends smoothly is 0.
  void add(std::string_view of, const NamedViews& given, const std::map<std::string, reference::Gradient>& reference,
           const std::map<std::string, Tensor>& plain) {
    for (const auto& [name, view] : given) {
      const auto found = reference.find(name);
      const Tensor zeros = Tensor::zeros(DType::f64, view.shape);
      add(fmt::format("{}['{}']", of, name), view,
          found != reference.end() ? found->second : reference::Gradient{zeros, zeros, zeros},
          found != reference.end() ? plain.at(name) : zeros, {});
    }
  }

  GradientReport report() {
    report_.passed = true;
    for (const auto& [name, check] : report_.tensors) report_.passed = report_.passed && check.passed;
    return report_;
  }

 private:
  const double unit_, step_, largest_;
  GradientReport report_;
};

}  // namespace
}  // namespace heddle::check

namespace heddle {

std::string GradientReport::text() const {
  return check::table(std::vector<std::pair<std::string, TensorCheck>>(tensors.begin(), tensors.end()));
}

namespace {

GradientReport check_on_host(const BackwardTensors& given, const AttentionOptions& options, bool on_gpu) {
  const problem::AttentionProblem problem = problem::validate(given, options);
  problem::validate_run(problem, problem::PlannedTensors(given), given, options, options.bindings);
  const AttentionTensors tensors = problem::forward_tensors(given);
  const backend::RunArguments arguments = {.tensors = tensors,
                                           .options = &options,
                                           .bindings = &options.bindings,
                                           .block_mask = options.block_mask.get(),
                                           .workspace = nullptr};
  const reference::BackwardArguments backward = {.d_o = given.d_o,
                                                 .d_lse = given.d_lse,
                                                 .of = {!given.d_captures.empty(), !given.d_params.empty()},
                                                 .of_sinks = given.d_sinks.has_value()};

  check::GradientJudge judge(problem, on_gpu);
  const reference::Gradients reference = reference::attend_backward(problem, arguments, backward, judge.step());
  const check::PlainGradients plain =
      check::plain_backward(problem, arguments, backward, {given.o, given.lse, given.lse_rest});
  const check::ReachedByMasked reached =
      on_gpu ? check::reached_by_masked(problem, tensors, options, given.d_o) : check::ReachedByMasked{};
  if (given.dq) judge.add("dq", *given.dq, reference.q, plain.q, reached.q);
  if (given.dk) judge.add("dk", *given.dk, reference.k, plain.k, reached.k);
  if (given.dv) judge.add("dv", *given.dv, reference.v, plain.v, reached.v);
  if (given.d_sinks) judge.add("d_sinks", *given.d_sinks, *reference.sinks, plain.sinks, {});
  judge.add("d_captures", given.d_captures, reference.captures, plain.captures);
  judge.add("d_params", given.d_params, reference.params, plain.params);
  return judge.report();
}

}  // namespace

GradientReport check_backward(const BackwardTensors& tensors, const AttentionOptions& options) {
  if (options.partial_keys) {
    throw Error(
        ErrorCode::invalid_argument,
        "partial_keys is set; check_backward finds o and lse of the keys itself, so gradients of all are accepted");
  }
  // Copies of what a GPU computed are known by the options.
  if (tensors.q.device.kind == DeviceKind::cpu) {
    return check_on_host(tensors, options,
                         options.backend == BackendChoice::cuda || options.backend == BackendChoice::amd);
  }
  const problem::AttentionProblem problem = problem::validate(tensors, options);  // before anything is copied
  problem::validate_run(problem, problem::PlannedTensors(tensors), tensors, options, options.bindings);
  base::OnHost host;
  return check_on_host(check::on_host(host, tensors), check::on_host(host, options), true);
}

}  // namespace heddle
