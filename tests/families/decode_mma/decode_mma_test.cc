// The family of few queries on NVIDIA's GPUs: its refusals, its kernels, its cut of the work. Masks:
// decode_mma_masks_test.cc; bits that do not depend on the batch: decode_mma_batch_invariant_test.cc.
#include "families/decode_mma/decode_mma.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "device/known_gpus.h"
#include "expect_error.h"
#include "families/decode_mma/decode_offers.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "families/table.h"

namespace heddle::test::decode {
namespace {

using shared::ForwardMmaConfig;

TEST(DecodeMma, TakesFewQueriesOf16Bits) {
  EXPECT_EQ(refusal(few()), "");
  EXPECT_EQ(refusal(few(32), "a100"), "");
  EXPECT_EQ(refusal(few(16, 8192, 256), "l4"), "");
  EXPECT_EQ(refusal(few(64)), "");
  EXPECT_EQ(refusal(few(64, 8192, 256)), "");
  EXPECT_EQ(refusal(few(65)), "sequences have up to 65 queries; up to 64 are accepted");
  HopperCall wide = few();
  wide.dtype = DType::f32;
  EXPECT_EQ(refusal(wide),
            "q, k, v are f32, f32, f32; f16 or bf16 for all is accepted, or k and v of e4m3 or e5m2 beside q "
            "of f16, bf16, e4m3 or e5m2");
}

// Runs that overlap with the kernel before them read early what it does not write, as the caller promises.
TEST(DecodeMma, ReadsEarlyWhatIsPromised) {
  HopperCall call = few();
  EXPECT_FALSE(first_of(call).early);
  call.options.fresh_tokens = 1;
  EXPECT_TRUE(first_of(call).early);
  EXPECT_FALSE(first_of(call, "a100").early);
  call.kv_rows = 65536;
  EXPECT_FALSE(first_of(call).overlaps);
  EXPECT_FALSE(first_of(call).early);
  call.options.fresh_tokens = 0;
  EXPECT_THROW(call.problem(), Error);
}

// Tiles of the same keys: memory gives the keys once, up to what the L2 cache gives the others.
TEST(DecodeMma, TilesShareWhatIsRead) {
  const auto seconds = [](std::int64_t queries) { return offered(few(queries)).front().plan.predicted->seconds; };
  EXPECT_DOUBLE_EQ(seconds(8), seconds(4));
  EXPECT_GT(seconds(16), seconds(8));
  EXPECT_LT(seconds(16), 2 * seconds(8));
}

TEST(DecodeMma, TakesKeysOf8Bits) {
  for (const DType q : {DType::bf16, DType::f16, DType::e4m3, DType::e5m2}) {
    EXPECT_EQ(refusal(bytes(q, DType::e4m3)), "");
    EXPECT_EQ(refusal(bytes(q, DType::e5m2), "a100"), "");
  }
  HopperCall narrow = bytes(DType::e4m3);
  narrow.o_dtype = DType::e4m3;
  EXPECT_EQ(refusal(narrow), "o is e4m3; f16, bf16, f32 and f64 are accepted");
  const ForwardMmaConfig config = first_of(bytes());
  EXPECT_TRUE(config.converts());
  EXPECT_EQ(config.storage, shared::Storage::f16);
  EXPECT_TRUE(config.q_bf16);
  EXPECT_EQ(config.q_fp8, shared::Fp8::none);
  EXPECT_EQ(config.k_fp8, shared::Fp8::e4m3);
  EXPECT_EQ(config.o_type, shared::StorageType::bf16);
  EXPECT_GT(config.headroom, 0);
  EXPECT_FALSE(first_of(bytes(DType::f16)).q_bf16);
  EXPECT_EQ(first_of(bytes(DType::f16)).o_type, shared::StorageType::same);
}

TEST(DecodeMma, TakesValuesThatAreTheFirstColumnsOfTheKeys) {
  EXPECT_EQ(refusal(latent()), "");
  EXPECT_EQ(refusal(latent(), "l4"), "");
  HopperCall apart = latent();
  apart.values_in_keys = false;
  EXPECT_EQ(
      refusal(apart),
      "q and k have head dimension 576, and v 512, which is not in k's memory; 1 to 256 are accepted, or up to 576 "
      "where v is the first columns of k in the same memory, a multiple of 64 up to 512");
  HopperCall odd = latent();
  odd.v_dim = 500;
  EXPECT_EQ(
      refusal(odd),
      "q and k have head dimension 576, and v 500; 1 to 256 are accepted, or up to 576 where v is the first columns "
      "of k in the same memory, a multiple of 64 up to 512");
  HopperCall in_bytes = latent(64);
  in_bytes.kv_dtype = DType::e4m3;
  const ForwardMmaConfig all = first_of(latent(), "a100"), half = first_of(in_bytes),
                         few = first_of(latent(16), "a100");
  EXPECT_TRUE(all.wide());
  EXPECT_EQ(plan::decode_mma_tiles(latent().problem(), all), 4);
  EXPECT_EQ(plan::decode_mma_tiles(latent(64).problem(), half), 1);
  EXPECT_EQ(half.row_waves, 2);
  EXPECT_EQ(half.row_fragments, 2);
  EXPECT_EQ(half.key_waves, 4);
  EXPECT_EQ(few.row_waves, 1);
  EXPECT_EQ(few.row_fragments, 1);
  for (const char* gpu : {"h200", "a100", "l4"}) {
    for (const plan::Choice& choice : offered(latent(64), gpu)) {
      const auto& config = choice.plan.part<ForwardMmaConfig>();
      EXPECT_LE(shared::decode_mma_memory(config).bytes, caps_of(gpu).shared_memory_bytes);
      EXPECT_LE(config.row_fragments * config.wave_columns() / 2, 128);
    }
  }
  // Keys are read, and their columns are not read again.
  EXPECT_DOUBLE_EQ(offered(latent(64)).front().plan.predicted->bytes, 2.0 * 8192 * 576 * 2);
}

// Queries and keys in two tensors each: the same kernels, which read as many bytes at once as divide the cut, too.
TEST(DecodeMma, TakesRowsOfTwoTensors) {
  HopperCall apart = latent(16);
  apart.q_rest = apart.k_rest = 64;
  EXPECT_EQ(refusal(apart), "");
  const ForwardMmaConfig config = first_of(apart);
  EXPECT_TRUE(config.by_warpgroups());
  EXPECT_EQ(config.q_first, 512);
  EXPECT_EQ(config.k_first, 512);
  EXPECT_EQ(config.qk_dim, 576);
  EXPECT_EQ(config.q_bytes, 16);
  EXPECT_EQ(first_of(latent(16)).q_first, 0);
  EXPECT_DOUBLE_EQ(offered(apart).front().plan.predicted->bytes, offered(latent(16)).front().plan.predicted->bytes);
  // Warpgroups read whole panels of keys from one place; queries may be cut at any 16 bytes.
  apart.q_rest = 72;
  EXPECT_TRUE(first_of(apart).by_warpgroups());
  apart.k_rest = 32;
  EXPECT_FALSE(first_of(apart).by_warpgroups());
  EXPECT_EQ(first_of(apart).kv_bytes, 16);
  HopperCall odd = few();
  odd.q_rest = 24;
  odd.k_rest = 23;
  EXPECT_EQ(first_of(odd).q_bytes, 16);
  EXPECT_EQ(first_of(odd).kv_bytes, 2);
  odd.kv_dtype = DType::e4m3;
  EXPECT_EQ(first_of(odd).kv_bytes, 1);
  // Rows of 256 bytes each, cut behind 210 or 208.
  const auto bytes_of_padded = [](std::int64_t columns) {
    HopperCall call = few();
    call.k_rest = columns;
    AttentionTensors padded = call.tensors();
    AttentionOptions options = call.all_options();
    for (ConstTensorView* view : {&padded.k, &*options.k_rest}) {
      view->strides = {128 * view->shape[2] * view->shape[1], 128 * view->shape[2], 128, 1};
    }
    const problem::AttentionProblem problem = call.problem();
    return plan::decode_mma_configs(problem, plan::portable_mods(problem), padded, options, caps_of("h200"))
        .front()
        .kv_bytes;
  };
  EXPECT_EQ(bytes_of_padded(23), 2);
  EXPECT_EQ(bytes_of_padded(24), 16);
}

// Hopper's warpgroups multiply 64 rows at once, whatever rows there are. Kernels by mma.sync follow, and stand alone
// where keys are bytes or at odd addresses, and where dims are no whole panels.
TEST(DecodeMma, WarpgroupsComputeWhereHopperHasThem) {
  for (const std::int64_t heads : {16, 32, 64, 128}) {
    const std::vector<plan::Choice> choices = offered(latent(heads));
    const auto& first = choices.front().plan.part<ForwardMmaConfig>();
    EXPECT_TRUE(first.by_warpgroups()) << heads;
    EXPECT_FALSE(choices.front().plan.yields);
    EXPECT_EQ(first.live_rows, std::min<std::int64_t>(heads, 64));
    EXPECT_EQ(first.rows(), 64);
    EXPECT_EQ(first.block_keys(), 64);
    EXPECT_EQ(first.wave_columns(), 256);
    EXPECT_LE(shared::decode_mma_memory(first).bytes, caps_of("h200").shared_memory_bytes);
    EXPECT_EQ(shared::forward_mma_memory(first).q % 1024, 0);
    EXPECT_FALSE(choices.back().plan.part<ForwardMmaConfig>().by_warpgroups());
    EXPECT_LT(choices.front().plan.predicted->seconds, choices.back().plan.predicted->seconds);
  }
  EXPECT_EQ(plan::decode_mma_tiles(latent().problem(), first_of(latent())), 2);
  HopperCall bytes = latent(), narrow = latent(), odd = latent();
  bytes.kv_dtype = DType::e4m3;
  narrow.v_dim = 384;
  odd.dim = 568;
  for (const HopperCall& call : {bytes, narrow, odd}) {
    for (const plan::Choice& choice : offered(call)) {
      EXPECT_FALSE(choice.plan.part<ForwardMmaConfig>().by_warpgroups());
    }
  }
  EXPECT_FALSE(first_of(latent(), "a100").by_warpgroups());
  // Rows are padded, so their bits do not depend on how many there are.
  for (const std::int64_t heads : {16, 128}) EXPECT_TRUE(first_of(invariant(latent(heads))).by_warpgroups());
}

// 8 bits are half the bytes, and waves take twice the keys where there are many.
TEST(DecodeMma, BytesHalveWhatIsRead) {
  EXPECT_DOUBLE_EQ(offered(bytes()).front().plan.predicted->bytes, offered(few()).front().plan.predicted->bytes / 2);
  EXPECT_EQ(first_of(bytes()).wave_keys(), 32);
  EXPECT_EQ(offered(bytes()).back().plan.part<ForwardMmaConfig>().wave_keys(), 16);
  EXPECT_EQ(first_of(bytes(DType::bf16, DType::e4m3, 1024)).wave_keys(), 16);
  EXPECT_EQ(first_of(few()).wave_keys(), 16);
  // A wave's keys lie in one page, or in two.
  for (const auto& [page_rows, keys] : {std::pair{32, 32}, {16, 32}, {8, 16}, {24, 16}}) {
    problem::AttentionProblem paged = bytes().problem();
    paged.page_rows = page_rows;
    const auto choices =
        plan::decode_mma(paged, bytes().tensors(), {}, caps_of("h200"), [](BlockSize) { return nullptr; });
    const auto& config = choices.front().plan.part<ForwardMmaConfig>();
    EXPECT_EQ(config.wave_keys(), keys);
    EXPECT_EQ(config.blocks_in_two_pages(), 2 * page_rows == keys);
    EXPECT_EQ(config.blocks_in_pages(), page_rows != 24);
  }
}

TEST(DecodeMma, RefusesListsOfBlocks) {
  HopperCall call = few();
  BlockLists lists;
  lists.kv_num_blocks = Tensor::zeros(DType::i32, {1, 1, 1});
  lists.kv_indices = Tensor::zeros(DType::i32, {1, 1, 1, 64});
  const problem::AttentionProblem problem = call.problem();
  call.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::from_lists(lists, {problem.q_heads, problem.sequences}, {128, 128}, {}));
  EXPECT_EQ(refusal(call), "block_mask is made of lists; masks by a mask_mod are accepted");
}

TEST(DecodeMma, FillsAMultiprocessor) {
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    for (const std::int64_t dim : {64, 80, 128, 256}) {
      for (const std::int64_t queries : {1, 4, 10}) {
        if (dim == 256 && queries > 1 && gpu.caps.shared_memory_bytes < (128 << 10)) continue;  // forward_mma takes it
        SCOPED_TRACE(fmt::format("{} D {} queries {}", gpu.name, dim, queries));
        const ForwardMmaConfig config = first_of(few(queries, 8192, dim), gpu.name);
        const int bytes = shared::decode_mma_memory(config).bytes;
        EXPECT_LE(bytes, gpu.caps.shared_memory_bytes);
        EXPECT_GE(shared::resident_ctas(bytes, gpu.caps.shared_memory_bytes), config.ctas);
        EXPECT_EQ(config.row_waves, 1);
        EXPECT_EQ(config.wave_keys(), 16);
        EXPECT_GE(config.live_rows, queries);
        EXPECT_LE(config.live_rows, config.rows());
        EXPECT_LE(config.ctas * config.threads(), 256);
      }
    }
  }
}

