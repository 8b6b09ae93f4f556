#include "engine/read_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "heddle/error.h"
#include "problem/option_views.h"
#include "problem/problem.h"

namespace heddle::engine {
namespace {

using Json = nlohmann::ordered_json;

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> sentence, Arguments&&... arguments) {
  throw Error(ErrorCode::invalid_argument, fmt::format(sentence, std::forward<Arguments>(arguments)...));
}

/// An object of the call, each of whose members must be asked for.
class Object {
 public:
  Object(const Json& json, std::string name) : json_(json), name_(std::move(name)) {
    if (!json.is_object()) refuse("{} is {}; an object is accepted", name_, json.dump());
  }

  /// Null: it is not there.
  const Json* find(const std::string& key) {
    asked_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  const Json& at(const std::string& key) {
    const Json* const found = find(key);
    if (found == nullptr) refuse("{} has no '{}'", name_, key);
    return *found;
  }
  std::string text(const std::string& key) { return text_of(at(key), key); }
  std::string text_of(const Json& json, const std::string& key) const {
    if (!json.is_string()) refuse("{}.{} is {}; a text is accepted", name_, key, json.dump());
    return json.get<std::string>();
  }
  bool flag(const std::string& key) {
    const Json* const found = find(key);
    if (found != nullptr && !found->is_boolean())
      refuse("{}.{} is {}; true or false is accepted", name_, key, found->dump());
    return found != nullptr && found->get<bool>();
  }
  std::int64_t whole(const Json& json, const std::string& key) const {
    if (!json.is_number_integer()) refuse("{}.{} is {}; a whole number is accepted", name_, key, json.dump());
    return json.get<std::int64_t>();
  }
  Dims dims(const std::string& key) {
    const Json& list = at(key);
    if (!list.is_array()) refuse("{}.{} is {}; a list of whole numbers is accepted", name_, key, list.dump());
    Dims dims;
    for (const Json& each : list) dims.push_back(whole(each, key));
    return dims;
  }
  void refuse_others() const {
    for (const auto& [key, value] : json_.items()) {
      if (!asked_.contains(key)) refuse("{} has '{}', which is none of its members", name_, key);
    }
  }
  const std::string& name() const { return name_; }

 private:
  const Json& json_;
  std::string name_;
  std::set<std::string> asked_;
};

class CallReader {
 public:
  CallReader(const Json& json, const Device& device) : call_(json, "the call"), device_(device) {}

  ReadCall read() {
    const Json* const of = call_.find("of");
    const std::string kind = of == nullptr ? "attention" : call_.text_of(*of, "of");
    if (kind != "attention" && kind != "backward") {
      refuse("the call is of '{}'; 'attention', 'backward', 'merge_states', 'append_kv' and 'move_rows' are accepted",
             kind);
    }
    const ConstTensorView q = tensor("q"), k = tensor("k");
    ConstTensorView v = tensor("v");
    if (call_.flag("v_is_k")) v.data = k.data;
    if (const Json* const options = call_.find("options")) read_options(*options);
    const problem::Outputs outputs = problem::outputs_of(q, k, v, read_.options);
    const ConstTensorView o =
        tensor("o", planned(outputs.o_dtype, outputs.o_shape)).value_or(planned(outputs.o_dtype, outputs.o_shape));
    const ConstTensorView statistic = planned(outputs.lse_dtype, outputs.lse_shape);
    if (kind == "attention") {
      read_.forward = {.q = q, .k = k, .v = v, .o = writable(o)};
      read_.forward.lse = output("lse", statistic);
      read_.forward.max_scores = output("max_scores", statistic);
      read_.forward.lse_rest = output("lse_rest", statistic);
    } else {
      read_backward(q, k, v, o, statistic);
    }
    call_.refuse_others();
    add_block_mask();
    return std::move(read_);
  }

