// Reads are accepted only where their indices are proven inside.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "expr/range_bounds.h"
#include "expr/ranges.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckReads : public ::testing::Test {
 protected:
  CheckReads() {
    bindings_.captures["slopes"] = ConstTensorView(reals_.data(), DType::f32, Dims{8});
    bindings_.captures["bias"] = ConstTensorView(reals_.data(), DType::f32, Dims{8, 127});
    bindings_.captures["doc"] = ConstTensorView(integers_.data(), DType::i32, Dims{64});
    bindings_.captures["empty"] = ConstTensorView(reals_.data(), DType::f32, Dims{0});
    leaves_[Leaf::score] = Range::any(ExprType::f32);
    leaves_[Leaf::h] = {0, 7, false};
    leaves_[Leaf::q_idx] = {0, 63, false};
    leaves_[Leaf::kv_idx] = {0, 99, false};
    leaves_[Leaf::q_len] = {64, 64, false};
    leaves_[Leaf::kv_len] = {10, 64, false};
  }

  std::string refusal(std::string_view text) const {
    const test::ExactBounds bounds(bindings_.captures);
    try {
      check_reads_inside(parse(text, Symbols(bindings_)), leaves_, bounds, Precision::f32);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return {};
  }

  std::vector<float> reals_ = std::vector<float>(1016, 1.0F);
  std::vector<std::int32_t> integers_ = std::vector<std::int32_t>(64, 5);  // every element a valid head
  Bindings bindings_;
  LeafRanges leaves_;
};

#define EXPECT_ACCEPTED(text) EXPECT_EQ(refusal(text), "")
#define EXPECT_REFUSED(text) EXPECT_THAT(refusal(text), HasSubstr("outside the tensor's extent"))

TEST_F(CheckReads, AcceptsWhatLiesInside) {
  EXPECT_ACCEPTED("slopes[h]");
  EXPECT_ACCEPTED("bias[h, q_idx - min(kv_idx, 63) + 63]");
  EXPECT_ACCEPTED("slopes[q_idx // 8]");
  EXPECT_ACCEPTED("slopes[kv_idx % 8]");
  EXPECT_ACCEPTED("slopes[doc[q_idx]]");
  EXPECT_ACCEPTED("slopes[clip(kv_idx - q_idx, 0, 7)]");
  EXPECT_ACCEPTED("slopes[h + 2147483647 - 2147483647]");
  EXPECT_ACCEPTED("at(slopes, kv_idx, 0)");
}

TEST_F(CheckReads, RefusesWithTheReadTheAxisAndTheRange) {
  EXPECT_EQ(refusal("score + bias[h, kv_idx + 30] * 2"),
            "`bias[h, kv_idx + 30]`: index 1 ranges over [30, 129], outside the tensor's extent of 127; read it with "
            "at(bias, ..., fill), or keep the index inside with clip or where");
  EXPECT_THAT(refusal("slopes[h - 1]"), HasSubstr("index 0 ranges over [-1, 6]"));
  EXPECT_THAT(refusal("slopes[h + 1]"), HasSubstr("index 0 ranges over [1, 8]"));
  EXPECT_REFUSED("empty[h]");
  EXPECT_REFUSED("slopes[h + 2147483647]");
  EXPECT_REFUSED("at(slopes, i32(slopes[kv_idx]), 0)") << "indices of at are expressions too";
  EXPECT_REFUSED("where(slopes[kv_idx] > 0, 1, 2)");
}

TEST_F(CheckReads, WhereNarrowsLeaves) {
  EXPECT_ACCEPTED("where(kv_idx < 64, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(kv_idx >= 64, 0, doc[kv_idx])");
  EXPECT_ACCEPTED("where(not kv_idx >= 64, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(kv_idx >= 64 or h == 3, 0, doc[kv_idx])");
  EXPECT_ACCEPTED("where(63 >= kv_idx and h > 2, doc[kv_idx] + slopes[h - 3], 0)");
  EXPECT_ACCEPTED("where(kv_idx <= q_idx, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(kv_idx < kv_len, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(kv_idx == 17, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(2*kv_idx < 128, doc[kv_idx], 0)");
  EXPECT_REFUSED("where(kv_idx <= 64, doc[kv_idx], 0)");
  EXPECT_REFUSED("where(kv_idx < 64, 0, doc[kv_idx])");
  EXPECT_REFUSED("where(kv_idx < 64 or h == 3, doc[kv_idx], 0)");
  EXPECT_REFUSED("where(kv_idx != 64, doc[kv_idx], 0)");
  EXPECT_REFUSED("where(kv_idx > q_idx, doc[kv_idx], 0)");
}

