#include "packed_calls.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "arguments.h"
#include "heddle/attention.h"
#include "heddle/error.h"
#include "packed_views.h"
#include "recorded_calls.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

nb::any nothing() { return nb::borrow<nb::any>(nb::none()); }

/// A number of an option or a param that is an int of Python's, no subclass and no bool.
template <class Number>
bool take_int(nb::handle object, Number& number) {
  if (!PyLong_CheckExact(object.ptr())) return false;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow != 0 || value < std::numeric_limits<Number>::min() || value > std::numeric_limits<Number>::max()) {
    return false;
  }
  number = static_cast<Number>(value);
  return true;
}

constexpr std::int32_t kNoBound = 1 << 30;  // of a window: added to an index, more would leave i32

/// The tensors and options of a call of packed queries.
struct Packed {
  ReadOnly q, k, v;
  Arguments arguments;

  /// Whether q, k and v are what the library takes without a copy, and have a result as q is.
  bool agree(bool is_paged) const {
    const std::size_t last = is_paged ? 3 : 2;
    if (q.ndim() != 3 || k.ndim() != last + 1 || v.ndim() != last + 1) return false;
    if (q.device_type() != kCpu && q.device_type() != kCuda) return false;
    for (const ReadOnly* x : {&k, &v}) {
      if (x->device_type() != q.device_type() || x->device_id() != q.device_id() || !(x->dtype() == q.dtype())) {
        return false;
      }
    }
    if (k.shape(last) != q.shape(2) || v.shape(last) != q.shape(2) || q.shape(2) == 0) return false;
    for (std::size_t axis = 0; axis < last; ++axis) {
      if (k.shape(axis) != v.shape(axis)) return false;
    }
    return q.dtype().bits > 8 && q.stride(0) != 0 && q.stride(1) != 0 && q.stride(2) == 1;
  }
};

/// Makes the calls that need nothing of Python's but new tensors.
class PackedCalls {
 public:
  /// `windows`: the masks without a bound, with one to the left, to the right, and with both.
  PackedCalls(nb::object tensor, nb::object parameter, nb::object empty_like, nb::object empty_lse,
              nb::object empty_statistics, nb::object stream, nb::object threads, const std::array<Expr, 3>& windows)
      : torch_(std::make_shared<const TorchNames>(TorchNames{{std::move(tensor), std::move(parameter)},
                                                             std::move(empty_like),
                                                             std::move(empty_lse),
                                                             std::move(empty_statistics),
                                                             {},
                                                             std::move(stream),
                                                             std::move(threads)})),
        windows_{Expr(), windows[0], windows[1], windows[2]} {}

  /// (out, lse or None); a RecordedCall if autograd has to record it; None if Python has to look at the call.
  nb::any attend(nb::handle query, nb::handle key, nb::handle value, nb::handle starts_q, nb::handle starts_k,
                 nb::handle max_q, nb::handle max_k, nb::handle left, nb::handle right, nb::handle used,
                 nb::handle table, nb::handle scale, nb::handle out, bool enable_gqa, bool with_lse,
                 bool with_gradients) const {
    Packed in;
    const bool is_paged = !table.is_none();
    if (is_paged != starts_k.is_none() || (is_paged && used.is_none())) return nothing();
    if (!torch_->take(query, in.q) || !torch_->take(key, in.k) || !torch_->take(value, in.v) || !in.agree(is_paged)) {
      return nothing();
    }
    const std::size_t heads = in.q.shape(1), kv_heads = in.k.shape(is_paged ? 2 : 1);
    if (kv_heads == 0 || (heads != kv_heads && (!enable_gqa || heads % kv_heads != 0))) return nothing();
    Arguments& given = in.arguments;
    if (!take(starts_q, given.cu_seqlens_q) || !take(starts_k, given.cu_seqlens_kv) || !take(used, given.kv_lengths) ||
        !take(table, given.page_table)) {
      return nothing();
    }
    if (!take_int(max_q, given.max_q_len.emplace()) || !take_int(max_k, given.max_kv_len.emplace()) ||
        !set_window(left, right, given)) {
      return nothing();
    }
    if (!scale.is_none()) {
      if (!PyFloat_CheckExact(scale.ptr())) return nothing();
      given.scale = PyFloat_AsDouble(scale.ptr());
    }
    if (!torch_->set_place(in.q, given)) return nothing();
    if (with_gradients && (requires_gradient(in.q) || requires_gradient(in.k) || requires_gradient(in.v))) {
      return is_paged || !out.is_none() ? nothing() : recorded(in, max_q, max_k, scale, with_lse);
    }
    return run(query, in, out, is_paged, with_lse);
  }

 private:
  bool take(nb::handle object, Given& array) const { return object.is_none() || torch_->take(object, array.emplace()); }

