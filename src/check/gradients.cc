#include "check/gradients.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "check/criterion.h"
#include "check/plain.h"
#include "check/reached.h"
#include "problem/run.h"

namespace heddle::check {
namespace {

// By row-major number.
double element_of(const Tensor& tensor, std::int64_t i) { return static_cast<const double*>(tensor.data())[i]; }

class GradientJudge {
 public:
  GradientJudge(const problem::AttentionProblem& problem, bool on_gpu)
      : unit_(storage_unit(problem)), step_(sum_step(problem, on_gpu)) {}

  double step() const { return step_; }

  /// reached: elements that need not be finite; may be empty.
  void add(const std::string& name, const ConstTensorView& given, const reference::Gradient& reference,
           const Tensor& plain, const std::vector<bool>& reached) {
    if (!(given.shape == reference.value.shape())) {
      throw Error(ErrorCode::internal, fmt::format("{} has shape {}; {} is accepted", name, to_string(given.shape),
                                                   to_string(reference.value.shape())));
    }
    const Tensor values = copy(given, DType::f64);  // row-major
    Criterion criterion(given.dtype, true);
    for (std::int64_t i = 0; i < values.count(); ++i) {
      const double value = element_of(values, i);
      const double exact = element_of(reference.value, i);
      const bool may_be_any = !reached.empty() && reached[static_cast<std::size_t>(i)] && std::isfinite(exact);
      if (may_be_any && !std::isfinite(value)) continue;
      const double floor = element_of(reference.floor, i);
      criterion.add({.value = value,
                     .reference = exact,
                     .plain = round_to(given.dtype, element_of(plain, i)),
                     .floor = floor,
                     .tolerance = 4 * unit_ * element_of(reference.magnitude, i) + floor});
    }
    report_.tensors[name] = criterion.finish();
  }

  /// Those of captures, or of params. A gradient of what no mod depends on smoothly is 0.
  void add(const std::map<std::string, ConstTensorView>& given,
           const std::map<std::string, reference::Gradient>& reference, const std::map<std::string, Tensor>& plain) {
    for (const auto& [name, view] : given) {
      const auto found = reference.find(name);
      if (found == reference.end()) {
        throw Error(ErrorCode::internal, fmt::format("{} has no gradient: no mod depends on it smoothly", name));
      }
      add("d " + name, view, found->second, plain.at(name), {});
    }
  }

  GradientReport report() {
    report_.passed = true;
    for (const auto& [name, check] : report_.tensors) report_.passed = report_.passed && check.passed;
    return report_;
  }

 private:
  const double unit_, step_;
  GradientReport report_;
};

}  // namespace

std::string GradientReport::text() const {
  return table(std::vector<std::pair<std::string, TensorCheck>>(tensors.begin(), tensors.end()));
}

GradientReport check_gradients(const AttentionTensors& tensors, const AttentionOptions& options,
                               const ConstTensorView& d_o, const std::optional<ConstTensorView>& d_lse,
                               const GivenGradients& given) {
  const problem::AttentionProblem problem = problem::validate(tensors, options);
  problem::validate_run(problem, problem::PlannedTensors(tensors), tensors, options, options.bindings);
  const backend::RunArguments arguments = {.tensors = tensors,
                                           .options = &options,
                                           .bindings = &options.bindings,
                                           .block_mask = options.block_mask.get(),
                                           .workspace = nullptr};
  const reference::BackwardArguments backward = {.d_o = d_o,
                                                 .d_lse = d_lse,
                                                 .of = {!given.captures.empty(), !given.params.empty()},
                                                 .of_sinks = given.sinks.has_value()};
  StoredResults stored{tensors.o, {}};
  if (tensors.lse) stored.lse = *tensors.lse;

  const bool on_gpu = options.backend == BackendChoice::cuda;
  GradientJudge judge(problem, on_gpu);
  const reference::Gradients reference = reference::attend_backward(problem, arguments, backward, judge.step());
  const PlainGradients plain = plain_backward(problem, arguments, backward, stored);
  const ReachedByMasked reached = on_gpu ? reached_by_masked(problem, tensors, options, d_o) : ReachedByMasked{};
  judge.add("dq", given.q, reference.q, plain.q, reached.q);
  judge.add("dk", given.k, reference.k, plain.k, reached.k);
  judge.add("dv", given.v, reference.v, plain.v, reached.v);
  if (given.sinks) judge.add("dsinks", *given.sinks, *reference.sinks, plain.sinks, {});
  judge.add(given.captures, reference.captures, plain.captures);
  judge.add(given.params, reference.params, plain.params);
  return judge.report();
}

}  // namespace heddle::check
