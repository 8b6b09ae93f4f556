#include "recorded_calls.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>

#include "heddle/error.h"
#include "heddle/expr.h"
#include "packed_views.h"
#include "shared_block_mask.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

constexpr std::size_t kInputs = 3;              // q, k and v
constexpr const char* kDetached = "detached_";  // heddle/torch/_tracing/recording.py: DETACHED_PREFIX

nb::any nothing() { return nb::borrow<nb::any>(nb::none()); }

bool is_aligned(const ReadOnly& x) {
  const std::uintptr_t size = std::max(x.dtype().bits / 8U, 1U);  // elements may be smaller than a byte
  return reinterpret_cast<std::uintptr_t>(x.data()) % size == 0 || x.device_type() != kCpu;
}

constexpr std::size_t kPackedRank = 3;

/// Whether torch.empty_like(x) is what a gradient of rows is written to.
bool has_plain_gradient(const ReadOnly& x) {
  if ((x.ndim() != 4 && x.ndim() != kPackedRank) || x.dtype().bits <= 8 || !is_aligned(x)) return false;
  const std::size_t last = x.ndim() - 1;
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (x.stride(axis) == 0) return false;
  }
  return x.stride(last) == 1;
}

constexpr int kFloatCode = 2, kBfloatCode = 4;  // of DLPack

/// Whether a gradient has the capture's own type, if one is asked for.
bool has_own_gradient(const ReadOnly& x) {
  const bool is_floating = x.dtype().code == kFloatCode || x.dtype().code == kBfloatCode;
  return !is_floating || x.dtype().bits > 8;
}

nb::object tuple_of(const std::vector<nb::object>& items) {
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (std::size_t i = 0; i < items.size(); ++i) {
    PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), nb::object(items[i]).release().ptr());
  }
  return made;
}

std::vector<nb::handle> handles_of(const nb::tuple& tuple) {
  std::vector<nb::handle> made(tuple.size());
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = tuple[i];
  return made;
}

/// Takes rows of gradients, which may come expanded: a copy of those that are not contiguous.
bool take_rows(const TorchNames& torch, nb::handle object, ReadOnly& array) {
  if (!torch.take(object, array)) return false;
  const std::size_t last = array.ndim() - 1;
  if (array.ndim() == 0 || array.stride(last) == 1 || array.shape(last) == 1) return true;
  const nb::object rows = nb::getattr(object, "contiguous")();
  return torch.take(rows, array);
}

TensorView writable(const nb::object& tensor) {
  Array array;
  if (!array.take_new(tensor)) throw Error(ErrorCode::internal, "torch made a tensor without memory");
  return view_of(array, "a result");
}

/// Entry `i` of the first axis.
template <class View>
View entry_of(const View& whole, std::int64_t i) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  View entry = whole;
  entry.data = static_cast<Byte*>(whole.data) + i * whole.strides[0] * size_of(whole.dtype);
  entry.shape = {}, entry.strides = {};
  for (int axis = 1; axis < whole.rank(); ++axis) {
    entry.shape.push_back(whole.shape[axis]);
    entry.strides.push_back(whole.strides[axis]);
  }
  return entry;
}

bool is_read_by(const Expr& mod, const std::string& capture) {
  return !mod.empty() && symbols_of(mod).captures.contains(capture);
}

bool is_true(nb::handle object) { return PyObject_IsTrue(object.ptr()) == 1; }

}  // namespace

/// An option that says how long sequences are: where it stands, as Python gives it and as the library takes it.
struct RecordedCall::Lengths {
  const char* name;
  Given Arguments::*given;
  std::optional<ConstTensorView> AttentionOptions::*view;
};

const std::array<RecordedCall::Lengths, 3> RecordedCall::kLengths = {
    {{"cu_seqlens_q", &Arguments::cu_seqlens_q, &AttentionOptions::cu_seqlens_q},
     {"cu_seqlens_kv", &Arguments::cu_seqlens_kv, &AttentionOptions::cu_seqlens_kv},
     {"kv_lengths", &Arguments::kv_lengths, &AttentionOptions::kv_lengths}}};

