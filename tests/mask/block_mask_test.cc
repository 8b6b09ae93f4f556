// Block masks equal the dense definition, block for block, and so do their columns and lists.
#include "heddle/block_mask.h"

#include <gtest/gtest.h>

#include <string>

#include "expr/random_expression.h"
#include "heddle/mods.h"
#include "kept_cases.h"
#include "mask/build.h"
#include "mask/dense.h"
#include "mask/random_mask.h"
#include "sample.h"

namespace heddle::test {
namespace {

/// Every score matrix of the mask, its columns, and what the lists give back.
void expect_exact(const BlockMask& built, const Expr& mask, const Bindings& bindings, expr::Precision precision) {
  const expr::Interpreter interpreter(mask, bindings, precision);
  const MaskShape& shape = built.shape();
  const BlockMask columns = built.transposed();
  BlockMask::Statistics counted;
  for (std::int64_t b = 0; b < std::ssize(shape.sequences); ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::string dense = dense_classes(interpreter, shape, built.block(), b, h);
      EXPECT_EQ(run_classes(built, b, h), dense) << "sequence " << b << ", head " << h;
      EXPECT_EQ(run_classes(columns, b, h), exchanged(dense, built.q_blocks(b), built.kv_blocks(b)));
      counted.full += std::ranges::count(dense, '#');
      counted.partial += std::ranges::count(dense, '+');
      counted.empty += std::ranges::count(dense, '.');
    }
  }
  const BlockMask::Statistics statistics = built.statistics();
  EXPECT_EQ(statistics.full, counted.full);
  EXPECT_EQ(statistics.partial, counted.partial);
  EXPECT_EQ(statistics.empty, counted.empty);
  EXPECT_EQ(statistics.blocks, counted.full + counted.partial + counted.empty);
  EXPECT_EQ(columns.transposed(), built);
  EXPECT_NE(columns.revision(), built.revision());
}

TEST(BlockMask, EqualsTheDenseDefinitionForMasksAsPeopleWriteThem) {
  const auto count = static_cast<std::uint64_t>(random_cases(1500));
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    RandomMasks random(seed);
    const Expr mask = random.draw();
    const MaskShape shape = random.shape();
    const BlockSize block = random.block();
    const bool f64 = seed % 8 == 0;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", blocks " << block.q << " x " << block.kv << ", "
                                    << print(mask));
    const BlockMask built =
        BlockMask::build(mask, shape, block, random.bindings(), seed % 2 == 0 ? 1 : 3, f64 ? DType::f64 : DType::f32);
    expect_exact(built, mask, random.bindings(), f64 ? expr::Precision::f64 : expr::Precision::f32);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(BlockMask, EqualsTheDenseDefinitionForRandomExpressions) {
  Vocabulary vocabulary = Vocabulary::mask();
  vocabulary.reads_inside = true;
  RandomExpressions expressions(20, vocabulary);
  const auto count = static_cast<std::uint64_t>(random_cases(1000));
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    RandomMasks random(seed);
    const Expr mask = expressions.draw(ExprType::boolean, 1 + expressions.below(24));
    const MaskShape shape = random.shape();
    const BlockSize block = random.block();
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", blocks " << block.q << " x " << block.kv << ", "
                                    << print(mask));
    const BlockMask built =
        mask::build(mask, shape, block, expressions.bindings(), 1, DType::f32, mask::scalar_evaluator);
    expect_exact(built, mask, expressions.bindings(), expr::Precision::f32);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(BlockMask, DoesNotDependOnThreads) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RandomMasks random(seed);
    const Expr mask = random.draw();
    const MaskShape shape = MaskShape::uniform(2, 2, 300, 200);
    const BlockMask alone = BlockMask::build(mask, shape, {2, 2}, random.bindings(), 1);
    const BlockMask together = BlockMask::build(mask, shape, {2, 2}, random.bindings(), 4);
    EXPECT_EQ(alone, together) << print(mask);
    EXPECT_EQ(alone.statistics().evaluated_tiles, together.statistics().evaluated_tiles);
    EXPECT_EQ(alone.statistics().range_queries, together.statistics().range_queries);
  }
}

