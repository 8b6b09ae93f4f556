// Masks of two parts, one of whose rows repeat, so large that later batches of rows are made from the parts: the rows
// equal the dense definition, and cost no question for each block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "heddle/block_mask.h"
#include "heddle/mods.h"
#include "kept_cases.h"
#include "mask/dense.h"

namespace heddle::test {
namespace {

constexpr BlockSize kBlock = {2, 2};

/// As dense_classes, of a mask in C++: some 18 million elements.
std::string classes_of(const std::function<bool(std::int64_t, std::int64_t)>& attends, const Sequence& s) {
  std::string classes;
  for (std::int64_t q = 0; q < s.q_len; q += kBlock.q) {
    for (std::int64_t kv = 0; kv < s.kv_len; kv += kBlock.kv) {
      int yes = 0, total = 0;
      for (std::int64_t i = q; i < std::min(s.q_len, q + kBlock.q); ++i) {
        for (std::int64_t j = kv; j < std::min(s.kv_len, kv + kBlock.kv); ++j, ++total) yes += attends(i, j) ? 1 : 0;
      }
      classes += yes == total ? '#' : yes == 0 ? '.' : '+';
    }
    classes += '\n';
  }
  return classes;
}

struct Case {
  Expr mask;
  std::function<bool(std::int64_t, std::int64_t, std::int64_t)> attends;  // head, query, key
};

TEST(RepeatedPart, EqualsTheDenseDefinition) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), h = leaf::h();
  const std::vector<Case> cases = {
      {(floor_div(q, 6) % 2 == floor_div(kv, 6) % 2) & (q >= kv),
       [](auto, auto i, auto j) { return i / 6 % 2 == j / 6 % 2 && i >= j; }},
      // A part of the keys alone; and blocks that are partial in both parts, but empty.
      {(floor_div(kv, 3) % 3 == h) & (q >= kv), [](auto head, auto i, auto j) { return j / 3 % 3 == head && i >= j; }},
      {((q - kv) % 10 >= 5) & (q - kv < 1505) & (q >= kv),
       [](auto, auto i, auto j) { return i >= j && (i - j) % 10 >= 5 && i - j < 1505; }},
      // Elements decide blocks of the last rows: these are not made from parts.
      {(floor_div(q, 6) % 2 == floor_div(kv, 6) % 2) & ((q < 4250) | ((q * kv) % 5 != 0)),
       [](auto, auto i, auto j) { return i / 6 % 2 == j / 6 % 2 && (i < 4250 || i * j % 5 != 0); }},
      // Strides beside a window, and the keys at the ends of segments: all blocks are partial in the first part.
      {((q - kv < 30) | ((q - kv) % 16 == 0)) & (q >= kv),
       [](auto, auto i, auto j) { return i >= j && (i - j < 30 || (i - j) % 16 == 0); }},
      {((floor_div(q, 12) == floor_div(kv, 12)) | (kv % 12 >= 9)) & !(kv > q),
       [](auto, auto i, auto j) { return i >= j && (i / 12 == j / 12 || j % 12 >= 9); }},
      // Blocks that are partial in both alternatives, but full.
      {(kv % 2 == 0) | ((kv % 2 == 1) & (q + kv < 3000)),
       [](auto, auto i, auto j) { return j % 2 == 0 || i + j < 3000; }},
      // Negated, with parts inside parts, and with two parts whose rows repeat, but do not together.
      {!(((floor_div(q, 6) % 2 == floor_div(kv, 6) % 2) & (q - kv < 900)) | ((kv % 4 == 1) & (q + kv < 3000))),
       [](auto, auto i, auto j) { return !((i / 6 % 2 == j / 6 % 2 && i - j < 900) || (j % 4 == 1 && i + j < 3000)); }},
      {((q % 94 < 40) | (kv % 8 >= 4)) & ((q % 118 < 60) | (kv % 10 >= 4)) & (q >= kv),
       [](auto, auto i, auto j) { return (i % 94 < 40 || j % 8 >= 4) && (i % 118 < 60 || j % 10 >= 4) && i >= j; }},
  };
  for (std::size_t number = 0; number < cases.size(); ++number) {
    if (!test::is_drawn(number, 3) || !test::is_kept(number / 3, 3)) continue;
    const Case& c = cases[number];
    SCOPED_TRACE(print(c.mask));
    const std::int64_t heads = c.mask.node()->uses.has(expr::Leaf::h) ? 2 : 1;
    const MaskShape shape = {.heads = heads, .sequences = {{.q_len = 4401, .kv_len = 4097}}};
    const BlockMask built = BlockMask::build(c.mask, shape, kBlock);
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto attends = [&](std::int64_t i, std::int64_t j) { return c.attends(head, i, j); };
      // Not EXPECT_EQ, which would print both.
      EXPECT_TRUE(run_classes(built, 0, head) == classes_of(attends, shape.sequences[0])) << "head " << head;
    }
  }
}

/// The first batch of rows asks for its blocks, and the others for the causal part's edge alone.
TEST(RepeatedPart, StripesWithinCausalCostTheirRuns) {
  constexpr std::int64_t kTokens = 1 << 19, kBlocks = kTokens / 128;
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr mask = (floor_div(q, 128) % 2 == floor_div(kv, 128) % 2) & (q >= kv);
  const BlockMask built = BlockMask::build(mask, MaskShape::uniform(1, 1, kTokens, kTokens), {128, 128});
  const BlockMask::Statistics statistics = built.statistics();
  EXPECT_EQ(statistics.partial, kBlocks);
  EXPECT_EQ(statistics.full, kBlocks / 2 * (kBlocks / 2 - 1));
  EXPECT_EQ(statistics.runs, statistics.full + statistics.partial);
  EXPECT_LT(statistics.range_queries, 20 * kBlocks);
  EXPECT_LT(statistics.bytes, 1 << 20);
  const BlockMask columns = built.transposed();
  EXPECT_EQ(columns.statistics().full, statistics.full);
  EXPECT_EQ(columns.statistics().partial, statistics.partial);
  EXPECT_LT(columns.statistics().bytes, 1 << 20);
  EXPECT_TRUE(columns.transposed() == built);
}

}  // namespace
}  // namespace heddle::test
