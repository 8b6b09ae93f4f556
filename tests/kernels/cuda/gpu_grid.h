// Lists that the grid's cases are drawn from: shapes, types, layouts, kernels, sequences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {

class GpuGrid : public GpuTest {};

inline int scaled(int count) { return reduced() ? count / 10 : count; }

// Scores that a case may cost in the reference.
inline constexpr std::int64_t kElements = 400'000;

inline void shrink_to_budget(CaseSpec& spec) {
  const auto too_large = [&] {
    return spec.batch * spec.q_heads() * spec.q_rows * spec.kv_rows > (reduced() ? kElements / 8 : kElements);
  };
  if (too_large()) spec.batch = spec.share_q_batch || spec.share_kv_batch ? 2 : 1;
  if (too_large()) spec.kv_heads = 1;
  while (too_large() && spec.q_rows > 200) spec.q_rows -= 64;
  while (too_large() && spec.kv_rows > 200) spec.kv_rows -= 64;
  if (too_large()) spec.group = std::min<std::int64_t>(spec.group, 3);
}

/// A kernel of the family and blocks of a mask that it takes: its tile's, or a warpgroup's.
struct KernelBlocks {
  BlockSize tile, block;
};
inline std::vector<KernelBlocks> kernel_blocks(plan::HeadDims native) {
  std::vector<KernelBlocks> all;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (!(plan::dims_of(kernel) == native)) continue;
    const BlockSize tile = {kernel.config().rows(), kernel.kv_block};
    all.push_back({tile, tile});
    all.push_back({tile, {shared::kWarpgroupRows, tile.kv}});
  }
  return all;
}

/// Head dims that have kernels of their own, and those between them.
inline const std::vector<plan::HeadDims> kDims = {
    {64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}, {8, 8},    {16, 16},
    {40, 40}, {72, 72}, {80, 80},   {112, 112}, {160, 160}, {208, 248}, {64, 128}, {128, 64},
    {96, 64}, {256, 8}, {1, 1},     {20, 33},   {100, 100}, {130, 255}};
/// And each native one twice as often.
inline std::vector<plan::HeadDims> with_native(std::vector<plan::HeadDims> dims) {
  for (const plan::HeadDims& some : kDims) {
    if (plan::native_dims(some) == some) dims.insert(dims.end(), 2, some);
  }
  return dims;
}

// Nearly as many cases without a mask.
inline std::vector<std::string> with_unmasked(std::vector<std::string> masks) {
  masks.resize(masks.size() * 7 / 4);
  return masks;
}

class SpecSource {
 public:
  explicit SpecSource(std::uint64_t first_seed = 0) : seed_(first_seed) {}

  CaseSpec draw() {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;  // the cases themselves are in parallel
    const plan::HeadDims dims = dims_.deal();
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype_.deal();
    spec.q_rows = q_rows_.deal();
    spec.kv_rows = kv_rows_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.group = group_.deal();
    spec.batch = batch_.deal();
    const int shared = spec.batch > 1 ? shared_.deal() : 0;
    spec.share_q_batch = shared == 1;
    spec.share_kv_batch = shared == 2;
    spec.layout = layout_.deal();
    if (dims.qk % 8 != 0 || dims.v % 8 != 0) spec.layout = Layout::padded;  // others TMA does not take
    spec.mask = mask_.deal();
    spec.q_start = q_start_.deal();
    spec.spread = spread_.deal();
    spec.late = late_.deal();
    // In f16 a weight below 2^-14 of the largest loses bits, and one below 2^-24 all: where such ones alone decide an
    // element, its row may err by more than the criterion allows (docs/notes/hopper_forward.md).
    if (spec.q_dtype == DType::f16 && spec.spread == 30) spec.spread = 4;
    spec.with_lse = with_lse_.deal() != 0;
    spec.scale = scale_.deal();
    if (given_rows_.deal() != 0) {
      spec.rows = "given";
      const KernelBlocks given = blocks_of(plan::native_dims(dims)).deal();
      spec.tile = given.tile;
      spec.block = given.block;
      spec.ctas = ctas_.deal();
    }
    shrink_to_budget(spec);
    return spec;
  }