TEST(BlockMask, BlocksLargerThanATileAreEvaluatedWhole) {
  // One element, away from the corners, in a block of several tiles a side; intervals do not see through the hash.
  constexpr std::int64_t kRows = 9000, kColumns = 300;
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr hash = (q * q * 7919 + kv * kv * 104729 + q * kv * 31) % 1000003;
  const MaskShape shape = MaskShape::uniform(1, 1, kRows, kColumns);
  for (const auto& [row, column] :
       {std::pair<std::int32_t, std::int32_t>{1, 1}, {8998, 298}, {4097, 130}, {4095, 127}}) {
    expr::Element element;
    element[expr::Leaf::q_idx] = row;
    element[expr::Leaf::kv_idx] = column;
    const auto value = std::get<std::int32_t>(expr::Interpreter(hash, {}, expr::Precision::f32)(element));
    const Expr lone = (hash == value) & (abs(q - row) + abs(kv - column) < 40);
    for (const Expr& mask : {lone, !lone}) {
      const BlockMask built = BlockMask::build(mask, shape, {kRows, kColumns});
      EXPECT_EQ(built.text(), "+\n") << row << ", " << column;
      EXPECT_EQ(built.statistics().evaluated_tiles, 1);
    }
  }
  const Expr never = hash % 2 + (hash + 1) % 2 == 2;
  EXPECT_EQ(BlockMask::build(never, shape, {kRows, kColumns}).text(), ".\n");
  EXPECT_EQ(BlockMask::build(!never, shape, {kRows, kColumns}).text(), "#\n");
}

TEST(BlockMask, EveryOpenBlockIsEvaluated) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr hash = (q * q * 7919 + kv * kv * 104729 + q * kv * 31) % 1000003;
  const Expr never = hash % 2 + (hash + 1) % 2 == 2;
  const BlockMask built = BlockMask::build(never, MaskShape::uniform(1, 1, 1024, 1500), {64, 128});
  EXPECT_EQ(built.statistics().evaluated_tiles, 16 * 12);
  EXPECT_EQ(built.statistics().empty, 16 * 12);
}

TEST(BlockMask, PartsOfAnOpenBlockMayAllBeDecided) {
  // Intervals see over a whole block that either tensor may be 0 or 1, but over its halves that they are equal.
  std::vector<std::int32_t> halves(256);
  for (std::size_t i = 0; i < 256; ++i) halves[i] = i / 64 % 2 == 0 ? 0 : 1;
  Bindings bindings;
  for (const char* name : {"x", "y"}) bindings.captures[name] = {halves.data(), DType::i32, Dims{256}};
  const Expr never =
      (Capture("x", DType::i32, 1)(leaf::q_idx()) == 0) & (Capture("y", DType::i32, 1)(leaf::q_idx()) == 1);
  const MaskShape shape = MaskShape::uniform(1, 1, 256, 256);
  for (const auto& [mask, expected] : {std::pair(never, "..\n..\n"), {!never, "##\n##\n"}}) {
    const BlockMask built = BlockMask::build(mask, shape, {128, 128}, bindings);
    EXPECT_EQ(built.text(), expected);
    EXPECT_EQ(built.statistics().evaluated_tiles, 0);
  }
}