/// New tensors for gradients.
class RecordedCall::Gradients {
 public:
  explicit Gradients(std::size_t count) : made_(1 + count, nb::none()) {}

  /// Makes one for the tensor `place`. False if torch made something else.
  bool make(const nb::object& function, nb::handle of, std::size_t place, const char* name,
            std::optional<TensorView>& view) {
    made_[1 + place] = function(of);
    Array array;
    if (!array.take_new(made_[1 + place])) return false;
    view = view_of(array, name);
    return true;
  }
  nb::any to_python() const { return nb::borrow<nb::any>(tuple_of(made_)); }

 private:
  std::vector<nb::object> made_;  // behind one None
};

RecordedCall::RecordedCall(std::shared_ptr<const TorchNames> torch, const std::array<const ReadOnly*, 3>& inputs,
                           Arguments&& arguments, Settings settings, nb::object lists, bool with_lse)
    : torch_(std::move(torch)),
      arguments_(std::move(arguments)),
      settings_(std::move(settings)),
      lists_(std::move(lists)),
      with_lse_(with_lse),
      is_on_gpu_(inputs[0]->device_type() == kCuda),
      is_packed_(inputs[0]->ndim() == kPackedRank) {
  arrays_.reserve(kInputs + arguments_.values.captures.size() + kLengths.size());
  for (const ReadOnly* x : inputs) arrays_.push_back(*x);
  for (const auto& [name, array] : arguments_.values.captures) {
    names_.push_back(name);
    arrays_.push_back(array);
  }
  arguments_.values.captures.clear();
  for (const Lengths& lengths : kLengths) {
    Given& given = arguments_.*lengths.given;
    if (!given) continue;
    lengths_.push_back(&lengths);
    arrays_.push_back(*given);
    given.reset();
  }
}

std::vector<std::string> RecordedCall::lengths() const {
  std::vector<std::string> names;
  for (const Lengths* lengths : lengths_) names.emplace_back(lengths->name);
  return names;
}

ConstTensorView RecordedCall::rows_of(const ReadOnly& array, const char* name) const {
  const ConstTensorView view = const_view_of(array, name);
  return is_packed_ ? with_axes(view, kPacked) : view;
}

TensorView RecordedCall::rows_of(const TensorView& view) const { return is_packed_ ? with_axes(view, kPacked) : view; }

template <class View>
View RecordedCall::statistics_of(const View& view) const {
  return is_packed_ ? with_axes(view, kPackedLse) : view;
}

TensorTuple RecordedCall::tensors() const {
  std::vector<nb::object> tensors;
  for (const ReadOnly& array : arrays_) tensors.push_back(nb::borrow(array.owner()));
  return nb::borrow<TensorTuple>(tuple_of(tensors));
}

bool RecordedCall::takes(const std::array<const ReadOnly*, 3>& inputs, const NamedValues& values) {
  const ReadOnly& q = *inputs[0];
  const bool sums_sequences = q.ndim() != kPackedRank && q.device_type() != kCpu && inputs[1]->shape(0) != q.shape(0);
  if (sums_sequences || !std::all_of(inputs.begin(), inputs.end(), [](auto* x) { return has_plain_gradient(*x); })) {
    return false;
  }
  for (const auto& [name, x] : values.captures) {
    if (name.starts_with(kDetached) || x.device_type() != q.device_type() || x.device_id() != q.device_id() ||
        !is_aligned(x) || !has_own_gradient(x)) {
      return false;
    }
  }
  return std::none_of(values.params.begin(), values.params.end(),
                      [](const auto& param) { return param.first == "has_detached"; });
}

bool RecordedCall::take_all(const nb::handle* tensors, std::vector<ReadOnly>& arrays) const {
  arrays.resize(kInputs + names_.size() + lengths_.size());
  for (ReadOnly& array : arrays) {
    if (!torch_->take(*tensors++, array)) return false;
  }
  return true;
}

