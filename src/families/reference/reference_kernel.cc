#include "families/reference/reference_kernel.h"

#include "base/element.h"
#include "base/store.h"
#include "reference/attend.h"
#include "reference/reference_backward.h"

namespace heddle::reference {
namespace {

using backend::RunArguments;

class ReferenceKernel final : public backend::Kernel {
 public:
  explicit ReferenceKernel(const problem::AttentionProblem& problem) : problem_(problem) {}

  void launch(const RunArguments& arguments) const override {
    const TensorView& o = arguments.tensors.o;
    attend(problem_, arguments, 0, [&](const RowIndex& at, const RowInputs*, const RowResult& row) {
      std::int64_t offset = at.batch * o.strides[0] + at.head * o.strides[1] + at.row * o.strides[2];
      for (double x : row.o) base::store_element(o.data, o.dtype, offset++, x);
      if (arguments.tensors.lse) store_lse(arguments.tensors, at, row);
      if (arguments.tensors.max_scores) {
        store_number(*arguments.tensors.max_scores, at, row.max_score);
      }
    });
  }

  base::JsonTree facts() const override {
    return base::JsonTree::object().add(
        "summary", "float64, row by row; score and weight mods interpreted unsimplified in float64");
  }

 private:
  static void store_lse(const AttentionTensors& tensors, const RowIndex& at, const RowResult& row) {
    store_number(*tensors.lse, at, row.lse());
    if (!tensors.lse_rest) return;
    const double stored = get_element(*tensors.lse, {at.batch, at.head, at.row});
    store_number(*tensors.lse_rest, at, row.lse_rest(stored));
  }
  static void store_number(const TensorView& to, const RowIndex& at, double x) {
    const std::int64_t offset = at.batch * to.strides[0] + at.head * to.strides[1] + at.row * to.strides[2];
    base::store_element(to.data, to.dtype, offset, x);
  }

  problem::AttentionProblem problem_;
};

// Stores what attend_backward() sums up.
class ReferenceBackwardKernel final : public backend::Kernel {
 public:
  explicit ReferenceBackwardKernel(const problem::AttentionProblem& problem) : problem_(problem) {}

  void launch(const RunArguments& arguments) const override {
    const BackwardTensors& tensors = *arguments.backward;
    const problem::WantedGradients& wanted = problem_.wanted;
    const BackwardArguments backward = {.d_o = tensors.d_o,
                                        .d_lse = tensors.d_lse,
                                        .of = {.captures = !wanted.captures.empty(), .params = !wanted.params.empty()},
                                        .of_sinks = wanted.sinks};
    const Gradients gradients = attend_backward(problem_, arguments, backward, 0);
    store(gradients.q, tensors.dq);
    store(gradients.k, tensors.dk);
    store(gradients.v, tensors.dv);
    if (tensors.d_sinks) store(*gradients.sinks, tensors.d_sinks);
    store(gradients.captures, tensors.d_captures);
    store(gradients.params, tensors.d_params);
  }

  base::JsonTree facts() const override {
    return base::JsonTree::object()
        .add("summary", "float64, row by row; derivatives of the mods interpreted unsimplified in float64")
        .add("recomputed", "o, lse, scores and weights, in float64; the stored o, lse and lse_rest are not read");
  }

 private:
  static void store(const Gradient& gradient, const std::optional<TensorView>& to) {
    if (to) base::store_row_major(static_cast<const double*>(gradient.value.data()), *to);
  }
  // A capture or param on which no mod depends smoothly has no sum: its gradient is 0.
  static void store(const std::map<std::string, Gradient>& gradients, const NamedViews& to) {
    for (const auto& [name, view] : to) {
      const auto found = gradients.find(name);
      const Tensor sum = found != gradients.end() ? found->second.value : Tensor::zeros(DType::f64, view.shape);
      base::store_row_major(static_cast<const double*>(sum.data()), view);
    }
  }

  problem::AttentionProblem problem_;
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments) {
  if (arguments.problem.pass == problem::Pass::backward) {
    return std::make_unique<ReferenceBackwardKernel>(arguments.problem);
  }
  return std::make_unique<ReferenceKernel>(arguments.problem);
}

}  // namespace heddle::reference

namespace heddle::plan {

std::vector<Choice> reference_choices(const Request& request, const RowsOf& rows_of) {
  Plan plan;
  plan.threads = request.options.threads > 0 ? request.options.threads : request.machine.cpu.cores;
  plan.forms = {.score = request.problem.score_mod.empty() ? "" : "interpreted in f64, unsimplified",
                .mask = request.problem.mask_mod.empty() ? "" : "interpreted, unsimplified",
                .weight = request.problem.weight_mod.empty() ? "" : "interpreted in f64, unsimplified"};
  return {{plan, rows_of(plan.tile)}};
}

}  // namespace heddle::plan