TEST(BlockMask, TheScalarEvaluatorSeesEveryLeaf) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomMasks random(seed);
    const Expr mask = expr::bind_params(random.draw(), random.bindings());
    const MaskShape shape = random.shape();
    const expr::Interpreter interpreter(mask, random.bindings(), expr::Precision::f32);
    const mask::EvaluateRectangle evaluate =
        mask::scalar_evaluator(mask, shape, random.bindings(), expr::Precision::f32);
    for (std::int64_t b = 0; b < std::ssize(shape.sequences); ++b) {
      const Sequence& sequence = shape.sequences[static_cast<std::size_t>(b)];
      if (sequence.q_len == 0 || sequence.kv_len == 0) continue;
      const BlockSize block{(sequence.q_len + 1) / 2, (sequence.kv_len + 1) / 2};
      const std::string dense = dense_classes(interpreter, shape, block, b, shape.heads - 1);
      std::size_t at = 0;
      for (std::int64_t q = 0; q < sequence.q_len; q += block.q, ++at) {
        for (std::int64_t kv = 0; kv < sequence.kv_len; kv += block.kv, ++at) {
          const mask::Content content = evaluate({b, shape.heads - 1, q, std::min(q + block.q, sequence.q_len), kv,
                                                  std::min(kv + block.kv, sequence.kv_len)});
          const char found = content == mask::Content::full ? '#' : content == mask::Content::empty ? '.' : '+';
          EXPECT_EQ(found, dense[at]) << "seed " << seed << ": " << print(mask);
        }
      }
    }
  }
}

TEST(BlockMask, LongRowsComeInLowStrips) {
  // So many columns that a strip has few rows, and enough blocks for several batches of strips.
  const MaskShape shape = MaskShape::uniform(1, 1, 150, 45000);
  const BlockMask built = BlockMask::build(leaf::kv_idx() <= 300 * leaf::q_idx(), shape, {1, 1});
  for (std::int32_t r = 0; r < 150; ++r) {
    const heddle::RowRuns row = built.row(0, 0, r);
    ASSERT_EQ(row.size(), 1U);
    EXPECT_EQ(row[0], (heddle::Run{0, std::min(45000, 300 * r + 1), RunKind::full}));
  }
}

TEST(BlockMask, WithoutMaskEverythingAttends) {
  const BlockMask mask = BlockMask::build({}, MaskShape::uniform(1, 2, 33, 40), {16, 16});
  EXPECT_EQ(mask.text(), "###\n###\n###\n");
  EXPECT_TRUE(mask.mask().empty());
}

TEST(BlockMask, SharesTheRowsOfWhatTheMaskCannotTellApart) {
  const MaskShape shape = MaskShape::uniform(8, 16, 256, 256);
  const auto statistics = [&](const Expr& mask) { return BlockMask::build(mask, shape, {16, 16}).statistics(); };
  const Expr causal = leaf::kv_idx() <= leaf::q_idx();
  EXPECT_EQ(statistics(causal).runs, 31);  // a partial run a row, a full one in all but the first
  EXPECT_EQ(statistics(causal).classified_rows, 16);
  EXPECT_EQ(statistics(leaf::kv_idx() <= leaf::q_idx() + 0 * leaf::b()).classified_rows, 16)
      << "a leaf that simplifies away still counts";
  EXPECT_EQ(statistics(causal & (leaf::h() != 3)).classified_rows, 16 * 16);
  EXPECT_EQ(statistics(causal & (leaf::b() != 3)).classified_rows, 8 * 16);
}

TEST(BlockMask, SequencesShareRowsUnlessTheMaskSeesTheirDifference) {
  MaskShape shape;
  shape.sequences = {{.q_begin = 0, .q_len = 64, .kv_len = 64},
                     {.q_begin = 64, .q_len = 64, .kv_begin = 64, .kv_len = 64},
                     {.q_begin = 128, .q_len = 64, .kv_begin = 128, .kv_len = 64, .q_start = 32},
                     {.q_begin = 192, .q_len = 48, .kv_begin = 192, .kv_len = 64}};
  const auto rows = [&](const Expr& mask) {
    const BlockMask built = BlockMask::build(mask, shape, {16, 16});
    return built.statistics().classified_rows;
  };
  EXPECT_EQ(rows(leaf::kv_idx() < 20), 1 + 1);
  EXPECT_EQ(rows(leaf::kv_idx() <= leaf::q_idx()), 4 + 4 + 3);
  EXPECT_EQ(rows(leaf::kv_idx() < leaf::kv_token()), 1 + 1 + 1 + 1);
  EXPECT_EQ(rows(leaf::kv_idx() < leaf::q_token()), 4 + 4 + 4 + 3);
  EXPECT_EQ(rows(leaf::kv_idx() < leaf::b()), 1 + 1 + 1 + 1);
}