AttentionOptions RecordedCall::options_for(const std::vector<ReadOnly>& arrays) const {
  AttentionOptions options = options_of(arguments_);
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    options.*lengths_[i]->view = const_view_of(arrays[kInputs + names_.size() + i], lengths_[i]->name);
  }
  if (names_.empty()) return options;
  NamedValues values;
  for (std::size_t i = 0; i < names_.size(); ++i) values.captures[names_[i]] = arrays[kInputs + i];
  options.bindings.captures = bindings_of(values).captures;
  return options;
}

TensorTuple RecordedCall::forward(const TensorTuple& inputs) {
  const std::vector<ReadOnly> in = std::exchange(arrays_, {});
  const std::vector<nb::handle> given = handles_of(inputs);
  const auto is_owner = [](nb::handle tensor, const ReadOnly& array) { return array.owner().is(tensor); };
  if (given.size() != inputs_count() || in.size() < given.size() ||
      !std::equal(given.begin(), given.end(), in.begin(), is_owner)) {
    throw Error(ErrorCode::invalid_argument, "a recorded call got other tensors than those that it was made of");
  }
  const nb::object out = torch_->empty_like(given[0]);
  const nb::object lse = with_lse_ ? torch_->empty_lse(given[0]) : torch_->empty_statistics(given[0]);
  const nb::object rest = with_lse_ ? torch_->empty_like(lse) : nb::none();
  AttentionTensors views{
      .q = rows_of(in[0], "q"), .k = rows_of(in[1], "k"), .v = rows_of(in[2], "v"), .o = rows_of(writable(out))};
  if (with_lse_) {
    views.lse = statistics_of(writable(lse)), views.lse_rest = statistics_of(writable(rest));
  } else {
    const TensorView both = writable(lse);
    views.lse = statistics_of(entry_of(both, 0)), views.lse_rest = statistics_of(entry_of(both, 1));
  }
  const AttentionOptions options = options_for(in);
  {
    const WithoutGil released;
    attention_into(views, options);
  }
  std::vector<nb::object> kept = {out, lse};
  if (with_lse_) kept.push_back(rest);
  for (const ReadOnly& array : in) kept.push_back(nb::borrow(array.owner()));
  return nb::borrow<TensorTuple>(tuple_of(kept));
}

/// lse and lse_rest of what forward() gave. `arrays` keeps them alive. False if Python has to look at them.
bool RecordedCall::take_statistics(const nb::handle* saved, std::array<ReadOnly, 2>& arrays,
                                   BackwardTensors& tensors) const {
  auto& [lse, rest] = arrays;
  if (!torch_->take(saved[1], lse) || (with_lse_ && !torch_->take(saved[2], rest))) return false;
  if (with_lse_) {
    tensors.lse = statistics_of(const_view_of(lse, "lse"));
    tensors.lse_rest = statistics_of(const_view_of(rest, "lse_rest"));
    return true;
  }
  if (lse.ndim() != (is_packed_ ? kPackedRank : 4) || lse.shape(0) != 2) return false;
  const ConstTensorView both = const_view_of(lse, "lse");
  tensors.lse = statistics_of(entry_of(both, 0)), tensors.lse_rest = statistics_of(entry_of(both, 1));
  return true;
}

bool RecordedCall::make_gradients(const nb::handle* of, const nb::tuple& needs, Gradients& made,
                                  BackwardTensors& tensors) const {
  constexpr const char* kNames[] = {"dq", "dk", "dv"};
  std::optional<TensorView>* const views[] = {&tensors.dq, &tensors.dk, &tensors.dv};
  for (std::size_t i = 0; i < kInputs; ++i) {
    if (!is_true(needs[1 + i])) continue;
    if (!made.make(torch_->empty_like, of[i], i, kNames[i], *views[i])) return false;
    *views[i] = rows_of(**views[i]);
  }
  for (std::size_t i = 0; i < names_.size(); ++i) {
    // Autograd may ask for captures that only a mask reads: they have no gradient.
    if (!is_true(needs[1 + kInputs + i]) || !is_read_by(arguments_.score_mod, names_[i])) continue;
    std::optional<TensorView> view;
    if (!made.make(torch_->empty_contiguous, of[kInputs + i], kInputs + i, names_[i].c_str(), view)) return false;
    tensors.d_captures[names_[i]] = *view;
  }
  return true;
}