  nb::any recorded(Packed& in, nb::handle max_q, nb::handle max_k, nb::handle scale, bool with_lse) const {
    const std::array<const ReadOnly*, 3> inputs = {&in.q, &in.k, &in.v};
    if (!RecordedCall::takes(inputs, in.arguments.values)) return nothing();
    nb::dict settings;
    settings["scale"] = scale, settings["max_q_len"] = max_q, settings["max_kv_len"] = max_k;
    auto call = std::make_unique<RecordedCall>(torch_, inputs, std::move(in.arguments), nb::borrow<Settings>(settings),
                                               nb::none(), with_lse);
    return nb::borrow<nb::any>(nb::cast(std::move(call)));
  }

  bool set_window(nb::handle left, nb::handle right, Arguments& given) const {
    std::int32_t before = 0, behind = 0;
    if (!take_int(left, before) || !take_int(right, behind) || before < -1 || behind < -1) return false;
    if (before >= kNoBound) before = -1;
    if (behind >= kNoBound) behind = -1;
    given.mask_mod = windows_[(before >= 0 ? 1 : 0) + (behind >= 0 ? 2 : 0)];
    if (before >= 0) given.values.params.emplace("window_left", before);
    if (behind >= 0) given.values.params.emplace("window_right", behind);
    return true;
  }

  static bool requires_gradient(const ReadOnly& array) {
    return nb::getattr(array.owner(), "requires_grad").is(Py_True);
  }

  nb::any run(nb::handle query, const Packed& in, nb::handle given_out, bool is_paged, bool with_lse) const {
    Array o, lse;
    const nb::object out = given_out.is_none() ? torch_->empty_like(query) : nb::borrow(given_out);
    if (given_out.is_none() ? !o.take_new(out) : !take_given(given_out, in.q, o)) return nothing();
    const nb::object out_lse = with_lse ? torch_->empty_lse(query) : nb::none();
    if (with_lse && !lse.take_new(out_lse)) return nothing();
    try {
      const auto& keys = is_paged ? kPages : kPacked;
      const ConstTensorView q = with_axes(const_view_of(in.q, "q"), kPacked);
      const ConstTensorView k = with_axes(const_view_of(in.k, "k"), keys),
                            v = with_axes(const_view_of(in.v, "v"), keys);
      const TensorView o_view = with_axes(view_of(o, "out"), kPacked);
      std::optional<TensorView> lse_view;
      if (with_lse) lse_view = with_axes(view_of(lse, "lse"), kPackedLse);
      const AttentionOptions options = options_of(in.arguments);
      const WithoutGil released;
      attention_into(q, k, v, o_view, lse_view, options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      return nothing();  // Python may make copies that are accepted, or raises this
    }
    return nb::borrow<nb::any>(nb::make_tuple(out, out_lse));
  }

  /// Takes the caller's `out`, if it has the shape and the type of the queries.
  bool take_given(nb::handle object, const ReadOnly& query, Array& out) const {
    ReadOnly plain;
    if (!torch_->take(object, plain) || !out.take(object, false) || out.ndim() != 3 ||
        !(out.dtype() == query.dtype())) {
      return false;
    }
    return out.shape(0) == query.shape(0) && out.shape(1) == query.shape(1) && out.shape(2) == query.shape(2);
  }

  std::shared_ptr<const TorchNames> torch_;
  std::array<Expr, 4> windows_;  // by 1 for a bound to the left, 2 for one to the right
};

}  // namespace

void add_packed_calls(nb::module_& module) {
  nb::class_<PackedCalls>(module, "PackedCalls", "Calls of packed sequences of torch's tensors.")
      .def(
          "__init__",
          [](PackedCalls* self, nb::object tensor, nb::object parameter, nb::object empty_like, nb::object empty_lse,
             nb::object empty_statistics, nb::object stream, nb::object threads, const Expr& left, const Expr& right,
             const Expr& both) {
            new (self)
                PackedCalls(std::move(tensor), std::move(parameter), std::move(empty_like), std::move(empty_lse),
                            std::move(empty_statistics), std::move(stream), std::move(threads), {left, right, both});
          },
          "tensor"_a, "parameter"_a, "empty_like"_a, "empty_lse"_a, "empty_statistics"_a, "stream"_a, "threads"_a,
          "left"_a, "right"_a, "both"_a)
      .def("attend", &PackedCalls::attend, "query"_a, "key"_a, "value"_a, "starts_q"_a, "starts_k"_a.none(), "max_q"_a,
           "max_k"_a, "left"_a, "right"_a, "used"_a.none(), "table"_a.none(), "scale"_a.none(), "out"_a.none(),
           "enable_gqa"_a, "with_lse"_a, "with_gradients"_a);
}

}  // namespace heddle::python
