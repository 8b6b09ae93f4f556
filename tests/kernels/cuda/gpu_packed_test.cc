// Query heads that share a tile: every kernel of the table packed in each way, at the edges of its queries, heads and
// keys, together with other features. Against the reference, by the one criterion. HEDDLE_TEST_REDUCED=1 runs some;
// HEDDLE_TEST_BACKEND=cpu sends the same cases through the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"
#include "kernels/cuda/crossings.h"
#include "kernels/cuda/gpu_test.h"
#include "plan/mods/streamed_read.h"

namespace heddle::test {
namespace {

class GpuPacked : public GpuTest {};

/// Without queries there is nothing to pack.
bool has_queries(const CaseSpec& spec) {
  if (spec.sequences != "lengths") return true;
  const AttentionCase drawn(spec);
  const ConstTensorView lengths = *drawn.options().q_lengths;
  const auto* length = static_cast<const std::int32_t*>(lengths.data);
  return std::any_of(length, length + lengths.shape[0], [](std::int32_t queries) { return queries > 0; });
}
void run_all_packed(std::vector<CaseSpec> specs) {
  for (CaseSpec& spec : specs) {
    while (!has_queries(spec)) spec.seed += 1'000'000;
  }
  run_all_and_in_place(std::move(specs));
}

/// The rest of a case, dealt: groups that fill warpgroups, tiles, or neither, and queries that end inside a head's
/// rows.
class Source {
 public:
  explicit Source(std::uint64_t first_seed) : seed_(first_seed) {}
  CaseSpec draw(int packed, const plan::ForwardSm90Kernel& kernel) {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    spec.qk_dim = kernel.qk_dim;
    spec.v_dim = kernel.v_dim;
    spec.layout = Layout::bshd;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = seed_ % 3 == 0 ? DType::f16 : DType::bf16;
    spec.batch = batch_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.group = packed == 16 ? group_of_many_.deal() : packed == 32 ? group_of_three_.deal() : group_.deal();
    spec.q_rows = packed == 16 ? short_rows_.deal() : rows_.deal();
    spec.kv_rows = 2 * kernel.kv_block + keys_.deal();
    spec.tile = {kernel.config().rows(), kernel.kv_block};
    spec.packed = packed;
    spec.rows = "given";
    spec.block = BlockSize{64, kernel.kv_block};
    spec.with_lse = seed_ % 5 != 0;
    return spec;
  }