TEST_F(CheckReads, WhereNarrowsSumsAndOpaqueTerms) {
  EXPECT_ACCEPTED("where(0 <= kv_idx - q_idx < 8, slopes[kv_idx - q_idx], 0)");
  EXPECT_ACCEPTED("where(abs(kv_idx - q_idx) < 8, slopes[abs(kv_idx - q_idx)], 0)");
  EXPECT_ACCEPTED("where(0 <= q_idx - kv_idx <= 3, slopes[2*q_idx - 2*kv_idx + 1], 0)");
  EXPECT_ACCEPTED("where(kv_idx * q_idx < 8, slopes[kv_idx * q_idx], 0)");
  EXPECT_REFUSED("where(kv_idx - q_idx < 8, slopes[kv_idx - q_idx], 0)");
  EXPECT_REFUSED("where(0 <= q_idx - kv_idx <= 3, slopes[2*q_idx - 2*kv_idx + 2], 0)");
}

TEST_F(CheckReads, WhereInsideAnIndexNarrows) {
  EXPECT_ACCEPTED("slopes[where(kv_idx <= 7, kv_idx, 0)]");
  EXPECT_ACCEPTED("slopes[where(kv_idx > 7, 0, kv_idx)]");
  EXPECT_ACCEPTED("slopes[where(kv_idx > 7 or h == 3, 7, kv_idx)]");
  EXPECT_ACCEPTED("slopes[where(not (kv_idx <= 7 and q_idx > 2), 7, kv_idx)]");
  EXPECT_ACCEPTED("slopes[where(kv_idx < 8, where(q_idx < kv_idx, q_idx, kv_idx), where(q_idx < 6, q_idx + 2, h))]");
  EXPECT_ACCEPTED("slopes[where(kv_idx < 4, kv_idx, 0) + where(q_idx < 4, q_idx, 3) + where(h > 0, 1, 0)]");
  EXPECT_ACCEPTED("slopes[7 - min(where(kv_idx < 8, kv_idx, 0), 63)]");
  EXPECT_ACCEPTED("slopes[doc[where(kv_idx < 64, kv_idx, 0)]]");
  EXPECT_ACCEPTED("slopes[where(where(kv_idx < 8, kv_idx, 50) < 8, where(kv_idx < 8, kv_idx, 0), 0)]");
  EXPECT_ACCEPTED("slopes[where(slopes[h] > 0, where(kv_idx < 8, kv_idx, 0), 1)]") << "a condition that bounds nothing";
  EXPECT_ACCEPTED("where(q_idx < 8, slopes[where(kv_idx < 8, kv_idx, q_idx)], 0)");
  EXPECT_ACCEPTED("slopes[where(h > 3, where(h < 2, kv_idx, 0), 0)]") << "a branch that contradicts itself";
  EXPECT_THAT(refusal("slopes[where(kv_idx <= 8, kv_idx, 0)]"), HasSubstr("ranges over [0, 8]"));
  EXPECT_REFUSED("slopes[where(kv_idx <= 7, 0, kv_idx)]");
  EXPECT_REFUSED("slopes[where(kv_idx <= 7 or h == 3, kv_idx, 0)]");
  EXPECT_REFUSED("slopes[where(kv_idx <= 7, kv_idx, q_idx)]");
  EXPECT_REFUSED("slopes[where(kv_idx <= 7, kv_idx, 0) + h]");
  EXPECT_REFUSED("slopes[where(kv_idx + 2147483600 < 0, kv_idx, 0)]") << "a condition that wraps";
  EXPECT_REFUSED("slopes[where(kv_idx < 8, kv_idx, 0)] + slopes[where(kv_idx < 9, kv_idx, 0)]");
  EXPECT_REFUSED(
      "where(q_idx < 8, slopes[where(kv_idx < 8, kv_idx, q_idx)], 0) + "
      "slopes[where(kv_idx < 8, kv_idx, q_idx)]")
      << "one index, narrowed only in the first place";
}