 private:
  Deck<KernelBlocks>& blocks_of(plan::HeadDims native) {
    return blocks_.try_emplace({native.qk, native.v}, kernel_blocks(native), 17).first->second;
  }

  std::uint64_t seed_;
  Deck<plan::HeadDims> dims_{with_native(kDims), 1};
  Deck<DType> dtype_{{DType::bf16, DType::bf16, DType::bf16, DType::f16}, 2};
  Deck<std::int64_t> q_rows_{{1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257, 300, 385, 449, 0}, 3};
  Deck<std::int64_t> kv_rows_{
      {1, 2, 16, 63, 64, 65, 79, 80, 81, 127, 128, 129, 159, 160, 161, 192, 257, 320, 385, 500, 641, 0}, 4};
  Deck<std::int64_t> kv_heads_{{1, 2, 3}, 5}, group_{{1, 2, 3, 5}, 6}, batch_{{1, 2, 3}, 7};
  Deck<int> shared_{{0, 0, 1, 2}, 8};
  Deck<Layout> layout_{{Layout::bhsd, Layout::bshd, Layout::bshd, Layout::padded, Layout::sliced}, 9};
  // Each mask, with each type and kernel, is a compilation of a second.
  Deck<std::string> mask_{
      with_unmasked({"causal", "causal", "causal_lower_right", "sliding_window", "dilated_window", "prefix_lm",
                     "global_and_window", "neighbourhood_2d", "block_diffusion", "some_queries_blind",
                     "window_by_params", "window_by_params", "not_causal_or_window", "by_head", "nothing"}),
      10};
  Deck<std::string> q_start_{{"none", "none", "uniform"}, 11};
  Deck<double> spread_{{1, 1, 1, 30, 1000}, 12}, late_{{1, 1, 1, 1, 100}, 13};
  Deck<int> with_lse_{{1, 1, 1, 0}, 14}, given_rows_{{0, 1}, 15};
  Deck<std::optional<double>> scale_{{std::nullopt, std::nullopt, 0.02, 0.5}, 16};
  Deck<int> ctas_{{0, 1, 3}, 22};
  std::map<std::pair<int, int>, Deck<KernelBlocks>> blocks_;  // of native head dims
};

/// A case of that very kernel, in bf16. Warpgroups of a tile see different blocks.
inline CaseSpec spec_of(const plan::ForwardSm90Kernel& kernel, std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.qk_dim = kernel.qk_dim;
  spec.v_dim = kernel.v_dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  spec.rows = "given";
  spec.tile = {kernel.config().rows(), kernel.kv_block};
  spec.block = {shared::kWarpgroupRows, kernel.kv_block};
  return spec;
}

/// By the planner, for a kernel that it chooses.
inline void build_rows(CaseSpec& spec) {
  spec.rows = "built";
  spec.tile.reset();
  spec.block.reset();
  spec.ctas = 0;
}

/// Draws which sequences a case has, and where their queries start.
class SequencesSource {
 public:
  void place(CaseSpec& spec) {
    spec.sequences = sequences_.deal();
    spec.q_start = q_start_.deal();
    spec.mask = mask_.deal();
    spec.score = score_.deal();
    // A kernel that a given block asks for may have no registers for what reads.
    if (spec.score.empty() && !(spec.block && spec.block->kv % 64 != 0)) return;
    spec.rows = "built";
    spec.ctas = 0;
    spec.tile.reset();
    spec.block.reset();
  }

 private:
  Deck<std::string> sequences_{{"lengths", "packed"}, 27}, q_start_{{"none", "ahead", "aligned"}, 28},
      mask_{{"", "", "causal", "causal_lower_right", "sliding_window", "by_head", "prefix_by_sequence"}, 29},
      score_{{"", "", "", "", "alibi", "full_bias", "softcap", "t5_bias"}, 30};
};

}  // namespace heddle::test
