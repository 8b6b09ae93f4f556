#include "engine/plan_key.h"

#include <bit>
#include <optional>
#include <string_view>
#include <variant>

#include "base/hash.h"
#include "mask/shape.h"
#include "problem/problem.h"
#include "problem/refuse.h"
#include "problem/sequences.h"

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

/// Adds the words that keys of both passes have.
void add_shared(KeyWriter& words, const AttentionTensors& tensors, const AttentionOptions& options) {
  for (const ConstTensorView* view : {&tensors.q, &tensors.k, &tensors.v}) words.add(*view);
  words.add(ConstTensorView(tensors.o));
  words.add(tensors.lse);
  words.add(tensors.max_scores);
  words.add(tensors.lse_rest);
  for (const Expr* mod : {&options.score_mod, &options.mask_mod, &options.weight_mod}) words.add(*mod);
  words.add(options.scale);
  words.add(std::uint64_t{options.clamp_reads});
  words.add(static_cast<std::uint64_t>(options.normalizer) | static_cast<std::uint64_t>(options.backend) << 8 |
            static_cast<std::uint64_t>(static_cast<std::uint32_t>(options.threads)) << 32);
  words.add(options.max_q_len);
  words.add(options.max_kv_len);
  for (const auto& [name, member] : problem::kLengthViews) words.add_lengths(name, options.*member);
  for (const auto* view :
       {&options.sinks, &options.page_table, &options.q_descale, &options.k_descale, &options.v_descale}) {
    words.add(*view);
  }
  words.add(options.block_mask != nullptr ? options.block_mask->revision() : 0);
  words.add(options.mask_version);
  words.add(static_cast<std::uint64_t>(options.tuning));
  for (const auto& [name, value] : options.bindings.params) {
    words.add(std::string_view(name));
    words.add(static_cast<std::uint64_t>(value.index()));
  }
  for (const auto& [name, view] : options.bindings.captures) {
    words.add(std::string_view(name));
    words.add(view);
  }
}

}  // namespace

void write_key(const AttentionTensors& tensors, const AttentionOptions& options, PlanKey& key) {
  key.clear();
  KeyWriter words(key);
  add_shared(words, tensors, options);
}

void write_key(const BackwardTensors& tensors, const AttentionOptions& options, PlanKey& key) {
  key.clear();
  KeyWriter words(key);
  words.add(kBackward);
  words.add(std::uint64_t{options.deterministic});
  words.add(tensors.d_o);
  words.add(tensors.d_lse);
  for (const auto* gradient : {&tensors.dq, &tensors.dk, &tensors.dv, &tensors.d_sinks}) words.add(*gradient);
  for (const NamedViews* gradients : {&tensors.d_captures, &tensors.d_params}) {
    words.add(static_cast<std::uint64_t>(gradients->size()));
    for (const auto& [name, view] : *gradients) {
      words.add(std::string_view(name));
      words.add(ConstTensorView(view));
    }
  }
  add_shared(words, problem::forward_tensors(tensors), options);
}

}  // namespace heddle::engine
