#include "direct_calls.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call_tensors.h"
#include "heddle/attention.h"
#include "heddle/error.h"
#include "kept_mods.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

constexpr int kCpu = 1, kCuda = 2;  // of DLPack

/// The problems that a block mask is for: batch and heads may also be 1, for any.
struct MaskScope {
  std::size_t batch, heads, q_len, kv_len;
  int device_type, device_index;
};
using ScopeNumbers = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, int>;

/// An expression with the tensors and numbers that it reads. A tensor's memory is looked up by each call.
struct BoundMod {
  Expr expr;
  std::vector<std::pair<std::string, nb::object>> captures;
  std::map<std::string, ParamValue> params;
  std::uint64_t version = 0;
  std::optional<MaskScope> scope;

  BoundMod(const Expr& bound, const std::map<std::string, nb::object>& tensors,
           std::map<std::string, ParamValue> numbers, std::uint64_t number, const std::optional<ScopeNumbers>& given)
      : expr(bound), captures(tensors.begin(), tensors.end()), params(std::move(numbers)), version(number) {
    if (!given) return;
    const auto [batch, heads, q_len, kv_len, type, index] = *given;
    scope = MaskScope{static_cast<std::size_t>(batch),
                      static_cast<std::size_t>(heads),
                      static_cast<std::size_t>(q_len),
                      static_cast<std::size_t>(kv_len),
                      type,
                      index};
  }
};

/// q, k and v of one call.
struct Inputs {
  ReadOnly q, k, v;

  /// Whether they are what every kind of call accepts.
  bool agree(bool enable_gqa) const {
    if (q.ndim() != 4 || k.ndim() != 4 || v.ndim() != 4) return false;
    if (q.device_type() != kCpu && q.device_type() != kCuda) return false;
    for (const ReadOnly* x : {&k, &v}) {
      if (x->device_type() != q.device_type() || x->device_id() != q.device_id() || !(x->dtype() == q.dtype())) {
        return false;
      }
    }
    const std::size_t heads = q.shape(1), kv_heads = k.shape(1);
    if (q.shape(3) != k.shape(3) || v.shape(1) != kv_heads || v.shape(0) != k.shape(0) || kv_heads == 0) return false;
    return heads == kv_heads || (enable_gqa && heads % kv_heads == 0);
  }
  bool fit(const MaskScope& scope) const {
    const auto one_or = [](std::size_t extent, std::size_t wanted) { return extent == 1 || extent == wanted; };
    return scope.q_len == q.shape(2) && scope.kv_len == k.shape(2) && one_or(scope.batch, q.shape(0)) &&
           one_or(scope.heads, q.shape(1)) && scope.device_type == q.device_type() &&
           scope.device_index == q.device_id();
  }
  /// Whether torch.empty_like(q) is what the result is written to.
  bool make_plain_results() const {
    const bool is_wide = q.dtype().bits > 8;
    const bool is_expanded = q.stride(0) == 0 || q.stride(1) == 0 || q.stride(2) == 0;
    return is_wide && !is_expanded && q.stride(3) == 1 && v.shape(3) == q.shape(3);
  }
};

nb::any nothing() { return nb::borrow<nb::any>(nb::none()); }

/// What the calls need of torch.
class DirectCalls {
 public:
  DirectCalls(nb::object tensor, nb::object parameter, nb::object empty_like, nb::object empty_lse, nb::object stream,
              const KeptMods& on_cpu, const KeptMods& on_cuda)
      : types_{std::move(tensor), std::move(parameter)},
        empty_like_(std::move(empty_like)),
        empty_lse_(std::move(empty_lse)),
        stream_(std::move(stream)),
        on_cpu_(on_cpu),
        on_cuda_(on_cuda) {}

  /// (out, lse or None); None if Python has to look at the call.
  nb::any attend(nb::handle query, nb::handle key, nb::handle value, nb::handle score, const BoundMod* mask,
                 nb::handle scale, bool enable_gqa, bool with_lse, bool clamps, bool with_gradients) const {
    Inputs in;
    if (!take(query, in.q) || !take(key, in.k) || !take(value, in.v) || !in.agree(enable_gqa)) return nothing();
    const bool shares_keys = in.k.shape(0) == 1 && mask != nullptr && mask->scope;
    if (in.q.shape(0) != in.k.shape(0) && !shares_keys) return nothing();
    if (!in.make_plain_results() || (mask != nullptr && mask->scope && !in.fit(*mask->scope))) return nothing();

    Arguments arguments;
    if (!set_score(score, in.q.device_type(), arguments) || !set_scale(scale, arguments)) return nothing();
    if (mask != nullptr) {
      arguments.mask_mod = mask->expr;
      if (!add_values(*mask, arguments.values)) return nothing();
      arguments.mask_version = in.q.device_type() == kCuda ? mask->version : 0;
    }
    arguments.clamp_reads = clamps && !arguments.values.captures.empty();
    if (with_gradients && require_gradients(in, arguments.values)) return nothing();
    if (in.q.device_type() == kCuda) {
      const nb::object stream = stream_(in.q.device_id());
      if (stream.is_none()) return nothing();
      arguments.stream = nb::cast<std::uintptr_t>(stream);
    }
    return run(query, in, arguments, with_lse);
  }

