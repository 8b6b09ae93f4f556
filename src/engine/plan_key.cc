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

// Each function below names all members of its struct: a new member does not compile before it stands here, and is part
// of the key or of a run alone.

/// Adds the words that keys of both passes have.
void add_options(KeyWriter& words, const AttentionOptions& options) {
  const auto& [score_mod, mask_mod, weight_mod, bindings, clamp_reads, scale, sinks, normalizer, q_lengths, kv_lengths,
               cu_seqlens_q, cu_seqlens_kv, page_table, q_start, kv_start, max_q_len, max_kv_len, q_descale, k_descale,
               v_descale, block_mask, mask_version, deterministic, backend, tuning, threads, of_run_stream,
               of_run_progress] = options;
  for (const Expr* mod : {&score_mod, &mask_mod, &weight_mod}) words.add(*mod);
  words.add(scale);
  words.add(static_cast<std::uint64_t>(clamp_reads) | static_cast<std::uint64_t>(deterministic) << 1);
  words.add(static_cast<std::uint64_t>(normalizer) | static_cast<std::uint64_t>(backend) << 8 |
            static_cast<std::uint64_t>(static_cast<std::uint32_t>(threads)) << 32);
  words.add(max_q_len);
  words.add(max_kv_len);
  words.add_lengths("q_lengths", q_lengths);
  words.add_lengths("kv_lengths", kv_lengths);
  words.add_lengths("cu_seqlens_q", cu_seqlens_q);
  words.add_lengths("cu_seqlens_kv", cu_seqlens_kv);
  words.add_lengths("q_start", q_start);
  words.add_lengths("kv_start", kv_start);
  for (const auto* view : {&sinks, &page_table, &q_descale, &k_descale, &v_descale}) words.add(*view);
  words.add(block_mask != nullptr ? block_mask->revision() : 0);
  words.add(mask_version);
  words.add(static_cast<std::uint64_t>(tuning));
  for (const auto& [name, value] : bindings.params) {
    words.add(std::string_view(name));
    words.add(static_cast<std::uint64_t>(value.index()));
  }
  for (const auto& [name, view] : bindings.captures) {
    words.add(std::string_view(name));
    words.add(view);
  }
  words.add(std::string_view(base::value_of(base::Option::family)));
}

}  // namespace

void write_key(const AttentionTensors& tensors, const AttentionOptions& options, PlanKey& key) {
  key.clear();
  KeyWriter words(key);
  const auto& [q, k, v, o, lse, max_scores, lse_rest] = tensors;
  for (const ConstTensorView* view : {&q, &k, &v}) words.add(*view);
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