nb::any RecordedCall::backward(const TensorTuple& saved, nb::handle d_out, nb::handle d_lse, const TensorTuple& needs,
                               bool deterministic) const {
  const std::size_t count = kInputs + names_.size() + lengths_.size(), first = first_tensor();
  if (saved.size() != first + count || needs.size() != 1 + inputs_count() || d_out.is_none()) return nothing();
  const std::vector<nb::handle> kept = handles_of(saved);
  std::vector<ReadOnly> in;
  ReadOnly out, d_out_rows, d_lse_rows;
  std::array<ReadOnly, 2> statistics;
  if (!take_all(&kept[first], in) || !takes({&in[0], &in[1], &in[2]}, {}) || !torch_->take(kept[0], out) ||
      !take_rows(*torch_, d_out, d_out_rows) || (!d_lse.is_none() && !take_rows(*torch_, d_lse, d_lse_rows))) {
    return nothing();
  }
  Gradients made(inputs_count());
  try {
    BackwardTensors tensors{.q = rows_of(in[0], "q"),
                            .k = rows_of(in[1], "k"),
                            .v = rows_of(in[2], "v"),
                            .o = rows_of(out, "o"),
                            .d_o = rows_of(d_out_rows, "d_o")};
    if (!d_lse.is_none()) tensors.d_lse = statistics_of(const_view_of(d_lse_rows, "d_lse"));
    AttentionOptions options = options_for(in);
    options.deterministic = deterministic;
    options.batch_invariant = false;  // a promise of the forward
    if (is_on_gpu_) {
      std::uintptr_t stream = 0;
      if (!torch_->set_stream(in[0], stream)) return nothing();
      options.stream = reinterpret_cast<void*>(stream);
    }
    if (!take_statistics(kept.data(), statistics, tensors) || !make_gradients(&kept[first], needs, made, tensors)) {
      return nothing();
    }
    if (!tensors.dq && !tensors.dk && !tensors.dv && tensors.d_captures.empty()) return made.to_python();
    const WithoutGil released;
    attention_backward_into(tensors, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return nothing();  // Python may make copies that are accepted, or raises this
  }
  return made.to_python();
}

void add_recorded_calls(nb::module_& module) {
  const auto mod_of = [](const Expr& expr) { return expr.empty() ? nothing() : nb::borrow<nb::any>(nb::cast(expr)); };
  nb::class_<RecordedCall>(module, "RecordedCall", "A call of torch's tensors that autograd records.")
      .def("tensors", &RecordedCall::tensors)
      .def("forward", &RecordedCall::forward, "inputs"_a)
      .def("backward", &RecordedCall::backward, "saved"_a, "d_out"_a.none(), "d_lse"_a.none(), "needs"_a,
           "deterministic"_a)
      .def_prop_ro("score_mod", [mod_of](const RecordedCall& self) { return mod_of(self.arguments().score_mod); })
      .def_prop_ro("mask_mod", [mod_of](const RecordedCall& self) { return mod_of(self.arguments().mask_mod); })
      .def_prop_ro("params", [](const RecordedCall& self) { return self.arguments().values.params; })
      .def_prop_ro("mask_version", [](const RecordedCall& self) { return self.arguments().mask_version; })
      .def_prop_ro("clamp_reads", [](const RecordedCall& self) { return self.arguments().clamp_reads; })
      .def_prop_ro("names", &RecordedCall::names)
      .def_prop_ro("lengths", &RecordedCall::lengths)
      .def_prop_ro("is_packed", &RecordedCall::is_packed)
      .def_prop_ro("settings", &RecordedCall::settings)
      .def_prop_ro("lists", &RecordedCall::lists)
      .def_prop_ro("with_lse", &RecordedCall::with_lse)
      .def_prop_ro("device", &RecordedCall::device);
}

}  // namespace heddle::python