 private:
  bool take(nb::handle object, ReadOnly& array) const {
    const nb::handle type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
    return (type.is(types_[0]) || type.is(types_[1])) && array.take(object, true);
  }

  /// A function that was met before, or a BoundMod; None for no score mod.
  bool set_score(nb::handle score, int device_type, Arguments& arguments) const {
    if (score.is_none()) return true;
    const BoundMod* bound = nullptr;
    if (nb::try_cast(score, bound, false)) {
      arguments.score_mod = bound->expr;
      return add_values(*bound, arguments.values);
    }
    return (device_type == kCuda ? on_cuda_ : on_cpu_).find(score, arguments.score_mod, arguments.values);
  }

  bool add_values(const BoundMod& mod, NamedValues& values) const {
    for (const auto& [name, tensor] : mod.captures) {
      if (!take(tensor, values.captures[name])) return false;
    }
    values.params.insert(mod.params.begin(), mod.params.end());
    return true;
  }

  static bool set_scale(nb::handle scale, Arguments& arguments) {
    if (scale.is_none()) return true;
    if (!PyFloat_Check(scale.ptr())) return false;
    arguments.scale = PyFloat_AsDouble(scale.ptr());
    return true;
  }

  static bool require_gradients(const Inputs& in, const NamedValues& values) {
    const auto requires_one = [](const ReadOnly& array) {
      return nb::cast<bool>(nb::getattr(array.owner(), "requires_grad"));
    };
    return requires_one(in.q) || requires_one(in.k) || requires_one(in.v) ||
           std::any_of(values.captures.begin(), values.captures.end(),
                       [&](const auto& capture) { return requires_one(capture.second); });
  }

  nb::any run(nb::handle query, const Inputs& in, const Arguments& arguments, bool with_lse) const {
    const nb::object out = empty_like_(query), lse = with_lse ? empty_lse_(query) : nb::none();
    GivenOut out_array(std::in_place), lse_array;
    if (!out_array->take(out, false) || (with_lse && !lse_array.emplace().take(lse, false))) return nothing();
    try {
      const AttentionTensors tensors = tensors_of(in.q, in.k, in.v, out_array, lse_array);
      const AttentionOptions options = options_of(arguments);
      const WithoutGil released;
      attention_into(tensors.q, tensors.k, tensors.v, tensors.o, tensors.lse, options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      return nothing();  // Python may make copies that are accepted, or raises this
    }
    return nb::borrow<nb::any>(nb::make_tuple(out, lse));
  }

  std::array<nb::object, 2> types_;
  nb::object empty_like_, empty_lse_, stream_;
  const KeptMods &on_cpu_, &on_cuda_;
};

}  // namespace

void add_direct_calls(nb::module_& module) {
  nb::class_<BoundMod>(module, "BoundMod", "An expression with the tensors and numbers that it reads.")
      .def(nb::init<const Expr&, const std::map<std::string, nb::object>&, std::map<std::string, ParamValue>,
                    std::uint64_t, const std::optional<ScopeNumbers>&>(),
           "expr"_a, "captures"_a, "params"_a, "version"_a = 0, "scope"_a.none() = nb::none());
  nb::class_<DirectCalls>(module, "DirectCalls", "Repeated calls of torch's tensors.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, const KeptMods&, const KeptMods&>(),
           "tensor"_a, "parameter"_a, "empty_like"_a, "empty_lse"_a, "stream"_a, "on_cpu"_a, "on_cuda"_a,
           nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>())
      .def("attend", &DirectCalls::attend, "query"_a, "key"_a, "value"_a, "score"_a.none(), "mask"_a.none(),
           "scale"_a.none(), "enable_gqa"_a, "with_lse"_a, "clamps"_a, "with_gradients"_a);
}

}  // namespace heddle::python