/// How many of the rows are classified, and how many are stored.
using Counts = std::pair<std::int64_t, std::int64_t>;
Counts counts(const BlockMask& mask) { return {mask.statistics().classified_rows, mask.statistics().different_rows}; }

TEST(BlockMask, RowsThatRepeatAreFoundAndStoredOnce) {
  // 40 rows of 16 queries; the last has 3.
  const MaskShape shape = MaskShape::uniform(1, 1, 39 * 16 + 3, 700);
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  std::vector<std::int32_t> document, keep;
  for (std::int32_t i = 0; i < 700; ++i) {
    document.push_back(i / 100);
    keep.push_back(i % 3);
  }
  Bindings bindings;
  bindings.captures["doc"] = {document.data(), DType::i32, Dims{700}};
  bindings.captures["keep"] = {keep.data(), DType::i32, Dims{700}};
  const Capture doc("doc", DType::i32, 1), kept("keep", DType::i32, 1);
  std::uint64_t number = 0;
  const auto check = [&](const Expr& mask, const Counts& expected) {
    if (!is_kept(number++, 5)) return;
    SCOPED_TRACE(print(mask));
    const BlockMask built = BlockMask::build(mask, shape, {16, 16}, bindings);
    EXPECT_EQ(counts(built), expected);
    expect_exact(built, mask, bindings, expr::Precision::f32);
  };
  check(Expr(true), {1, 1});
  check(kv % 3 == 0, {1, 1});
  check(q % 2 == 0, {1, 1});  // the last row has both kinds of queries, too
  check(q % 16 < 3, {2, 2});  // of the last row all queries attend
  check(floor_div(q, 16) % 2 == floor_div(kv, 16) % 2, {2, 2});
  check(floor_div(q, 160) == floor_div(kv, 160), {4, 4});
  // A few rows that repeat between others are classified with them.
  check(floor_div(q, 64) == floor_div(kv, 64), {37, 10});
  // Sums modulo a constant: what the query adds counts modulo the constant alone.
  check((q + kv) % 2 == 0, {1, 1});
  check((q - kv) % 32 < 16, {3, 1});
  check((3 * q - (kv - 2 * q)) % 80 == 4, {2, 2});
  check((kv - floor_div(q, 16)) % 3 == 0, {3, 1});
  check((floor_div(q, 16) - (floor_div(q, 32) + floor_div(kv, 16))) % 3 == 0, {4, 3});
  check(((q - kv) % 64 < 32) & (kv != 5), {5, 4});
  // Sums that wrap: 2^32 is no multiple of 3, but one of 4.
  check((q * 100000000 + kv) % 3 == 0, {40, 1});
  check((q * 100000000 + kv) % 4 == 0, {1, 1});
  // Captures may tell queries apart: inside a document rows are equal.
  check(doc(q) == doc(kv), {12, 12});
  check((kept(q) != 0) & (kept(kv) != 0), {1, 1});
  check(kv % 16 == kept(q), {1, 1});
  // Each row sees other queries.
  check(q >= kv, {40, 40});
  check(abs(q - kv) < 20, {40, 40});
  // Other evaluators may round a sine otherwise.
  check(sin(to_f32(q % 2)) < 0.5, {40, 1});
}

