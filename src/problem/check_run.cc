#include "problem/check_run.h"

#include <string>
#include <utility>

#include "problem/one_device.h"
#include "problem/option_views.h"
#include "problem/pages.h"
#include "problem/refuse.h"
#include "problem/resolve_sequences.h"

namespace heddle::problem {
namespace {

/// The name of a tensor of a run; a sentence is made of it only where something is wrong.
struct TensorName {
  std::string_view name;
  std::string_view of = {};  // "capture", "d_captures", "d_params": the name is one of them
  std::string text() const {
    if (of.empty()) return std::string(name);
    return of == "capture" ? fmt::format("capture '{}'", name) : fmt::format("{}['{}']", of, name);
  }
};

/// Calls f(name, view, footprint) for everything that one run of either pass reads, but o, lse, lse_rest and their
/// gradients.
template <class F>
void for_each_input(const AttentionProblem& problem, const PlannedTensors& planned, const AttentionTensors& given,
                    const AttentionOptions& options, const Bindings& bindings, F&& f) {
  f(TensorName{"q"}, given.q, planned.q);
  f(TensorName{"k"}, given.k, planned.k);
  f(TensorName{"v"}, given.v, planned.v);
  for (const auto& [name, member] : kTensorOptions) {
    const std::optional<ConstTensorView>& view = options.*member;
    if (view) f(TensorName{name}, *view, footprint_of(name, *view));
  }
  for (const auto& [name, member] : kLengthViews) {
    const std::optional<ConstTensorView>& view = options.*member;
    if (problem.device_lengths && view) f(TensorName{name}, *view, footprint_of(name, *view));
  }
  for (const std::string& name : problem.captures) {
    const ConstTensorView& view = bindings.captures.find(name)->second;
    f(TensorName{name, "capture"}, view, footprint_of("capture", view));
  }
}

/// Calls f for the forward's results, which a backward also reads.
template <class F>
void for_each_forward_result(const PlannedTensors& planned, const BackwardTensors& given, F&& f) {
  f(TensorName{"o"}, given.o, planned.o);
  if (given.lse) f(TensorName{"lse"}, *given.lse, planned.lse);
  if (given.lse_rest) f(TensorName{"lse_rest"}, *given.lse_rest, footprint_of("lse_rest", *given.lse_rest));
  f(TensorName{"d_o"}, given.d_o, planned.d_o);
  if (given.d_lse) f(TensorName{"d_lse"}, *given.d_lse, planned.d_lse);
}

/// Calls f(name, view) for what a run writes.
template <class F>
void for_each_output(const AttentionTensors& given, F&& f) {
  f(TensorName{"o"}, given.o);
  if (given.lse) f(TensorName{"lse"}, *given.lse);
  if (given.max_scores) f(TensorName{"max_scores"}, *given.max_scores);
  if (given.lse_rest) f(TensorName{"lse_rest"}, *given.lse_rest);
}
template <class F>
void for_each_output(const BackwardTensors& given, F&& f) {
  const std::pair<std::string_view, const std::optional<TensorView>*> tensors[] = {
      {"dq", &given.dq}, {"dk", &given.dk}, {"dv", &given.dv}, {"d_sinks", &given.d_sinks}};
  for (const auto& [name, view] : tensors) {
    if (*view) f(TensorName{name}, **view);
  }
  for (const auto& [name, view] : given.d_captures) f(TensorName{name, "d_captures"}, view);
  for (const auto& [name, view] : given.d_params) f(TensorName{name, "d_params"}, view);
}

// Strides of axes with at most one element say nothing, nor do those of a tensor without elements.
bool same_layout(const ConstTensorView& x, const Footprint& footprint, const ConstTensorView& y) {
  if (x.dtype != y.dtype || !(x.device == y.device) || !(x.shape == y.shape)) return false;
  if (footprint.bytes == 0) return true;
  if (y.strides.size() != y.rank()) return false;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.shape[axis] > 1 && x.strides[axis] != y.strides[axis]) return false;
  }
  return true;
}