// One sequence has more queries than a wave has rows: two or four waves share the keys. Where heads alone make up many
// rows, tiles of one fragment come first.
TEST(DecodeMma, WavesShareRows) {
  struct Rows {
    std::int64_t queries, dim;
    int row_waves, row_fragments;
  };
  for (const Rows& rows : {Rows{33, 128, 2, 2}, {64, 64, 2, 2}, {17, 256, 2, 1}, {33, 256, 4, 1}, {64, 192, 4, 1}}) {
    const ForwardMmaConfig config = first_of(few(rows.queries, 8192, rows.dim), "a100");
    EXPECT_EQ(config.row_waves, rows.row_waves);
    EXPECT_EQ(config.row_fragments, rows.row_fragments);
    EXPECT_EQ(config.live_rows, rows.queries * config.packed_heads);
    EXPECT_LE(config.live_rows, config.rows());
    EXPECT_EQ(config.wave_keys(), 16);
    EXPECT_LE(config.threads(), 256);
    HopperCall eight_bits = few(rows.queries, 8192, rows.dim);
    eight_bits.kv_dtype = DType::e4m3;
    EXPECT_TRUE(offered(few(rows.queries, 8192, rows.dim), "a100").front().plan.yields);
    EXPECT_TRUE(offered(eight_bits).front().plan.yields);
  }
  const std::vector<plan::Choice> choices = offered(few(16), "a100");  // 64 rows
  EXPECT_FALSE(choices.front().plan.yields);
  EXPECT_EQ(choices.front().plan.part<ForwardMmaConfig>().live_rows, 16);
  EXPECT_TRUE(choices.back().plan.yields);
  EXPECT_EQ(choices.back().plan.part<ForwardMmaConfig>().live_rows, 64);
  EXPECT_GT(choices.back().plan.part<ForwardMmaConfig>().row_waves, 1);
}

