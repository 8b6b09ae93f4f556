// Costs of building: queries of the interval analysis along the boundary, never the area, and tiles only where
// intervals cannot decide. Counts, not times: they are the same on every machine.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "heddle/block_mask.h"
#include "heddle/mods.h"

namespace heddle {
namespace {

constexpr std::int64_t kMillion = 1 << 20;
constexpr std::int64_t kBlocks = kMillion / 128;

TEST(BlockMaskCost, CausalAtAMillionTokensCostsItsDiagonal) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const std::vector<Expr> spellings{q >= kv, !(kv > q), 2 * q - kv >= q};
  const MaskShape shape = MaskShape::uniform(4, 32, kMillion, kMillion);
  BlockMask first;
  for (const Expr& spelling : spellings) {
    SCOPED_TRACE(print(spelling));
    const BlockMask mask = BlockMask::build(spelling, shape, {128, 128});
    const BlockMask::Statistics statistics = mask.statistics();
    EXPECT_EQ(statistics.partial, 128 * kBlocks);
    EXPECT_EQ(statistics.full, 128 * (kBlocks * (kBlocks - 1) / 2));
    EXPECT_EQ(statistics.runs, 2 * kBlocks - 1);
    EXPECT_LT(statistics.bytes, 300000);
    // The corners of a block on the diagonal already say that it is partial.
    EXPECT_EQ(statistics.evaluated_tiles, 0);
    // A block on the diagonal costs two corners and, with the levels above it, 8 queries at most.
    EXPECT_LT(statistics.range_queries, 8 * kBlocks);
    if (first.shape().sequences.empty()) first = mask;
    EXPECT_EQ(mask, first);
    EXPECT_EQ(statistics.range_queries, first.statistics().range_queries);
  }
}

TEST(BlockMaskCost, RowsThatRepeatCostOneOfThem) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr board = floor_div(q, 128) % 2 == floor_div(kv, 128) % 2;
  const Expr diagonals = (floor_div(q, 128) + floor_div(kv, 128)) % 32 < 4;
  struct Case {
    Expr mask;
    std::int64_t rows, runs, turned_runs;
  };
  // A row of the board has a full run for each second block; stripes are all partial, or full for each second row.
  const std::vector<Case> cases{{board, 2, kBlocks, kBlocks},
                                {q % 2 == 0, 1, 1, 1},
                                {kv % 2 == 0, 1, 1, 1},
                                {(q + kv) % 2 == 0, 1, 1, 1},
                                {floor_div(q, 128) % 2 == 0, 2, 1, kBlocks / 2},
                                {floor_div(kv, 128) % 2 == 0, 1, kBlocks / 2, 1},
                                {diagonals, 32, kBlocks + 3, kBlocks + 3}};
  const MaskShape shape = MaskShape::uniform(1, 1, kMillion, kMillion);
  for (const Case& c : cases) {
    SCOPED_TRACE(print(c.mask));
    const BlockMask mask = BlockMask::build(c.mask, shape, {128, 128});
    const BlockMask::Statistics statistics = mask.statistics();
    EXPECT_EQ(statistics.classified_rows, c.rows);
    EXPECT_EQ(statistics.different_rows, c.rows);
    EXPECT_EQ(statistics.runs, c.runs);
    EXPECT_LT(statistics.bytes, 200000);
    EXPECT_LT(statistics.range_queries, 24 * c.rows * kBlocks);
    EXPECT_EQ(statistics.evaluated_tiles, 0);
    const BlockMask columns = mask.transposed();
    EXPECT_EQ(columns.statistics().runs, c.turned_runs);
    EXPECT_LT(columns.statistics().bytes, 200000);
    EXPECT_EQ(columns.transposed(), mask);
  }
}

TEST(BlockMaskCost, AWindowCostsItsTwoEdges) {
  const BlockMask mask =
      BlockMask::build(mods::sliding_window(4096), MaskShape::uniform(1, 1, kMillion, kMillion), {128, 128});
  EXPECT_EQ(mask.statistics().evaluated_tiles, 0);
  EXPECT_LT(mask.statistics().range_queries, 20 * kBlocks);
  EXPECT_LT(mask.statistics().bytes, 1 << 19);
}

TEST(BlockMaskCost, DocumentsCostTheirEdges) {
  constexpr std::int64_t kTokens = 1 << 17;
  std::vector<std::int32_t> ids(kTokens);
  for (std::int64_t i = 0; i < kTokens; ++i) ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i / 3000);
  Bindings bindings;
  bindings.captures["doc"] = {ids.data(), DType::i32, Dims{kTokens}};
  const BlockMask mask = BlockMask::build(mods::documents(Capture("doc", DType::i32, 1)),
                                          MaskShape::uniform(1, 1, kTokens, kTokens), {128, 128}, bindings);
  EXPECT_EQ(mask.statistics().evaluated_tiles, 0);
  // 44 documents, whose squares have some 96 blocks of edge each.
  EXPECT_LT(mask.statistics().range_queries, 44 * 96 * 8);
}

TEST(BlockMaskCost, ALongRowOfKeysIsHalved) {
  const BlockMask decode =
      BlockMask::build(leaf::kv_idx() <= leaf::q_idx(),
                       {.heads = 1, .sequences = {{.q_len = 1, .kv_len = kMillion, .q_start = 700000}}}, {128, 128});
  EXPECT_EQ(decode.statistics().runs, 2);
  EXPECT_LT(decode.statistics().range_queries, 40);
}

TEST(BlockMaskCost, ADensePatternIsReadNotEvaluated) {
  // A block-sparse pattern given as a tensor: bounds of its blocks decide all but the partial ones.
  constexpr std::int64_t kSide = 2048;
  std::vector<std::uint8_t> pattern(kSide * kSide);
  for (std::int64_t r = 0; r < kSide; ++r) {
    for (std::int64_t c = 0; c < kSide; ++c)
      pattern[static_cast<std::size_t>(r * kSide + c)] = (r / 128 * 7 + c / 128) % 3 == 0;
  }
  Bindings bindings;
  bindings.captures["pattern"] = {pattern.data(), DType::boolean, Dims{kSide, kSide}};
  const BlockMask mask = BlockMask::build(Capture("pattern", DType::boolean, 2)(leaf::q_idx(), leaf::kv_idx()),
                                          MaskShape::uniform(1, 1, kSide, kSide), {128, 128}, bindings);
  EXPECT_EQ(mask.statistics().evaluated_tiles, 0);
  EXPECT_EQ(mask.statistics().partial, 0);
  EXPECT_GT(mask.statistics().full, 80);
}

TEST(BlockMaskCost, TransposingCostsTheRuns) {
  const BlockMask mask =
      BlockMask::build(leaf::kv_idx() <= leaf::q_idx(), MaskShape::uniform(1, 1, kMillion, kMillion), {128, 128});
  const BlockMask columns = mask.transposed();
  EXPECT_EQ(columns.statistics().runs, 2 * kBlocks - 1);
  EXPECT_EQ(columns.statistics().full, mask.statistics().full);
}

}  // namespace
}  // namespace heddle