TEST(BlockMask, EqualRowsOfDifferentMatricesAreStoredOnce) {
  const MaskShape shape = MaskShape::uniform(3, 4, 256, 256);
  const Expr causal = leaf::kv_idx() <= leaf::q_idx();
  const Expr mask = causal & ((leaf::h() != 3) | (leaf::b() != 1));
  const BlockMask built = BlockMask::build(mask, shape, {16, 16});
  EXPECT_EQ(counts(built), Counts(12 * 16, 16 + 1));
  EXPECT_EQ(built, BlockMask::from_lists(built.to_lists(), shape, {16, 16}, mask));
  expect_exact(built, mask, {}, expr::Precision::f32);
  EXPECT_EQ(counts(built.transposed()).second, 16 + 1);
}

TEST(BlockMask, ASumOfVeryManyPartsIsNotTakenApart) {
  Expr sum = leaf::q_idx() + leaf::kv_idx();
  for (int i = 0; i < 100; ++i) sum = (sum + 1) + (sum + 2);
  const Expr mask = sum % 2 == 0;
  const BlockMask built = BlockMask::build(mask, MaskShape::uniform(1, 1, 20, 20), {4, 4});
  expect_exact(built, mask, {}, expr::Precision::f32);
}

TEST(BlockMask, ZerosOfEitherSignAreDifferentTerms) {
  const std::vector<float> zeros{0.0F, -0.0F, 0.0F, -0.0F};
  Bindings bindings;
  bindings.captures["zeros"] = {zeros.data(), DType::f32, Dims{4}};
  const Expr mask = 1.0 / Capture("zeros", DType::f32, 1)(leaf::q_idx()) > 0.0;
  const BlockMask built = BlockMask::build(mask, MaskShape::uniform(1, 1, 4, 2), {1, 1}, bindings);
  EXPECT_EQ(built.text(), "##\n..\n##\n..\n");
}

TEST(BlockMask, RowsOfOneQueryEach) {
  std::vector<float> slope(300000);
  for (std::size_t i = 0; i < slope.size(); ++i) slope[i] = static_cast<float>(i);
  Bindings bindings;
  bindings.captures["slope"] = {slope.data(), DType::f32, Dims{300000}};
  const MaskShape shape = MaskShape::uniform(1, 1, 300000, 2);
  const Expr mask = Capture("slope", DType::f32, 1)(leaf::q_idx()) < to_f32(leaf::kv_idx() + 299000);
  const BlockMask built = BlockMask::build(mask, shape, {1, 1}, bindings);
  EXPECT_EQ(counts(built), Counts(300000, 3));
}

TEST(BlockMask, SequencesShareRowsUnlessTheMaskSeesTheirKvStart) {
  MaskShape shape = MaskShape::uniform(2, 1, 64, 64);
  shape.sequences[1].kv_start = 16;
  const auto rows = [&](const Expr& mask) {
    const BlockMask::Statistics statistics = BlockMask::build(mask, shape, {16, 16}).statistics();
    return static_cast<std::int64_t>(statistics.bytes - statistics.runs * 12) / 8 - 1 - 2;
  };
  const std::int64_t shared = rows(leaf::kv_token() < 20);
  EXPECT_EQ(rows(leaf::kv_idx() < 20), 2 * shared);
  EXPECT_GT(rows(leaf::kv_start() < 20), shared);
  EXPECT_EQ(BlockMask::build(leaf::kv_idx() < 32, shape, {16, 16}).text(1, 0), "#...\n#...\n#...\n#...\n");
  EXPECT_EQ(BlockMask::build(leaf::kv_idx() < 32, shape, {16, 16}).text(0, 0), "##..\n##..\n##..\n##..\n");
}