TEST(DecodeMma, PacksHeadsThatReadTheSameKeys) {
  EXPECT_EQ(first_of(few(1)).packed_heads, 4);
  EXPECT_EQ(first_of(few(1)).live_rows, 4);
  EXPECT_EQ(first_of(few(4)).packed_heads, 4);  // 16 rows
  EXPECT_EQ(first_of(few(8)).packed_heads, 2);
  EXPECT_EQ(first_of(few(16), "a100").packed_heads, 1);
  EXPECT_EQ(first_of(few(17), "a100").packed_heads, 1);
  HopperCall odd = few(1);
  odd.q_heads = 8 * 71;
  const ForwardMmaConfig config = first_of(odd, "a100");
  EXPECT_EQ(config.packed_heads, 16);
  EXPECT_EQ(plan::decode_mma_tiles(odd.problem(), config), 8 * 5);
}

// Gangs of CTAs fill the chip, and each gang has a unit.
TEST(DecodeMma, CutsTheLineForTheChip) {
  const auto grid = [](const HopperCall& call) { return offered(call).front().plan.grid; };
  EXPECT_EQ(grid(few(1, 65536)), 16 * 8);  // 132 multiprocessors hold 16 gangs of 8 tiles
  EXPECT_EQ(grid(few(1, 128)), 2 * 8);     // two sequences of a unit each
  EXPECT_EQ(grid(few(1, 0)), 2 * 8);
  EXPECT_EQ(grid(few(1, 256)), 2 * 8);  // two units of a sequence are not worth merging
  EXPECT_EQ(grid(few(1, 384)), 6 * 8);
}