void check_planned(const TensorName& tensor, const ConstTensorView& planned, const Footprint& footprint,
                   const ConstTensorView& given) {
  if (same_layout(planned, footprint, given)) return;
  const std::string name = tensor.text();
  if (!(given.device == planned.device)) {
    refuse("{} is on {}; {}, as planned, is accepted", name, problem::name(given.device),
           problem::name(planned.device));
  }
  refuse("{} is {} with strides {}; the planned {} with strides {} is accepted", name, describe(given),
         to_string(given.strides), describe(planned), to_string(planned.strides));
}

void check_present(const TensorName& name, const ConstTensorView& view, const Footprint& footprint) {
  const auto size = static_cast<std::uintptr_t>(size_of(view.dtype));
  const bool aligned = view.data != nullptr && reinterpret_cast<std::uintptr_t>(view.data) % size == 0;
  if (footprint.bytes > 0 && !aligned) check_memory(name.text(), view);
}

bool share_bytes(const ConstTensorView& x, const Footprint& x_at, const ConstTensorView& y, const Footprint& y_at) {
  return ranges_meet(x, x_at, y, y_at) && overlaps(x, y);
}

template <class View>
void check_given(std::string_view name, const std::optional<View>& planned, const std::optional<View>& given) {
  if (planned.has_value() == given.has_value()) return;
  refuse("{} is {}; the plan was made {} it", name, given ? "given" : "not given", planned ? "with" : "without");
}

template <class View>
void check_planned(std::string_view name, const std::optional<View>& planned, const std::optional<View>& given) {
  check_given(name, planned, given);
  if (given) check_planned(TensorName{name}, *planned, footprint_of(name, *planned), *given);
}

void check_planned(std::string_view of, const NamedViews& planned, const NamedViews& given) {
  for (const auto& [name, view] : given) {
    const auto found = planned.find(name);
    if (found == planned.end()) refuse("{}['{}'] is given; the plan was made without it", of, name);
    check_planned(TensorName{name, of}, found->second, footprint_of(of, found->second), view);
  }
  for (const auto& [name, view] : planned) {
    if (given.find(name) == given.end()) refuse("{}['{}'] is not given; the plan was made with it", of, name);
  }
}

/// q, k, v, o, lse, max_scores and lse_rest are as planned.
void check_shared(const PlannedTensors& planned, const AttentionTensors& given) {
  const AttentionTensors& tensors = planned.tensors;
  check_planned({"q"}, tensors.q, planned.q, given.q);
  check_planned({"k"}, tensors.k, planned.k, given.k);
  check_planned({"v"}, tensors.v, planned.v, given.v);
  check_planned({"o"}, tensors.o, planned.o, given.o);
  check_given("lse", tensors.lse, given.lse);
  if (given.lse) check_planned({"lse"}, *tensors.lse, planned.lse, *given.lse);
  check_planned("max_scores", tensors.max_scores, given.max_scores);
  check_planned("lse_rest", tensors.lse_rest, given.lse_rest);
}

void check_run_pages(const AttentionProblem& problem, const AttentionTensors& given, const AttentionOptions& options,
                     const Bindings& bindings) {
  if (problem.page_rows > 0 && problem.device.kind == DeviceKind::cpu) {
    check_pages(problem, options, bindings, given.k.shape[0]);
  }
}

/// Outputs are present and share no byte with what for_all_inputs(f) visits, nor with each other.
template <class Given, class ForAllInputs>
void check_outputs_apart(const Given& given, ForAllInputs&& for_all_inputs) {
  for_each_output(given, [&](const TensorName& name, const ConstTensorView& output) {
    const Footprint at = footprint_of(name.name, output);
    check_present(name, output, at);
    for_all_inputs([&](const TensorName& input, const ConstTensorView& view, const Footprint& input_at) {
      if (!share_bytes(output, at, view, input_at)) return;
      refuse("{} overlaps {} in memory; an output that shares no byte with an input is accepted", name.text(),
             input.text());
    });
    bool before = true;
    for_each_output(given, [&](const TensorName& other, const ConstTensorView& view) {
      before = before && !(other.name.data() == name.name.data());
      if (!before || !share_bytes(output, at, view, footprint_of(other.name, view))) return;
      refuse("{} overlaps {} in memory; outputs that share no byte are accepted", other.text(), name.text());
    });
  });
}

}  // namespace