 private:
  /// A view of no memory: each has an address of its own, since some kernels read values from the keys if both are at
  /// one address.
  ConstTensorView planned(DType dtype, const Dims& shape) { return {next_address(0), dtype, shape, device_}; }
  const void* next_address(std::int64_t offset) {
    constexpr std::int64_t kApart = std::int64_t{1} << 40;
    return reinterpret_cast<const void*>(kApart * ++addresses_ + offset);
  }
  static TensorView writable(const ConstTensorView& view) {
    return {const_cast<void*>(view.data), view.dtype, view.shape, view.strides, view.device};
  }

  ConstTensorView tensor(const std::string& name) { return view_of(call_.at(name), name, Use::tensor); }
  /// `fallback` where it is true, not just there; nothing where it is not there.
  std::optional<ConstTensorView> tensor(const std::string& name, const ConstTensorView& fallback) {
    const Json* const json = call_.find(name);
    if (json == nullptr || json->is_null()) return std::nullopt;
    if (json->is_boolean()) return json->get<bool>() ? std::optional(fallback) : std::nullopt;
    return view_of(*json, name, Use::tensor);
  }
  std::optional<TensorView> output(const std::string& name, const ConstTensorView& fallback) {
    const auto view = tensor(name, fallback);
    return view ? std::optional(writable(*view)) : std::nullopt;
  }

  /// A capture has memory on the host if it has values, or if it may index another one. (A table of floats may be
  /// large, and planning reads none but the mask's.)
  enum class Use : std::uint8_t { tensor, capture };
  ConstTensorView view_of(const Json& json, const std::string& name, Use use) {
    Object object(json, name);
    ConstTensorView view(nullptr, parse_dtype(object.text("dtype")), object.dims("shape"), device_);
    if (object.find("strides") != nullptr) view.strides = object.dims("strides");
    if (view.strides.size() != view.shape.size()) {
      refuse("{} has {} strides and {} extents; as many are accepted", name, view.strides.size(), view.shape.size());
    }
    const Json* const offset = object.find("offset");
    view.data = next_address(offset == nullptr ? 0 : object.whole(*offset, "offset"));
    const Json* const on = object.find("on");
    const bool on_host = on != nullptr && object.text_of(*on, "on") == "host";
    if (on != nullptr && !on_host) refuse("{}.on is {}; \"host\" is accepted, or nothing: the GPU", name, on->dump());
    const Json* const values = object.find("values");
    object.refuse_others();
    const bool filled = use == Use::capture && (values != nullptr || !is_floating(view.dtype));
    if (on_host && use == Use::tensor && values == nullptr)
      refuse("{} is on the host, so its 'values' are needed", name);
    if (!filled && (!on_host || use == Use::capture)) return view;
    if (values == nullptr) return stand_in_for(view);
    read_.memory.push_back(filled_with(*values, view, name));
    return read_.memory.back();
  }

  static Tensor filled_with(const Json& values, const ConstTensorView& view, const std::string& name) {
    if (!values.is_array() || std::ssize(values) != view.count()) {
      refuse("{}.values is {}; a list of {} numbers is accepted", name,
             values.is_array() ? "a list of another length" : "no list", view.count());
    }
    const Tensor numbers = Tensor::empty(DType::f64, view.shape);
    auto* next = static_cast<double*>(numbers.data());
    for (const Json& value : values) {
      if (!value.is_number() && !value.is_boolean())
        refuse("{}.values has {}; numbers are accepted", name, value.dump());
      *next++ = value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
    }
    return numbers.to(view.dtype);
  }

  void read_backward(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const ConstTensorView& o, const ConstTensorView& statistic) {
    BackwardTensors tensors = {.q = q, .k = k, .v = v, .o = o};
    tensors.lse = tensor("lse", statistic);
    tensors.d_o = tensor("d_o", o).value_or(planned(o.dtype, o.shape));
    tensors.d_lse = tensor("d_lse", statistic);
    tensors.lse_rest = tensor("lse_rest", statistic);
    tensors.dq = output("dq", planned(q.dtype, q.shape));
    tensors.dk = output("dk", planned(k.dtype, k.shape));
    tensors.dv = output("dv", planned(v.dtype, v.shape));
    const auto& sinks = read_.options.sinks;
    tensors.d_sinks = output("d_sinks", sinks ? planned(sinks->dtype, sinks->shape) : planned(DType::f32, {}));
    for (auto [name, views] : {std::pair{"d_captures", &tensors.d_captures}, {"d_params", &tensors.d_params}}) {
      const Json* const json = call_.find(name);
      if (json == nullptr) continue;
      const Object object(*json, name);
      for (const auto& [key, value] : json->items()) {
        (*views)[key] = writable(view_of(value, fmt::format("{}.{}", name, key), Use::tensor));
      }
    }
    read_.backward = std::move(tensors);
  }