TEST(DecodeMma, CutsAreEqualAndWhole) {
  for (const int units : {1, 2, 7, 16, 17, 1000, 123457}) {
    for (const int most : {1, 2, 16, 33, 264}) {
      const shared::LineCut cut = shared::line_cut(units, most);
      EXPECT_EQ(cut.gangs, std::min(units, most));
      EXPECT_EQ(cut.begin(0), 0);
      EXPECT_EQ(cut.begin(cut.gangs), units);
      for (int gang = 0; gang < cut.gangs; ++gang) {
        const int begin = cut.begin(gang), end = cut.begin(gang + 1);
        EXPECT_GE(end - begin, units / cut.gangs);
        EXPECT_LE(end - begin, units / cut.gangs + 1);
        EXPECT_EQ(cut.gang_of(begin), gang);
        EXPECT_EQ(cut.gang_of(end - 1), gang);
      }
    }
  }
}

// Short runs begin while the kernel before them ends; long ones do not, nor those of chips that cannot.
TEST(DecodeMma, ShortRunsOverlap) {
  EXPECT_TRUE(first_of(few(1, 1024)).overlaps);
  EXPECT_FALSE(first_of(few(1, 1 << 20)).overlaps);
  EXPECT_FALSE(first_of(few(1, 1024), "a100").overlaps);
}

TEST(DecodeMma, TheWorkspaceHoldsTwoPartsOfEachCta) {
  const plan::Plan plan = offered(few(1, 65536)).front().plan;
  const auto& config = plan.part<ForwardMmaConfig>();
  EXPECT_EQ(plan.workspace_bytes, shared::decode_mma_workspace(config, plan.grid).bytes);
  EXPECT_GE(plan.workspace_bytes, plan.grid * (8 + 2 * 4 * (128 + 2) * 4));
}

}  // namespace
}  // namespace heddle::test::decode
