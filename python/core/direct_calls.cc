#include "direct_calls.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call_tensors.h"
#include "exact_mods.h"
#include "heddle/attention.h"
#include "heddle/error.h"
#include "kept_mods.h"
#include "recorded_calls.h"
#include "shared_block_mask.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

/// The problems that a block mask is for: batch and heads may also be 1, for any.
struct MaskScope {
  std::size_t batch, heads, q_len, kv_len;
  int device_type, device_index;
};
using ScopeNumbers = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, int>;

MaskScope scope_of(const ScopeNumbers& numbers) {
  const auto [batch, heads, q_len, kv_len, type, index] = numbers;
  const auto size = [](std::int64_t extent) { return static_cast<std::size_t>(extent); };
  return {size(batch), size(heads), size(q_len), size(kv_len), type, index};
}

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
    if (given) scope = scope_of(*given);
  }
};

/// An attribute of torch's mask: the object, and a tensor's version.
struct Watched {
  nb::object name, value;
  std::optional<std::int64_t> version;
};

/// A block mask of lists, whose function each call looks up: what it reads may have changed.
struct ListedMask {
  std::shared_ptr<const BlockMask> lists;
  nb::object whole, function;
  std::uint64_t version;
  MaskScope scope;
  std::vector<Watched> watched;

  /// `mask`: a heddle.BlockMask. `attributes`: of torch's mask, by name, with the versions of tensors.
  ListedMask(nb::object mask, nb::object mask_mod, std::uint64_t number, const ScopeNumbers& given,
             const std::vector<std::tuple<nb::object, nb::object, std::optional<std::int64_t>>>& attributes)
      : lists(nb::cast<SharedBlockMask>(mask.attr("_mask")).mask),
        whole(std::move(mask)),
        function(std::move(mask_mod)),
        version(number),
        scope(scope_of(given)) {
    for (const auto& [name, value, its_version] : attributes) {
      PyObject* interned = nb::object(name).release().ptr();
      PyUnicode_InternInPlace(&interned);
      watched.push_back({nb::steal(interned), value, its_version});
    }
  }

