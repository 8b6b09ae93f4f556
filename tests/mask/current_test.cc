// A block mask remembers the values it was built from: it refuses other values by name, and update takes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "expect_error.h"
#include "expr/interpret.h"
#include "heddle/block_mask.h"
#include "mask/dense.h"
#include "mask/random_mask.h"

namespace heddle::test {
namespace {

class Current : public testing::Test {
 protected:
  Current() {
    bindings_.params = {{"window", 4}, {"unread", 1}};
    bindings_.captures["doc"] = {ids_.data(), DType::i32, Dims{8}};
    mask_ = BlockMask::build(expression_, MaskShape::uniform(1, 1, 8, 8), {2, 2}, bindings_);
  }
  void expect_stale(const char* sentence) const {
    expect_error([&] { mask_.check_current(bindings_); }, ErrorCode::invalid_argument, std::string(sentence));
  }

  std::vector<std::int32_t> ids_{0, 0, 0, 1, 1, 1, 1, 2};
  Bindings bindings_;
  Capture doc_{"doc", DType::i32, 1};
  Expr expression_ =
      (doc_(leaf::q_idx()) == doc_(leaf::kv_idx())) & (leaf::q_idx() - leaf::kv_idx() < param("window", ExprType::i32));
  BlockMask mask_;
};

TEST_F(Current, EqualValuesElsewhereAreCurrent) {
  EXPECT_NO_THROW(mask_.check_current(bindings_));
  const std::vector<std::int32_t> elsewhere = ids_;
  bindings_.captures["doc"].data = elsewhere.data();
  EXPECT_NO_THROW(mask_.check_current(bindings_));
  bindings_.params["unread"] = 2;
  EXPECT_NO_THROW(mask_.check_current(bindings_));
}

TEST_F(Current, AnotherValueIsRefusedByName) {
  bindings_.params["window"] = 5;
  expect_stale("param 'window' is 5, but the block mask was built with 4; update it first");
  bindings_.params.erase("window");
  expect_stale("the block mask was built from param 'window', to which the bindings give no value");
  bindings_.params["window"] = 4;
  ids_[6] = 2;
  expect_stale("capture 'doc' differs from the one that the block mask was built from; update it first");
  bindings_.captures.erase("doc");
  expect_stale("the block mask was built from capture 'doc', which the bindings lack");
}

TEST_F(Current, ColumnsAreAsCurrentAsRows) {
  const BlockMask columns = mask_.transposed();
  EXPECT_NO_THROW(columns.check_current(bindings_));
  bindings_.params["window"] = 1;
  EXPECT_THROW(columns.check_current(bindings_), Error);
}

TEST_F(Current, UpdateRebuildsRowsAndColumns) {
  BlockMask columns = mask_.transposed();
  bindings_.params["window"] = 2;
  ids_ = {0, 1, 1, 1, 1, 1, 3, 3};
  mask_.update(bindings_);
  EXPECT_NO_THROW(mask_.check_current(bindings_));
  const BlockMask fresh = BlockMask::build(expression_, mask_.shape(), mask_.block(), bindings_);
  EXPECT_EQ(mask_, fresh);
  EXPECT_EQ(run_classes(mask_, 0, 0), dense_classes(expr::Interpreter(expression_, bindings_, expr::Precision::f32),
                                                    mask_.shape(), {2, 2}, 0, 0));
  columns.update(bindings_, 2);
  EXPECT_TRUE(columns.is_transposed());
  EXPECT_EQ(columns, fresh.transposed());
  EXPECT_NO_THROW(columns.check_current(bindings_));
}

// A capture in a GPU's memory is not read, and so not compared; params are.
TEST_F(Current, DoesNotReadCapturesOnAGpu) {
  bindings_.captures["doc"].data = reinterpret_cast<const void*>(16);
  bindings_.captures["doc"].device = {DeviceKind::cuda, 0};
  EXPECT_NO_THROW(mask_.check_current(bindings_));
  bindings_.params["window"] = 1;
  EXPECT_THROW(mask_.check_current(bindings_), Error);
}

TEST_F(Current, AFailedUpdateChangesNothing) {
  const BlockMask before = mask_;
  bindings_.captures["doc"].shape = Dims{7};
  EXPECT_THROW(mask_.update(bindings_), Error);
  EXPECT_EQ(mask_, before);
  bindings_.captures["doc"].shape = Dims{8};
  EXPECT_NO_THROW(mask_.check_current(bindings_));
}

TEST(BlockMask, NanIsTheSameParam) {
  Bindings bindings;
  bindings.params["rate"] = std::numeric_limits<double>::quiet_NaN();
  const Expr mask = to_f32(leaf::q_idx()) < param("rate", ExprType::f32);
  const BlockMask built = BlockMask::build(mask, MaskShape::uniform(1, 1, 4, 4), {2, 2}, bindings);
  EXPECT_NO_THROW(built.check_current(bindings));
  EXPECT_EQ(built.text(), "..\n..\n");
}

TEST(BlockMask, UpdateEqualsANewBuild) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    RandomMasks random(seed);
    const Expr mask = random.draw();
    const MaskShape shape = random.shape();
    BlockMask updated = BlockMask::build(mask, shape, {4, 4}, random.bindings());
    random.fill();
    Bindings bindings = random.bindings();
    bindings.params["window"] = random.below(30);
    bindings.params["on"] = random.below(2) == 0;
    updated.update(bindings);
    EXPECT_EQ(updated, BlockMask::build(mask, shape, {4, 4}, bindings)) << print(mask);
    EXPECT_NO_THROW(updated.check_current(bindings));
  }
}

}  // namespace
}  // namespace heddle::test