// The columns of a long sequence's mask, in two shards.
TEST(BlockMask, ShardsOfKeysHaveTheColumnsOfTheWhole) {
  const MaskShape whole = MaskShape::uniform(1, 1, 96, 128);
  MaskShape left = MaskShape::uniform(1, 1, 96, 80), right = MaskShape::uniform(1, 1, 96, 48);
  right.sequences[0].kv_start = 80;
  for (const Expr& mask : {mods::causal(), mods::sliding_window(20, 10), mods::dilated_window(60, 3),
                           mods::global_and_window(5, 12), mods::neighbourhood_2d(16, 1, 3)}) {
    const auto columns = [&](const std::string& text, std::size_t begin, std::size_t count) {
      std::string part;
      for (std::size_t line = 0; line < text.size(); line = text.find('\n', line) + 1) {
        part += text.substr(line + begin, count) + '\n';
      }
      return part;
    };
    const std::string all = BlockMask::build(mask, whole, {16, 16}).text();
    EXPECT_EQ(BlockMask::build(mask, left, {16, 16}).text(), columns(all, 0, 5)) << print(mask);
    EXPECT_EQ(BlockMask::build(mask, right, {16, 16}).text(), columns(all, 5, 3)) << print(mask);
  }
}

TEST(BlockMask, TokensOfAPackedBatchAreLinearInTheIndices) {
  // Two spellings of causal in each sequence, over the packed positions; intervals must decide both alike.
  MaskShape shape;
  for (std::int64_t i = 0; i < 4; ++i) {
    shape.sequences.push_back({.q_begin = i * 1000, .q_len = 1000, .kv_begin = i * 1000, .kv_len = 1000});
  }
  const BlockMask by_token = BlockMask::build(leaf::kv_token() <= leaf::q_token(), shape, {10, 10});
  const BlockMask by_index = BlockMask::build(leaf::kv_idx() <= leaf::q_idx(), shape, {10, 10});
  EXPECT_EQ(by_token, by_index);
  EXPECT_EQ(by_token.statistics().evaluated_tiles, 0);
  const BlockMask mixed =
      BlockMask::build(leaf::kv_token() - leaf::q_token() + leaf::q_idx() <= leaf::q_idx(), shape, {10, 10});
  EXPECT_EQ(mixed, by_index);
  EXPECT_EQ(mixed.statistics().evaluated_tiles, 0);
}

TEST(BlockMask, EmptySequencesHaveNoRows) {
  MaskShape shape;
  shape.heads = 2;
  shape.sequences = {{.q_len = 0, .kv_len = 5},
                     {.q_len = 5, .kv_len = 0},
                     {.q_len = 0, .kv_len = 0},
                     {.q_len = 5, .kv_len = 5},
                     {.q_len = 0, .kv_len = 5}};
  const Expr mask = (leaf::kv_idx() <= leaf::q_idx()) & (leaf::h() < 2);
  const BlockMask built = BlockMask::build(mask, shape, {2, 2});
  expect_exact(built, mask, {}, expr::Precision::f32);
  EXPECT_EQ(built.q_blocks(0), 0);
  EXPECT_EQ(built.transposed().q_blocks(0), 3);
  const BlockMask none = BlockMask::build(mask, MaskShape::uniform(0, 4, 10, 10), {2, 2});
  EXPECT_EQ(none.statistics().blocks, 0);
}

TEST(BlockMask, RealsOfF64AreAnotherMask) {
  // 0.1 rounded to f32 is more than 0.1: the comparison tells the two apart on the diagonal.
  const Expr mask = to_f32(leaf::q_idx()) * 0.1 >= to_f32(leaf::kv_idx()) / 10.0;
  const MaskShape shape = MaskShape::uniform(1, 1, 64, 64);
  for (const auto& [reals, precision] :
       {std::pair(DType::f32, expr::Precision::f32), {DType::f64, expr::Precision::f64}}) {
    const BlockMask built = BlockMask::build(mask, shape, {4, 4}, {}, 1, reals);
    EXPECT_EQ(built.reals(), reals);
    expect_exact(built, mask, {}, precision);
  }
}

}  // namespace
}  // namespace heddle::test
