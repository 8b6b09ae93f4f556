#include "engine/plan_key.h"

#include <bit>
#include <optional>
#include <string_view>
#include <variant>

#include "base/environment.h"
#include "base/hash.h"
#include "mask/shape.h"
#include "problem/problem.h"
#include "problem/refuse.h"

namespace heddle::engine {
namespace {

/// The first word of a backward's key; a forward's is a tensor's, which never has all bits set.
constexpr std::uint64_t kBackward = ~std::uint64_t{0};

class KeyWriter {
 public:
  explicit KeyWriter(PlanKey& key) : key_(key) {}

  void add(std::uint64_t word) { key_.push_back(word); }
  void add(std::int64_t word) { key_.push_back(static_cast<std::uint64_t>(word)); }
  void add(const Expr& mod) { key_.push_back(reinterpret_cast<std::uintptr_t>(mod.node())); }
  void add(std::string_view name) { add(base::hash_bytes(name.data(), name.size())); }
  template <class T>
  void add(const std::optional<T>& value) {
    add(std::uint64_t{value.has_value()});
    if (value) add(*value);
  }
  void add(double value) { add(std::bit_cast<std::uint64_t>(value)); }

  void add(const ConstTensorView& view) {
    constexpr std::uintptr_t kAlignment = 16;  // that any plan can make use of
    const bool on_gpu = view.device.kind != DeviceKind::cpu;
    const std::uint64_t alignment = on_gpu ? reinterpret_cast<std::uintptr_t>(view.data) % kAlignment : 0;
    add(static_cast<std::uint64_t>(view.dtype) | static_cast<std::uint64_t>(view.device.kind) << 8 |
        static_cast<std::uint64_t>(view.rank()) << 16 | alignment << 24 |
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(view.device.index)) << 32);
    for (const std::int64_t extent : view.shape) add(extent);
    for (const std::int64_t stride : view.strides) add(stride);
  }
  void add(const std::optional<TensorView>& view) {
    add(std::uint64_t{view.has_value()});
    if (view) add(ConstTensorView(*view));
  }

  /// Lengths or starts: those on the CPU are part of a plan. Planning refuses what is not looked into here.
  void add_lengths(std::string_view name, const std::optional<ConstTensorView>& lengths) {
    add(lengths);
    if (!lengths || lengths->device.kind != DeviceKind::cpu || lengths->rank() != 1) return;
    problem::check_view(name, *lengths);
    problem::check_memory(name, *lengths);
    mask::check_sequence_count(name, lengths->shape[0] - 1);  // of N + 1 cumulative lengths
    add(base::hash_view(*lengths));
  }

 private:
  PlanKey& key_;
};

/// The words of each option that is neither a tensor nor a count nor a flag, by its name.
struct OtherWords {
  using Options = const AttentionOptions&;

  static void mask_mod(KeyWriter& words, Options options) { words.add(options.mask_mod); }
  static void weight_mod(KeyWriter& words, Options options) { words.add(options.weight_mod); }
  static void bindings(KeyWriter& words, Options options) {
    words.add(std::uint64_t{options.bindings.params.size()});
    for (const auto& [name, value] : options.bindings.params) {
      words.add(std::string_view(name));
      words.add(static_cast<std::uint64_t>(value.index()));
    }
    words.add(std::uint64_t{options.bindings.captures.size()});
    for (const auto& [name, view] : options.bindings.captures) {
      words.add(std::string_view(name));
      words.add(view);
    }
  }
  static void scale(KeyWriter& words, Options options) { words.add(options.scale); }
  static void normalizer(KeyWriter& words, Options options) {
    words.add(static_cast<std::uint64_t>(options.normalizer));
  }
  static void block_mask(KeyWriter& words, Options options) {
    words.add(options.block_mask != nullptr ? options.block_mask->revision() : 0);
  }
  static void mask_version(KeyWriter& words, Options options) { words.add(options.mask_version); }
  static void backend(KeyWriter& words, Options options) { words.add(static_cast<std::uint64_t>(options.backend)); }
  static void tuning(KeyWriter& words, Options options) { words.add(static_cast<std::uint64_t>(options.tuning)); }
  static void threads(KeyWriter& words, Options options) { words.add(std::int64_t{options.threads}); }
  // A run's alone: plans do not depend on them.
  static void stream(KeyWriter&, Options) {}
  static void progress(KeyWriter&, Options) {}
};

/// Does not compile unless options.def has a row for each member but score_mod, the first.
[[maybe_unused]] void require_rows(const AttentionOptions& options) {
  [[maybe_unused]] const auto& [score_mod
#define HEDDLE_OPTION(name) , name
#include "heddle/options.def"
  ] = options;
}

/// Adds the words that keys of both passes have.
void add_options(KeyWriter& words, const AttentionOptions& options) {
  words.add(options.score_mod);
#define HEDDLE_TENSOR_OPTION(name, group, help) words.add(options.name);
#define HEDDLE_LENGTHS_OPTION(name, group, help) words.add_lengths(#name, options.name);
#define HEDDLE_COUNT_OPTION(name) words.add(options.name);
#define HEDDLE_FLAG_OPTION(name, shown, help) words.add(std::uint64_t{options.name});
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) words.add(std::uint64_t{options.name});
#define HEDDLE_OTHER_OPTION(name) OtherWords::name(words, options);
#include "heddle/options.def"
  words.add(std::string_view(base::value_of(base::Option::family)));
}

}  // namespace

void write_key(const AttentionTensors& tensors, const AttentionOptions& options, PlanKey& key) {
  key.clear();
  KeyWriter words(key);
  // All members: a new one does not compile before it stands here.
  const auto& [q, k, v, o, lse, max_scores, lse_rest] = tensors;
  for (const ConstTensorView* view : {&q, &k, &v}) words.add(*view);
  words.add(std::uint64_t{k.data == v.data});  // a kernel may read its values from the keys
  words.add(ConstTensorView(o));
  for (const auto* view : {&lse, &max_scores, &lse_rest}) words.add(*view);
  add_options(words, options);
}

void write_key(const BackwardTensors& tensors, const AttentionOptions& options, PlanKey& key) {
  key.clear();
  KeyWriter words(key);
  words.add(kBackward);
  const auto& [q, k, v, o, lse, d_o, d_lse, lse_rest, dq, dk, dv, d_sinks, d_captures, d_params] = tensors;
  for (const ConstTensorView* view : {&q, &k, &v, &o, &d_o}) words.add(*view);
  for (const auto* view : {&lse, &d_lse, &lse_rest}) words.add(*view);
  for (const auto* gradient : {&dq, &dk, &dv, &d_sinks}) words.add(*gradient);
  for (const NamedViews* gradients : {&d_captures, &d_params}) {
    words.add(static_cast<std::uint64_t>(gradients->size()));
    for (const auto& [name, view] : *gradients) {
      words.add(std::string_view(name));
      words.add(ConstTensorView(view));
    }
  }
  add_options(words, options);
}

}  // namespace heddle::engine