  void read_options(const Json& json) {
    Object object(json, "options");
    AttentionOptions& options = read_.options;
    read_bindings(object, options.bindings);
    const Symbols symbols(options.bindings);
    for (auto [name, mod] : {std::pair{"score_mod", &options.score_mod},
                             {"mask_mod", &options.mask_mod},
                             {"weight_mod", &options.weight_mod}}) {
      if (const Json* const text = object.find(name)) *mod = parse(object.text_of(*text, name), symbols);
    }
    fill_captures_of(options.mask_mod, options.bindings);
    if (const Json* const scale = object.find("scale")) {
      if (!scale->is_number()) refuse("options.scale is {}; a number is accepted", scale->dump());
      options.scale = scale->get<double>();
    }
    if (const Json* const normalizer = object.find("normalizer")) {
      options.normalizer = normalizer_of(object.text_of(*normalizer, "normalizer"));
    }
    const auto read_view = [&](const problem::OptionView& row) {
      const std::string key(row.name);
      if (const Json* const view = object.find(key))
        options.*row.member = view_of(*view, "options." + key, Use::tensor);
    };
    for (const problem::OptionView& row : problem::kTensorOptions) read_view(row);
    for (const problem::OptionView& row : problem::kLengthViews) read_view(row);
#define HEDDLE_COUNT_OPTION(name) \
  if (const Json* const count = object.find(#name)) options.name = object.whole(*count, #name);
#define HEDDLE_FLAG_OPTION(name, shown, help) options.name = object.flag(#name);
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) options.name = object.flag(#name);
#include "heddle/options.def"
    if (const Json* const mask = object.find("block_mask")) block_mask_ = *mask;
    object.refuse_others();
  }

  /// Memory on the host for a view, strided and aligned as the view. It holds zeros; booleans are true, because a mask
  /// of them would else leave nothing to plan for.
  ConstTensorView stand_in_for(ConstTensorView view) {
    constexpr std::int64_t kAlignment = 16;
    std::int64_t first = 0, last = 0;  // offsets of elements
    for (int axis = 0; axis < view.rank(); ++axis) {
      if (view.shape[axis] > 0) (view.strides[axis] < 0 ? first : last) += (view.shape[axis] - 1) * view.strides[axis];
    }
    const std::int64_t element = size_of(view.dtype), offset = reinterpret_cast<std::intptr_t>(view.data) % kAlignment;
    read_.memory.push_back(Tensor::zeros(DType::u8, {(last - first + 1) * element + 2 * kAlignment}));
    const TensorView bytes = read_.memory.back().view();
    if (view.dtype == DType::boolean) std::memset(bytes.data, 1, static_cast<std::size_t>(bytes.shape[0]));
    const std::int64_t before = (-first * element + kAlignment - 1) / kAlignment * kAlignment;  // memory is aligned
    view.data = static_cast<const char*>(read_.memory.back().data()) + before + offset;
    view.device = {};
    return view;
  }

  /// Memory for what the mask reads and has none.
  void fill_captures_of(const Expr& mask, Bindings& bindings) {
    if (mask.empty()) return;
    for (const auto& [name, declared] : symbols_of(mask).captures) {
      ConstTensorView& capture = bindings.captures.at(name);
      if (capture.device.kind == DeviceKind::cpu) continue;
      capture = stand_in_for(capture);
    }
  }

  static Normalizer normalizer_of(const std::string& text) {
    for (const Normalizer each : {Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}) {
      if (problem::name(each) == text) return each;
    }
    refuse("options.normalizer is '{}'; softmax, none and sigmoid are accepted", text);
  }

  void read_bindings(Object& object, Bindings& bindings) {
    if (const Json* const captures = object.find("captures")) {
      const Object named(*captures, "options.captures");
      for (const auto& [name, view] : captures->items())
        bindings.captures[name] = view_of(view, "capture " + name, Use::capture);
    }
    const Json* const params = object.find("params");
    if (params == nullptr) return;
    const Object named(*params, "options.params");
    for (const auto& [name, value] : params->items()) {
      if (value.is_boolean()) {
        bindings.params[name] = value.get<bool>();
      } else if (value.is_number_integer()) {
        bindings.params[name] = value.get<std::int32_t>();
      } else if (value.is_number()) {
        bindings.params[name] = value.get<double>();
      } else {
        refuse("param {} is {}; a number, true or false is accepted", name, value.dump());
      }
    }
  }

  /// The caller's block mask. Of lists their rows are not known: all blocks are listed, as partial ones.
  void add_block_mask() {
    if (block_mask_.is_null()) return;
    Object object(block_mask_, "options.block_mask");
    const Dims block = object.dims("block");
    if (block.size() != 2 || block[0] < 1 || block[1] < 1)
      refuse("options.block_mask.block: two sizes of at least 1 are accepted");
    AttentionOptions& options = read_.options;
    AttentionOptions there = options;  // where captures are with q
    for (auto& [name, capture] : there.bindings.captures) capture.device = device_;
    const Json *const heads = object.find("heads"), *const lists = object.find("lists"),
                      *const text = object.find("mask");
    const problem::AttentionProblem problem =
        read_.backward ? problem::validate(*read_.backward, there) : problem::validate(read_.forward, there);
    const MaskShape shape = {heads == nullptr ? problem.q_heads : object.whole(*heads, "heads"), problem.sequences};
    const Expr mask =
        text == nullptr ? options.mask_mod : parse(object.text_of(*text, "mask"), Symbols(options.bindings));
    const BlockSize size = {block[0], block[1]};
    const DType reals = problem.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
    fill_captures_of(mask, options.bindings);
    const bool by_head = lists != nullptr && object.text_of(*lists, "lists") == "of each head";
    object.refuse_others();
    options.block_mask = std::make_shared<const BlockMask>(
        lists == nullptr ? BlockMask::build(mask, shape, size, options.bindings, 0, reals, options.clamp_reads)
                         : BlockMask::from_lists(all_blocks(shape, size, by_head), shape, size, mask));
  }

  static BlockLists all_blocks(const MaskShape& shape, BlockSize size, bool by_head) {
    std::int64_t q = 0, kv = 0;
    for (const Sequence& sequence : shape.sequences) {
      q = std::max(q, (sequence.q_len + size.q - 1) / size.q);
      kv = std::max(kv, (sequence.kv_len + size.kv - 1) / size.kv);
    }
    const std::int64_t heads = by_head ? shape.heads : 1;
    BlockLists lists;
    lists.kv_num_blocks = Tensor::empty(DType::i32, {1, heads, q});
    lists.kv_indices = Tensor::empty(DType::i32, {1, heads, q, kv});
    std::fill_n(static_cast<std::int32_t*>(lists.kv_num_blocks.data()), heads * q, static_cast<std::int32_t>(kv));
    auto* next = static_cast<std::int32_t*>(lists.kv_indices.data());
    for (std::int64_t row = 0; row < heads * q; ++row) {
      for (std::int64_t column = 0; column < kv; ++column) *next++ = static_cast<std::int32_t>(column);
    }
    return lists;
  }

  Object call_;
  Device device_;
  std::int64_t addresses_ = 0;
  Json block_mask_;
  ReadCall read_;
};

}  // namespace

ReadCall read_call(const Json& json, const Device& device) {
  if (const auto why = json.find("unwritten"); json.is_object() && why != json.end()) {
    refuse("the call could not be recorded: {}", why->is_string() ? why->get<std::string>() : why->dump());
  }
  return CallReader(json, device).read();
}

}  // namespace heddle::engine
