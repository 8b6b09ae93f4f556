#include "problem/run.h"

#include <string>
#include <utility>

#include "problem/pages.h"
#include "problem/places.h"
#include "problem/refuse.h"
#include "problem/sequences.h"

namespace heddle::problem {
namespace {

/// The name of a tensor that a run reads; a sentence is made of it only where something is wrong.
struct InputName {
  std::string_view name;
  bool capture = false;
  std::string text() const { return capture ? fmt::format("capture '{}'", name) : std::string(name); }
};

/// Calls f(name, view, footprint) for everything that one run reads.
template <class F>
void for_each_input(const AttentionProblem& problem, const PlannedTensors& planned, const AttentionTensors& given,
                    const AttentionOptions& options, const Bindings& bindings, F&& f) {
  f(InputName{"q"}, given.q, planned.q);
  f(InputName{"k"}, given.k, planned.k);
  f(InputName{"v"}, given.v, planned.v);
  const std::pair<std::string_view, const std::optional<ConstTensorView>*> optional_inputs[] = {
      {"page_table", &options.page_table},
      {"sinks", &options.sinks},
      {"q_descale", &options.q_descale},
      {"k_descale", &options.k_descale},
      {"v_descale", &options.v_descale}};
  for (const auto& [name, view] : optional_inputs) {
    if (*view) f(InputName{name}, **view, footprint_of(name, **view));
  }
  for (const auto& [name, member] : kLengthViews) {
    const std::optional<ConstTensorView>& view = options.*member;
    if (problem.device_lengths && view) f(InputName{name}, *view, footprint_of(name, *view));
  }
  for (const std::string& name : problem.captures) {
    const ConstTensorView& view = bindings.captures.find(name)->second;
    f(InputName{name, true}, view, footprint_of("capture", view));
  }
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

void check_planned(std::string_view name, const ConstTensorView& planned, const Footprint& footprint,
                   const ConstTensorView& given) {
  if (same_layout(planned, footprint, given)) return;
  if (!(given.device == planned.device)) {
    refuse("{} is on {}; {}, as planned, is accepted", name, problem::name(given.device),
           problem::name(planned.device));
  }
  refuse("{} is {} with strides {}; the planned {} with strides {} is accepted", name, describe(given),
         to_string(given.strides), describe(planned), to_string(planned.strides));
}

void check_present(const InputName& name, const ConstTensorView& view, const Footprint& footprint) {
  const auto size = static_cast<std::uintptr_t>(size_of(view.dtype));
  const bool aligned = view.data != nullptr && reinterpret_cast<std::uintptr_t>(view.data) % size == 0;
  if (footprint.bytes > 0 && !aligned) check_memory(name.text(), view);
}

bool share_bytes(const ConstTensorView& x, const Footprint& x_at, const ConstTensorView& y, const Footprint& y_at) {
  return ranges_meet(x, x_at, y, y_at) && overlaps(x, y);
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

void validate_run(const AttentionProblem& problem, const PlannedTensors& planned, const AttentionTensors& given,
                  const AttentionOptions& options, const Bindings& bindings) {
  const AttentionTensors& tensors = planned.tensors;
  check_planned("q", tensors.q, planned.q, given.q);
  check_planned("k", tensors.k, planned.k, given.k);
  check_planned("v", tensors.v, planned.v, given.v);
  check_planned("o", tensors.o, planned.o, given.o);
  if (tensors.lse.has_value() != given.lse.has_value()) {
    refuse("lse is {}; the plan was made {} it", given.lse ? "given" : "not given", tensors.lse ? "with" : "without");
  }
  if (given.lse) check_planned("lse", *tensors.lse, planned.lse, *given.lse);

  const auto check_output = [&](std::string_view name, const ConstTensorView& output, const Footprint& at) {
    check_present({name}, output, at);
    for_each_input(problem, planned, given, options, bindings,
                   [&](const InputName& input, const ConstTensorView& view, const Footprint& input_at) {
                     if (!share_bytes(output, at, view, input_at)) return;
                     refuse("{} overlaps {} in memory; an output that shares no byte with an input is accepted", name,
                            input.text());
                   });
  };
  for_each_input(problem, planned, given, options, bindings, check_present);
  if (problem.page_rows > 0 && problem.device.kind == DeviceKind::cpu) {
    check_pages(problem, *options.page_table, given.k.shape[0]);
  }
  check_output("o", given.o, planned.o);
  if (!given.lse) return;
  check_output("lse", *given.lse, planned.lse);
  if (share_bytes(given.o, planned.o, *given.lse, planned.lse)) {
    refuse("o overlaps lse in memory; outputs that share no byte are accepted");
  }
}

void check_planned_options(const AttentionProblem& problem, const AttentionOptions& planned,
                           const AttentionOptions& given) {
  const auto check = [](std::string_view name, const std::optional<ConstTensorView>& own,
                        const std::optional<ConstTensorView>& other) {
    if (own.has_value() != other.has_value()) {
      refuse("{} is {}; the plan was made {} it", name, other ? "given" : "not given", own ? "with" : "without");
    }
    if (!own) return;
    if (own->dtype == other->dtype && own->device == other->device && own->shape == other->shape &&
        own->strides == other->strides) {
      return;
    }
    refuse("{} is {} with strides {} on {}; the planned {} with strides {} on {} is accepted", name, describe(*other),
           to_string(other->strides), problem::name(other->device), describe(*own), to_string(own->strides),
           problem::name(own->device));
  };
  check("sinks", planned.sinks, given.sinks);
  check("page_table", planned.page_table, given.page_table);
  check("q_descale", planned.q_descale, given.q_descale);
  check("k_descale", planned.k_descale, given.k_descale);
  check("v_descale", planned.v_descale, given.v_descale);
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