/// Random index expressions of wheres, sums and reads.
class RandomIndices {
 public:
  explicit RandomIndices(unsigned seed) : random_(seed) {}
  std::string value(int depth) {
    static constexpr const char* kLeaves[] = {"h", "q_idx", "kv_idx"};
    if (depth == 0) return below(3) == 0 ? std::to_string(below(9)) : kLeaves[below(3)];
    switch (below(6)) {
      case 0:
        return "(" + value(depth - 1) + (below(2) == 0 ? " + " : " - ") + value(depth - 1) + ")";
      case 1:
        return (below(2) == 0 ? "min(" : "max(") + value(depth - 1) + ", " + value(depth - 1) + ")";
      default:
        return "where(" + condition(depth - 1) + ", " + value(depth - 1) + ", " + value(depth - 1) + ")";
    }
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::string condition(int depth) {
    static constexpr const char* kComparisons[] = {" < ", " <= ", " > ", " >= ", " == ", " != "};
    if (below(4) == 0) return "(not " + condition(depth) + ")";
    if (depth > 0 && below(3) == 0) {
      return "(" + condition(depth - 1) + (below(2) == 0 ? " and " : " or ") + condition(depth - 1) + ")";
    }
    return "(" + value(std::min(depth, 1)) + kComparisons[below(6)] + value(0) + ")";
  }
  std::mt19937 random_;
};

TEST_F(CheckReads, AcceptsNoRandomIndexThatLeaves) {
  for (const Leaf leaf : {Leaf::h, Leaf::q_idx, Leaf::kv_idx}) leaves_[leaf] = {0, 9, false};
  RandomIndices random(71);
  int narrowed = 0;
  for (int i = 0; i < 10000; ++i) {
    const std::string index = random.value(2 + i % 2);
    if (!refusal("slopes[" + index + "]").empty()) continue;
    const Expr e = parse(index, Symbols(bindings_));
    const Range plain = RangeAnalysis(e, Precision::f32, nullptr)(leaves_);
    if (plain.lo >= 0 && plain.hi < 8) continue;
    ++narrowed;
    const Interpreter value(e, bindings_, Precision::f32);
    for (int at = 0; at < 10 * 10 * 10; ++at) {
      Element element;
      element[Leaf::h] = at % 10;
      element[Leaf::q_idx] = at / 10 % 10;
      element[Leaf::kv_idx] = at / 100;
      const std::int32_t read = std::get<std::int32_t>(value(element));
      ASSERT_TRUE(read >= 0 && read < 8) << index << " is " << read << " at " << at;
    }
  }
  EXPECT_GT(narrowed, 100);
}

TEST_F(CheckReads, EveryWayToAReadCounts) {
  EXPECT_ACCEPTED("where(kv_idx < 64, where(kv_idx >= 60, slopes[kv_idx - 56], doc[kv_idx]), 0)");
  EXPECT_REFUSED("where(kv_idx < 64, doc[kv_idx], 0) + doc[kv_idx]") << "one node, read unguarded once";
  EXPECT_REFUSED("where(kv_idx < 64, doc[kv_idx], 0) + where(kv_idx < 65, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(q_len > 100, doc[kv_idx], 0)") << "a branch that is never taken";
  EXPECT_ACCEPTED("where(h > 3, where(h < 2, doc[kv_idx], 0), 0)") << "conditions that contradict each other";
}

TEST_F(CheckReads, AndDoesNotGuard) {
  EXPECT_REFUSED("kv_idx < 64 and doc[kv_idx] == 5") << "both sides of `and` are evaluated";
  EXPECT_ACCEPTED("where(kv_idx < 64, doc[kv_idx] == 5, False)");
}

TEST_F(CheckReads, ConditionsThatWrapNarrowNothing) {
  EXPECT_REFUSED("where(kv_idx + 2147483600 < 0, doc[kv_idx], 0)");
  EXPECT_REFUSED("where(kv_idx + 2147483600 >= 2147483600, 0, doc[kv_idx])");
}

TEST_F(CheckReads, ManyConditionsInAnIndexEndInTime) {
  Expr e = leaf::kv_idx(), chain = leaf::kv_idx();
  for (int i = 0; i < 200; ++i) {
    e = where(leaf::kv_idx() < 64 + i, e + 1, e - 1);
    chain = where(leaf::q_idx() >= i / 4, chain, i % 8);
  }
  const test::ExactBounds bounds(bindings_.captures);
  const Capture slopes("slopes", DType::f32, 1);
  for (const Expr& index : {e, chain}) {
    EXPECT_THROW(check_reads_inside(slopes(index), leaves_, bounds, Precision::f32), Error);
  }
}

TEST_F(CheckReads, ManyConditionsEndInTime) {
  Expr e = parse("doc[kv_idx]", Symbols(bindings_));
  for (int i = 0; i < 200; ++i) e = where(leaf::kv_idx() < 64 + i, e + 1, e - 1);
  const test::ExactBounds bounds(bindings_.captures);
  EXPECT_THROW(check_reads_inside(e, leaves_, bounds, Precision::f32), Error);
}

}  // namespace
}  // namespace heddle::expr
