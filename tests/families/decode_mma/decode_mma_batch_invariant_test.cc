// Few queries with batch_invariant: one kernel and one cut of the keys, whatever else is in the batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "expect_error.h"
#include "families/decode_mma/decode_offers.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"

namespace heddle::test::decode {
namespace {

using shared::ForwardMmaConfig;

TEST(DecodeMmaBatchInvariant, OneKernelWhateverTheBatch) {
  const std::vector<plan::Choice> one = offered(invariant(few()));
  ASSERT_EQ(one.size(), 1U);
  const ForwardMmaConfig config = one.front().plan.part<ForwardMmaConfig>();
  EXPECT_EQ(config.chunks, 16);
  EXPECT_EQ(config.key_waves, 8);
  EXPECT_EQ(config.kv_block, 128);
  EXPECT_EQ(config.ctas, 1);
  for (const std::int64_t batch : {1, 3, 500}) {
    for (const std::int64_t keys : {1, 100, 1 << 20}) {
      HopperCall call = few(1, keys);
      call.batch = batch;
      ForwardMmaConfig other = first_of(invariant(call));
      other.overlaps = config.overlaps;  // of launches, not of bits
      EXPECT_EQ(other, config) << batch << " " << keys;
    }
  }
}

// One sequence alone has a chunk for each CTA of its heads.
TEST(DecodeMmaBatchInvariant, AsManyChunksAsCtas) {
  const auto chunks = [](std::int64_t kv_heads) {
    HopperCall call = invariant(few());
    call.kv_heads = kv_heads;
    return first_of(call).chunks;
  };
  EXPECT_EQ(chunks(8), 16);
  EXPECT_EQ(chunks(4), 32);
  EXPECT_EQ(chunks(1), 64);
  EXPECT_EQ(chunks(32), 8);
}

// Tiles of any number of rows cut the keys alike.
TEST(DecodeMmaBatchInvariant, OneCutOfUnitsForAllQueries) {
  for (const char* gpu : {"h200", "a100"}) {
    for (const std::int64_t queries : {1, 2, 8, 16, 17, 32, 33, 64}) {
      const ForwardMmaConfig config = first_of(invariant(few(queries)), gpu);
      EXPECT_EQ(config.key_waves, gpu == std::string_view("h200") ? 8 : 4) << gpu << " " << queries;
      EXPECT_EQ(config.rows(), 16);
      EXPECT_LE(config.live_rows, 16);
      // An A100 has no room for the blocks of four waves of wide rows.
      const int waves = gpu == std::string_view("h200") ? 4 : 2;
      EXPECT_EQ(first_of(invariant(few(queries, 8192, 256)), gpu).key_waves, waves) << gpu << " " << queries;
    }
  }
  for (const std::int64_t heads : {16, 32, 64, 128}) {
    EXPECT_EQ(first_of(invariant(latent(heads))).kv_block, 64) << heads;
  }
  // How many units there are decides nothing.
  for (const std::int64_t keys : {100, 1 << 20}) {
    EXPECT_EQ(first_of(invariant(bytes(DType::bf16, DType::e4m3, keys))).kv_block, 128);
  }
}

// Tiles have some of the queries, and all heads of a group, where these make up more rows.
TEST(DecodeMmaBatchInvariant, TilesOfQueries) {
  const auto tiles = [](std::int64_t queries, std::int64_t heads) {
    HopperCall call = invariant(few(queries));
    call.q_heads = heads;
    const ForwardMmaConfig config = first_of(call);
    return std::array{config.packed_heads, config.tile_queries, plan::decode_mma_query_tiles(call.problem(), config),
                      plan::decode_mma_tiles(call.problem(), config)};
  };
  EXPECT_EQ(tiles(4, 32), (std::array{4, 0, 1, 8}));
  EXPECT_EQ(tiles(16, 32), (std::array{1, 0, 1, 32}));  // a head each
  EXPECT_EQ(tiles(17, 32), (std::array{4, 4, 5, 40}));
  EXPECT_EQ(tiles(64, 8), (std::array{1, 16, 4, 32}));
  EXPECT_EQ(tiles(33, 40), (std::array{8, 2, 17, 136}));
  EXPECT_EQ(tiles(20, 8 * 20), (std::array{16, 1, 20, 320}));
}

// Bounds of a weight_mod over these keys alone say nothing of others'.
TEST(DecodeMmaBatchInvariant, FormsOfAnyBatch) {
  const auto headroom = [](std::int64_t keys) {
    HopperCall call = few(1, keys);
    call.dtype = DType::f16;
    call.options.weight_mod = leaf::kv_idx() * 0.01;
    return std::pair(first_of(call).headroom, first_of(invariant(call)).headroom);
  };
  EXPECT_NE(headroom(100).first, headroom(100'000).first);
  EXPECT_EQ(headroom(100).second, headroom(100'000).second);
}

TEST(DecodeMmaBatchInvariant, AMaskThatLeavesFewBlocksIsNoReason) {
  HopperCall documents = few();
  documents.mask = leaf::kv_idx() % 4096 < 10;
  documents.kv_rows = 1 << 16;
  expect_error([&] { offered(documents); }, ErrorCode::unsupported, testing::HasSubstr("the mask leaves"));
  EXPECT_EQ(offered(invariant(documents)).size(), 1U);
}

TEST(DecodeMmaBatchInvariant, Chunks) {
  const ForwardMmaConfig config = first_of(invariant(few())), wide = first_of(invariant(latent()));
  for (int units = 1; units < 100'000; units += 1 + units / 7) {
    const int each = shared::chunk_units(config, units);
    EXPECT_LE((units + each - 1) / each, shared::kMostChunks) << units;
    // Units have 128 keys: one unit a chunk up to 2048 keys, then 16 chunks until they have 2048 keys.
    if (units <= 16) {
      EXPECT_EQ(each, 1);
    } else if (units <= 16 * 16) {
      EXPECT_LE((units + each - 1) / each, 16) << units;
    } else if (units <= 64 * 16) {
      EXPECT_EQ(each, 16);
    }
    EXPECT_EQ(shared::chunk_units(wide, units) % 4, 0);
  }
  // A plan has room for the parts of each CTA, however long sequences are.
  const plan::Plan plan = offered(invariant(few())).front().plan;
  EXPECT_EQ(plan.workspace_bytes, shared::decode_mma_workspace(config, plan.grid).bytes);
  EXPECT_GE(plan.workspace_bytes, std::int64_t{plan.grid} * shared::kPartsOfChunks * config.live_rows * 128 * 4);
}

}  // namespace
}  // namespace heddle::test::decode
