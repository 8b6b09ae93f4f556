// Block masks of reads that leave their tensors, clamped: the dense definition with clamped reads, block for block.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "expect_error.h"
#include "expr/random_expression.h"
#include "heddle/block_mask.h"
#include "mask/build.h"
#include "mask/dense.h"
#include "mask/random_mask.h"
#include "sample.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

void expect_dense(const BlockMask& built, const Expr& mask, const Bindings& bindings) {
  const expr::Interpreter interpreter(mask, bindings, expr::Precision::f32);
  for (std::int64_t b = 0; b < std::ssize(built.shape().sequences); ++b) {
    for (std::int64_t h = 0; h < built.shape().heads; ++h) {
      EXPECT_EQ(run_classes(built, b, h), dense_classes(interpreter, built.shape(), built.block(), b, h))
          << "sequence " << b << ", head " << h << ", " << print(mask);
    }
  }
}

/// Document ids of 90 tokens, for sequences that are longer.
class ClampedReads : public testing::Test {
 protected:
  ClampedReads() {
    for (std::size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<std::int32_t>(i * i / 300);
    bindings_.captures["doc"] = ConstTensorView(ids_.data(), DType::i32, {std::ssize(ids_)});
    bindings_.captures["none"] = ConstTensorView(nullptr, DType::i32, {0});
    bindings_.captures["flags"] = ConstTensorView(nullptr, DType::boolean, {3, 0});
    bindings_.params["shift"] = std::int32_t{40};
  }

  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(90);
  Bindings bindings_;
};

TEST_F(ClampedReads, AreRefusedUnlessAskedFor) {
  const Expr mask = parse("doc[q_idx + 3] == doc[kv_idx]", Symbols(bindings_));
  const MaskShape shape = MaskShape::uniform(1, 1, 90, 90);
  expect_error(
      [&] {
        BlockMask::build(mask, shape, {16, 16}, bindings_);
      },
      ErrorCode::invalid_argument, HasSubstr("outside the tensor's extent of 90"));
  const BlockMask built = BlockMask::build(mask, shape, {16, 16}, bindings_, 1, DType::f32, true);
  EXPECT_TRUE(built.clamps_reads());
  expect_dense(built, mask, bindings_);
}

TEST_F(ClampedReads, EqualTheDenseDefinition) {
  const MaskShape shape = {.heads = 2,
                           .sequences = {{.q_len = 100, .kv_len = 130},
                                         {.q_len = 65, .kv_len = 40, .q_start = 70, .kv_start = 200},
                                         {.q_len = 64, .kv_len = 64, .q_start = -90}}};
  for (const char* text :
       {"doc[q_idx + 3] == doc[kv_idx + 3]", "doc[q_idx - 40] == doc[kv_idx]", "doc[kv_idx - q_idx] > 5",
        "doc[-q_idx] == 0", "doc[q_idx * 1000003] <= doc[kv_idx]", "doc[q_idx + shift] >= doc[kv_idx - shift]",
        "doc[doc[kv_idx] * 9] == doc[q_idx]", "none[q_idx] == 0 and q_idx >= kv_idx", "none[kv_idx] > 0",
        "flags[h, q_idx] or kv_idx < 50", "not flags[q_idx, kv_idx]", "doc[q_idx + 3] == at(doc, kv_idx + 3, -1)"}) {
    const Expr mask = parse(text, Symbols(bindings_));
    for (const BlockSize block : {BlockSize{16, 16}, {1, 7}, {128, 128}, {64, 32}}) {
      expect_dense(BlockMask::build(mask, shape, block, bindings_, 2, DType::f32, true), mask, bindings_);
    }
  }
}

TEST_F(ClampedReads, UpdatesClampToo) {
  const Expr mask = parse("doc[q_idx + shift] == doc[kv_idx + shift]", Symbols(bindings_));
  BlockMask built = BlockMask::build(mask, MaskShape::uniform(1, 1, 60, 60), {16, 16}, bindings_, 1, DType::f32, true);
  expect_dense(built, mask, bindings_);
  bindings_.params["shift"] = std::int32_t{-45};
  built.update(bindings_);
  expect_dense(built, mask, bindings_);
  BlockMask columns = built.transposed();
  bindings_.params["shift"] = std::int32_t{60};
  columns.update(bindings_);
  expect_dense(columns.transposed(), mask, bindings_);
}

TEST_F(ClampedReads, DecideBlocksWithoutEvaluation) {
  // From element 89 on every read is the last document.
  const Expr mask = parse("doc[q_idx + 90] == doc[kv_idx + 90]", Symbols(bindings_));
  const BlockMask built =
      BlockMask::build(mask, MaskShape::uniform(1, 1, 4096, 4096), {64, 64}, bindings_, 1, DType::f32, true);
  EXPECT_EQ(built.statistics().full, 64 * 64);
  EXPECT_EQ(built.statistics().evaluated_tiles, 0);
}

TEST(ClampedReadsAtRandom, EqualTheDenseDefinition) {
  RandomExpressions expressions(77, Vocabulary::mask());
  const auto count = static_cast<std::uint64_t>(random_cases(600));
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    RandomMasks random(seed);
    const Expr mask = expressions.draw(ExprType::boolean, 1 + expressions.below(24));
    const BlockMask built = mask::build(mask, random.shape(), random.block(), expressions.bindings(), 1, DType::f32,
                                        mask::scalar_evaluator, true);
    expect_dense(built, mask, expressions.bindings());
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace heddle::test