PlannedTensors::PlannedTensors(const AttentionTensors& planned)
    : tensors(planned),
      q(footprint_of("q", planned.q)),
      k(footprint_of("k", planned.k)),
      v(footprint_of("v", planned.v)),
      o(footprint_of("o", planned.o)) {
  if (planned.lse) lse = footprint_of("lse", *planned.lse);
}

PlannedTensors::PlannedTensors(const BackwardTensors& planned) : PlannedTensors(forward_tensors(planned)) {
  backward = planned;
  d_o = footprint_of("d_o", planned.d_o);
  if (planned.d_lse) d_lse = footprint_of("d_lse", *planned.d_lse);
}

void validate_run(const AttentionProblem& problem, const PlannedTensors& planned, const AttentionTensors& given,
                  const AttentionOptions& options, const Bindings& bindings) {
  if (problem.pass != Pass::forward) {
    refuse("the plan is of a backward, and a forward's tensors are given; a backward's are accepted");
  }
  check_shared(planned, given);
  const auto for_all_inputs = [&](auto&& f) { for_each_input(problem, planned, given, options, bindings, f); };
  for_all_inputs(check_present);
  check_run_pages(problem, given, options, bindings);
  check_outputs_apart(given, for_all_inputs);
}

void validate_run(const AttentionProblem& problem, const PlannedTensors& planned, const BackwardTensors& given,
                  const AttentionOptions& options, const Bindings& bindings) {
  if (problem.pass != Pass::backward) {
    refuse("the plan is of a forward, and a backward's tensors are given; a forward's are accepted");
  }
  const AttentionTensors shared = forward_tensors(given);
  check_shared(planned, shared);
  const BackwardTensors& tensors = *planned.backward;
  check_planned({"d_o"}, tensors.d_o, planned.d_o, given.d_o);
  check_planned("d_lse", tensors.d_lse, given.d_lse);
  check_planned("dq", tensors.dq, given.dq);
  check_planned("dk", tensors.dk, given.dk);
  check_planned("dv", tensors.dv, given.dv);
  check_planned("d_sinks", tensors.d_sinks, given.d_sinks);
  check_planned("d_captures", tensors.d_captures, given.d_captures);
  check_planned("d_params", tensors.d_params, given.d_params);
  const auto for_all_inputs = [&](auto&& f) {
    for_each_input(problem, planned, shared, options, bindings, f);
    for_each_forward_result(planned, given, f);
  };
  for_all_inputs(check_present);
  check_outputs_apart(given, for_all_inputs);
}

void check_planned_options(const AttentionProblem& problem, const AttentionOptions& planned,
                           const AttentionOptions& given) {
  const auto check = [](std::string_view name, const std::optional<ConstTensorView>& own,
                        const std::optional<ConstTensorView>& other) {
    check_given(name, own, other);
    if (!own) return;
    if (own->dtype == other->dtype && own->device == other->device && own->shape == other->shape &&
        own->strides == other->strides) {
      return;
    }
    refuse("{} is {} with strides {} on {}; the planned {} with strides {} on {} is accepted", name, describe(*other),
           to_string(other->strides), problem::name(other->device), describe(*own), to_string(own->strides),
           problem::name(own->device));
  };
  for (const auto& [name, member] : kTensorOptions) check(name, planned.*member, given.*member);
  if (!problem.device_lengths) return;
  for (const auto& [name, member] : kLengthViews) check(name, planned.*member, given.*member);
}

bool fits_planned(const AttentionProblem& problem, const Bindings& planned, const Bindings& given) {
  for (const std::string& name : problem.params) {
    const auto own = given.params.find(name);
    if (own == given.params.end() || own->second.index() != planned.params.find(name)->second.index()) return false;
  }
  for (const std::string& name : problem.captures) {
    const auto own = given.captures.find(name);
    if (own == given.captures.end()) return false;
    const ConstTensorView& view = own->second;
    const ConstTensorView& known = planned.captures.find(name)->second;
    if (view.dtype != known.dtype || !(view.device == known.device) || !(view.shape == known.shape) ||
        !(view.strides == known.strides)) {
      return false;
    }
  }
  return true;
}

}  // namespace heddle::problem