  /// Whether torch's mask has the attributes that it had.
  bool is_of(nb::handle mask) const {
    static PyObject* const dict = PyUnicode_InternFromString("__dict__");
    static PyObject* const version_name = PyUnicode_InternFromString("_version");
    const nb::object held = nb::steal(PyObject_GetAttr(mask.ptr(), dict));
    if (!held.is_valid()) throw nb::python_error();
    return std::all_of(watched.begin(), watched.end(), [&](const Watched& one) {
      if (PyDict_GetItemWithError(held.ptr(), one.name.ptr()) != one.value.ptr()) return false;
      if (!one.version) return true;
      const nb::object found = nb::steal(PyObject_GetAttr(one.value.ptr(), version_name));
      if (!found.is_valid()) throw nb::python_error();
      return PyLong_AsLongLong(found.ptr()) == *one.version;
    });
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
  bool is_on_cuda() const { return q.device_type() == kCuda; }
  /// Whether no integer of a mod leaves i32.
  bool hold_exactly(const Expr& mod, const NamedValues& values) const {
    const std::int64_t most = exact_up_to(mod);
    for (const std::size_t extent : {q.shape(0), q.shape(1), q.shape(2), k.shape(2)}) {
      if (static_cast<std::int64_t>(extent) > most) return false;
    }
    return std::all_of(values.params.begin(), values.params.end(), [&](const auto& param) {
      const auto* number = std::get_if<std::int32_t>(&param.second);
      return number == nullptr || std::abs(std::int64_t{*number}) <= most;
    });
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

/// Makes the calls. Holds torch's types and functions that they need, and the score and mask mods that were met before.
class DirectCalls {
 public:
  DirectCalls(nb::object tensor, nb::object parameter, nb::object empty_like, nb::object empty_lse,
              nb::object empty_statistics, nb::object empty_contiguous, nb::object stream, nb::object threads,
              std::array<nb::object, 2> strided, const std::map<std::string, nb::object>& scores,
              const std::map<std::string, nb::object>& masks)
      : torch_(std::make_shared<const TorchNames>(TorchNames{{std::move(tensor), std::move(parameter)},
                                                             std::move(empty_like),
                                                             std::move(empty_lse),
                                                             std::move(empty_statistics),
                                                             std::move(empty_contiguous),
                                                             std::move(stream),
                                                             std::move(threads),
                                                             std::move(strided)})),
        scores_{scores.at("cpu"), scores.at("cuda")},
        masks_{masks.at("cpu"), masks.at("cuda")} {}

  /// (out, lse or None); a RecordedCall if autograd has to record it; None if Python has to look at the call. `score`:
  /// a function or a BoundMod. `mask`: a BoundMod or a ListedMask. `settings`: options by name, None: not given.
  nb::any attend(nb::handle query, nb::handle key, nb::handle value, nb::handle score, nb::handle mask,
                 const Settings& settings, bool enable_gqa, bool with_lse, bool clamps, bool with_gradients) const {
    Inputs in;
    if (!take(query, in.q) || !take(key, in.k) || !take(value, in.v) || !in.agree(enable_gqa)) return nothing();
    if (!in.make_plain_results()) return nothing();
    Arguments arguments;
    bool is_block_mask = false;
    if (!set_score(score, in, arguments) || !set_mask(mask, in, arguments, is_block_mask)) return nothing();
    const bool shares_keys = in.k.shape(0) == 1 && is_block_mask;
    if (in.q.shape(0) != in.k.shape(0) && !shares_keys) return nothing();
    arguments.clamp_reads = clamps && !arguments.values.captures.empty();
    for (const auto& [name, given] : settings) {
      if (!given.is_none() && !set(nb::cast<std::string>(name), given, arguments)) return nothing();
    }
    if (!torch_->set_place(in.q, arguments)) return nothing();
    if (with_gradients && require_gradients(in, arguments.values)) {
      return recorded(in, std::move(arguments), settings, mask, with_lse);
    }
    return run(query, in, arguments, with_lse);
  }

 private:
  bool take(nb::handle object, ReadOnly& array) const { return torch_->take(object, array); }

  nb::any recorded(const Inputs& in, Arguments&& arguments, const Settings& settings, nb::handle mask,
                   bool with_lse) const {
    const std::array<const ReadOnly*, 3> inputs = {&in.q, &in.k, &in.v};
    if (!RecordedCall::takes(inputs, arguments.values)) return nothing();
    nb::object lists = arguments.block_mask ? nb::cast<const ListedMask*>(mask)->whole : nb::none();
    auto call =
        std::make_unique<RecordedCall>(torch_, inputs, std::move(arguments), settings, std::move(lists), with_lse);
    return nb::borrow<nb::any>(nb::cast(std::move(call)));
  }

  static const KeptMods& known(const std::array<nb::object, 2>& by_device, const Inputs& in) {
    return *nb::cast<const KeptMods*>(by_device[in.is_on_cuda() ? 1 : 0]);
  }

  bool set_score(nb::handle score, const Inputs& in, Arguments& arguments) const {
    if (score.is_none()) return true;
    const BoundMod* bound = nullptr;
    if (!nb::try_cast(score, bound, false)) {
      return known(scores_, in).find(score, arguments.score_mod, arguments.values) &&
             in.hold_exactly(arguments.score_mod, arguments.values);
    }
    arguments.score_mod = bound->expr;
    return add_values(*bound, arguments.values);
  }

  bool set_mask(nb::handle mask, const Inputs& in, Arguments& arguments, bool& is_block_mask) const {
    if (mask.is_none()) return true;
    const BoundMod* bound = nullptr;
    if (nb::try_cast(mask, bound, false)) {
      is_block_mask = bound->scope.has_value();
      if (is_block_mask && !in.fit(*bound->scope)) return false;
      arguments.mask_mod = bound->expr;
      arguments.mask_version = in.is_on_cuda() ? bound->version : 0;
      return add_values(*bound, arguments.values);
    }
    const auto& listed = *nb::cast<const ListedMask*>(mask);
    is_block_mask = true;
    arguments.block_mask = listed.lists;
    arguments.mask_version = in.is_on_cuda() ? listed.version : 0;
    return in.fit(listed.scope) && known(masks_, in).find(listed.function, arguments.mask_mod, arguments.values) &&
           in.hold_exactly(arguments.mask_mod, arguments.values);
  }

  bool add_values(const BoundMod& mod, NamedValues& values) const {
    for (const auto& [name, tensor] : mod.captures) {
      if (!take(tensor, values.captures[name])) return false;
    }
    values.params.insert(mod.params.begin(), mod.params.end());
    return true;
  }

  /// False for options that are not taken here, and for values of other types: no option is left out.
  static bool set(const std::string& name, nb::handle value, Arguments& arguments) {
    if (name == "scale") {
      if (!PyFloat_Check(value.ptr())) return false;
      arguments.scale = PyFloat_AsDouble(value.ptr());
      return true;
    }
#define HEDDLE_COUNT_OPTION(option) \
  if (name == #option) return nb::try_cast(value, arguments.option.emplace(), false);
#define HEDDLE_FLAG_OPTION(option, shown, help) \
  if (name == #option) return nb::try_cast(value, arguments.option, false);
#define HEDDLE_BACKWARD_FLAG_OPTION(option, shown, help) HEDDLE_FLAG_OPTION(option, shown, help)
#include "heddle/options.def"
    return false;
  }

  static bool require_gradients(const Inputs& in, const NamedValues& values) {
    static PyObject* const name = PyUnicode_InternFromString("requires_grad");
    const auto requires_one = [](const ReadOnly& array) {
      return nb::steal(PyObject_GetAttr(array.owner().ptr(), name)).is(Py_True);
    };
    return requires_one(in.q) || requires_one(in.k) || requires_one(in.v) ||
           std::any_of(values.captures.begin(), values.captures.end(),
                       [&](const auto& capture) { return requires_one(capture.second); });
  }

  nb::any run(nb::handle query, const Inputs& in, const Arguments& arguments, bool with_lse) const {
    const nb::object lse = with_lse ? torch_->empty_lse(query) : nb::none();
    nb::object out;
    GivenOut out_array(std::in_place), lse_array;
    if (!torch_->make_like(query, in.q, out, *out_array) || (with_lse && !lse_array.emplace().take_new(lse)))
      return nothing();
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

  std::shared_ptr<const TorchNames> torch_;
  std::array<nb::object, 2> scores_, masks_;  // KeptMods of the CPU and of GPUs
};

}  // namespace

void add_direct_calls(nb::module_& module) {
  nb::class_<BoundMod>(module, "BoundMod", "An expression with the tensors and numbers that it reads.")
      .def(nb::init<const Expr&, const std::map<std::string, nb::object>&, std::map<std::string, ParamValue>,
                    std::uint64_t, const std::optional<ScopeNumbers>&>(),
           "expr"_a, "captures"_a, "params"_a, "version"_a = 0, "scope"_a.none() = nb::none());
  nb::class_<ListedMask>(module, "ListedMask", "A block mask of lists, and the function of its partial blocks.")
      .def(nb::init<nb::object, nb::object, std::uint64_t, const ScopeNumbers&,
                    const std::vector<std::tuple<nb::object, nb::object, std::optional<std::int64_t>>>&>(),
           "lists"_a, "mask_mod"_a, "version"_a, "scope"_a, "attributes"_a)
      .def("is_of", &ListedMask::is_of, "mask"_a, "Whether torch's mask has the attributes that it had.");
  nb::class_<DirectCalls>(module, "DirectCalls", "Repeated calls of torch's tensors.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::object, nb::object, nb::object,
                    std::array<nb::object, 2>, const std::map<std::string, nb::object>&,
                    const std::map<std::string, nb::object>&>(),
           "tensor"_a, "parameter"_a, "empty_like"_a, "empty_lse"_a, "empty_statistics"_a, "empty_contiguous"_a,
           "stream"_a, "threads"_a, "strided"_a, "scores"_a, "masks"_a)
      .def("attend", &DirectCalls::attend, "query"_a, "key"_a, "value"_a, "score"_a.none(), "mask"_a.none(),
           "settings"_a, "enable_gqa"_a, "with_lse"_a, "clamps"_a, "with_gradients"_a);
}

}  // namespace heddle::python