 private:
  std::uint64_t seed_;
  Deck<std::int64_t> batch_{{1, 2, 3}, 1}, kv_heads_{{1, 2}, 2};
  // Packed by 16, the group is more than two; by 32, more than one.
  Deck<std::int64_t> group_of_many_{{3, 4, 5, 7, 8, 9, 12, 13, 17}, 3}, group_of_three_{{2, 3, 4, 5, 7, 9}, 4},
      group_{{2, 3, 4, 5}, 5};
  Deck<std::int64_t> short_rows_{{1, 2, 8, 15, 16, 17, 31, 33, 50, 64}, 6}, rows_{{1, 16, 31, 32, 33, 48, 63, 64}, 7};
  Deck<std::int64_t> keys_{{-30, 0, 1, 17, 40}, 8};
};

/// The kernels of the table.
std::vector<plan::ForwardSm90Kernel> kernels() {
  return {plan::kForwardSm90Kernels.begin(), plan::kForwardSm90Kernels.end()};
}

// Few CTAs have many tiles each, some of which are computed twice.
TEST_F(GpuPacked, EveryKernel) {
  std::vector<CaseSpec> specs;
  Source source(120'000);
  Deck<int> ctas({0, 1, 3}, 10);
  Deck<std::string> masks({"", "causal_lower_right", "causal", "by_head"}, 11);
  for (const plan::ForwardSm90Kernel& kernel : kernels()) {
    for (const int packed : {16, 32, 64}) {
      for (const double late : {1.0, 300.0}) {
        for (int i = 0; i < 2; ++i) {
          CaseSpec spec = source.draw(packed, kernel);
          spec.ctas = ctas.deal();
          spec.mask = masks.deal();
          spec.late = late;
          if (i == 1) spec.q_start = "aligned";
          specs.push_back(spec);
        }
      }
    }
  }
  run_all_packed(std::move(specs));
}

// Cases where the planner packs by itself: decoding's and speculation's few queries, one group of many heads.
TEST_F(GpuPacked, AsThePlannerChooses) {
  std::vector<CaseSpec> specs;
  Source source(121'000);
  Deck<std::int64_t> groups({2, 4, 6, 8, 16}, 12), rows({1, 3, 8, 16, 20, 32}, 13);
  Deck<std::string> scores({"", "alibi", "softcap", "t5_bias", "streamed_bias", "full_bias"}, 14),
      masks({"causal_lower_right", "", "sliding_window", "documents", "tree"}, 15);
  for (int i = 0; i < 30; ++i) {
    CaseSpec spec = source.draw(16, plan::kForwardSm90Kernels[static_cast<std::size_t>(i) % 16]);
    spec.tile.reset();
    spec.rows = "built";
    spec.block.reset();
    spec.batch = 10;
    spec.kv_heads = 4;
    spec.group = groups.deal();
    spec.q_rows = rows.deal();
    spec.kv_rows = 200;
    spec.score = scores.deal();
    spec.mask = masks.deal();
    spec.q_start = i % 2 == 0 ? "aligned" : "none";
    specs.push_back(spec);
  }
  run_all_packed(std::move(specs));
}

// Sequences that end inside a head's rows: nothing is read or written past them.
TEST_F(GpuPacked, SequencesThatDiffer) {
  std::vector<CaseSpec> specs;
  Source source(122'000);
  Deck<std::string> masks({"", "causal_lower_right", "prefix_by_sequence"}, 16),
      starts({"none", "ahead", "aligned"}, 17);
  Deck<std::string> sinks({"none", "normal", "mixed"}, 18);
  Deck<int> ctas({0, 2}, 19);
  for (const plan::ForwardSm90Kernel& kernel : kernels()) {
    if (kernel.spare) continue;
    for (const int packed : {16, 32, 64}) {
      for (const char* sequences : {"lengths", "packed"}) {
        CaseSpec spec = source.draw(packed, kernel);
        spec.sequences = sequences;
        spec.batch = 5;
        spec.mask = masks.deal();
        spec.q_start = starts.deal();
        spec.sinks = sinks.deal();
        spec.ctas = ctas.deal();
        spec.q_rows = 64;  // some sequences have a query at least
        specs.push_back(spec);
      }
    }
  }
  run_all_packed(std::move(specs));
}

/// Biases in tiles take room that not every kernel has.
bool has_room(const CaseSpec& spec, const plan::ForwardSm90Kernel& kernel) {
  if (!spec.score.starts_with("streamed")) return true;
  return plan::with_streamed_tiles(kernel.config(), spec.score.ends_with("f32") ? DType::f32 : DType::bf16).has_value();
}

TEST_F(GpuPacked, WithWhatElseAKernelDoes) {
  std::vector<CaseSpec> specs;
  Source source(123'000);
  Deck<std::string> sequences({"whole", "lengths", "packed"}, 20);
  std::uint64_t seed = 123'100;
  for (const std::size_t i : {1, 0, 8, 14}) {
    const plan::ForwardSm90Kernel& kernel = plan::kForwardSm90Kernels[i];
    for (const int packed : {16, 32, 64}) {
      CaseSpec base = source.draw(packed, kernel);
      base.q_rows = 40;
      base.seed = seed += 100;
      for (CaseSpec spec : crossings(base)) {
        spec.sequences = sequences.deal();
        spec.rows = "built";
        spec.block.reset();
        if (!has_room(spec, kernel)) spec.tile.reset();
        specs.push_back(spec);
      }
    }
  }
  run_all_packed(std::move(specs));
}

// A box of the bias for each head, of a group that does not fill the tile, too.
TEST_F(GpuPacked, BiasesInTiles) {
  std::vector<CaseSpec> specs;
  Source source(126'000);
  Deck<std::string> masks({"", "causal_lower_right", "dilated_documents", "by_head"}, 25),
      sequences({"whole", "lengths", "packed"}, 26);
  Deck<int> ctas({0, 1, 3}, 27);
  const auto add = [&](const plan::ForwardSm90Kernel& kernel, const std::vector<std::string>& scores) {
    for (const int packed : {16, 32, 64}) {
      for (std::size_t n = 0; n < 4; ++n) {
        CaseSpec spec = source.draw(packed, kernel);
        spec.rows = "built";
        spec.block.reset();
        spec.score = scores[n % scores.size()];
        spec.mask = masks.deal();
        spec.sequences = sequences.deal();
        spec.ctas = ctas.deal();
        specs.push_back(spec);
      }
    }
  };
  for (const std::size_t i : {0, 4, 7, 8}) add(plan::kForwardSm90Kernels[i], {"streamed_bias", "streamed_odd"});
  add(plan::kForwardSm90Kernels[1], {"streamed_bias_f32", "streamed_in_cap", "streamed_odd_f32"});
  add(plan::kForwardSm90WideCaptureKernels[0], {"streamed_bias_f32"});
  run_all_packed(std::move(specs));
}

// A factor for each query head.
TEST_F(GpuPacked, OfEightBits) {
  std::vector<CaseSpec> specs;
  Source source(127'000);
  Deck<std::string> masks({"", "causal_lower_right", "by_head", "sliding_window"}, 28),
      scores({"", "softcap", "alibi"}, 29), sequences({"whole", "lengths", "packed"}, 30),
      sinks({"none", "normal"}, 31);
  Deck<std::int64_t> pages({0, 16, 0, 64}, 32);
  Deck<DType> types({DType::e4m3, DType::e4m3, DType::e5m2}, 33);
  Deck<int> ctas({0, 1, 3}, 34);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    if (kernel.spare) continue;
    for (const int packed : {16, 32, 64}) {
      for (const bool device : {false, true}) {
        CaseSpec spec = source.draw(packed, kernel);
        spec.rows = "built";
        spec.block.reset();
        spec.q_dtype = types.deal();
        spec.k_dtype = spec.v_dtype = DType::e4m3;
        spec.descale = true;
        spec.mask = masks.deal();
        spec.score = scores.deal();
        spec.sinks = sinks.deal();
        spec.sequences = sequences.deal();
        spec.device_lengths = device && spec.sequences != "whole";
        spec.page_rows = pages.deal();
        spec.ctas = ctas.deal();
        specs.push_back(spec);
      }
    }
  }
  run_all_packed(std::move(specs));
}

// Score, mask and weight mods that ask for their head, where a warpgroup has several, of which some attend nothing.
TEST_F(GpuPacked, ModsOfTheirOwnHead) {
  const std::vector<Expr> masks = {leaf::h() % 3 != 1, (leaf::kv_idx() / 64 + leaf::h()) % 3 == 0,
                                   (leaf::h() % 4 == 0) | (leaf::kv_idx() <= leaf::q_idx() + leaf::h()),
                                   (leaf::q_idx() + leaf::h()) % 5 != 0, leaf::kv_idx() >= 64 * (leaf::h() % 5)};
  const std::vector<Expr> scores = {leaf::score() + to_f32(leaf::h() % 7) * 0.25 * to_f32(leaf::q_idx() % 3),
                                    leaf::score() - to_f32(leaf::h() + 1) * 0.01 * to_f32(leaf::kv_idx()),
                                    leaf::score() * to_f32(leaf::h() % 3)};
  std::vector<CaseSpec> specs;
  Source source(124'000);
  const auto rows = plan::kForwardSm90Kernels;
  for (const std::size_t i : {0, 1, 8, 14}) {
    for (const int packed : {16, 32, 64}) {
      for (std::size_t mod = 0; mod < masks.size() + scores.size(); ++mod) {
        CaseSpec spec = source.draw(packed, rows[i]);
        spec.rows = "built";
        spec.block.reset();
        spec.sinks = mod % 2 == 0 ? "normal" : "none";
        spec.scale = static_cast<double>(mod);  // which mod; the scale is the default one
        specs.push_back(spec);
      }
    }
  }
  for_each_spec(some_if_reduced(specs), [&](const CaseSpec& spec) {
    const auto mod = static_cast<std::size_t>(*spec.scale);
    CaseSpec own = spec;
    own.scale.reset();
    GpuCase c(own);
    if (mod < masks.size()) {
      c.options().mask_mod = masks[mod];
    } else {
      c.options().score_mod = scores[mod - masks.size()];
      c.options().weight_mod = where(leaf::h() % 2 == 0, 1.0, to_f32(leaf::kv_idx() % 3));
    }
    c.run_and_judge();
  });
}

TEST_F(GpuPacked, PagedAndCopied) {
  std::vector<CaseSpec> specs;
  Source source(125'000);
  Deck<Layout> layouts({Layout::reversed, Layout::gaps, Layout::padded}, 21);
  Deck<int> alignments({16, 2, 4, 8}, 22);
  Deck<std::int64_t> pages({0, 16, 64, 3, 8}, 23);
  Deck<std::string> sequences({"whole", "lengths", "packed"}, 24);
  for (const plan::ForwardSm90Kernel& kernel : kernels()) {
    for (const int packed : {16, 32, 64}) {
      for (const bool copies : {false, true}) {
        CaseSpec spec = source.draw(packed, kernel);
        spec.page_rows = copies ? pages.deal() : kernel.warpgroups == 3 ? 16 : 3;
        if (copies) {
          spec.layout = layouts.deal();
          spec.alignment = alignments.deal();
        }
        spec.q_rows = 50;
        spec.mask = "causal_lower_right";
        spec.sequences = sequences.deal();
        specs.push_back(spec);
      }
    }
  }
  run_all_packed(std::move(specs));
}

// Head dims that end inside a panel or a product's columns, and o by threads.
TEST_F(GpuPacked, OddHeadDims) {
  std::vector<CaseSpec> specs;
  Source source(126'000);
  Deck<std::optional<DType>> outputs({std::nullopt, DType::f32, DType::f64, DType::e5m2}, 25);
  const std::pair<std::int64_t, std::int64_t> dims[] = {{33, 20}, {80, 72}, {40, 64}, {100, 136}, {64, 8}, {1, 1}};
  for (const auto& [qk, v] : dims) {
    for (const int packed : {16, 32, 64}) {
      CaseSpec spec = source.draw(packed, plan::kForwardSm90Kernels[1]);
      const int native = static_cast<int>(std::max(qk, v));
      spec.tile = {128, native <= 128 ? 128 : 80};
      spec.block = BlockSize{64, spec.tile->kv};
      spec.qk_dim = qk;
      spec.v_dim = v;
      spec.layout = Layout::padded;
      spec.o_dtype = outputs.deal();
      specs.push_back(spec);
    }
  }
  run_all_packed(std::move(specs));
}

}  // namespace
}  // namespace heddle::test
