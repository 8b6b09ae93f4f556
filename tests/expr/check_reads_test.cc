// Reads are accepted only where their indices are proven inside.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "expr/range_bounds.h"
#include "expr/ranges.h"
#include "expr/simplify.h"
#include "heddle/error.h"
#include "sample.h"

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
  const int count = heddle::test::random_cases(10000);
  for (int i = 0; i < count; ++i) {
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
  EXPECT_GT(narrowed, count / 200);
}

TEST_F(CheckReads, EveryWayToAReadCounts) {
  EXPECT_ACCEPTED("where(kv_idx < 64, where(kv_idx >= 60, slopes[kv_idx - 56], doc[kv_idx]), 0)");
  EXPECT_REFUSED("where(kv_idx < 64, doc[kv_idx], 0) + doc[kv_idx]") << "one node, read unguarded once";
  EXPECT_REFUSED("where(kv_idx < 64, doc[kv_idx], 0) + where(kv_idx < 65, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(q_len > 100, doc[kv_idx], 0)") << "a branch that is never taken";
  EXPECT_ACCEPTED("where(h > 3, where(h < 2, doc[kv_idx], 0), 0)") << "conditions that contradict each other";
}

TEST_F(CheckReads, TermsGuardEachOther) {
  EXPECT_ACCEPTED("kv_idx < 64 and doc[kv_idx] == 5");
  EXPECT_ACCEPTED("doc[kv_idx] == 5 and kv_idx < 64");
  EXPECT_ACCEPTED("kv_idx >= 64 or doc[kv_idx] == 5");
  EXPECT_ACCEPTED("doc[kv_idx] == 5 or not kv_idx < 64");
  EXPECT_ACCEPTED("not (kv_idx < 64 and doc[kv_idx] == 5)");
  EXPECT_ACCEPTED("not (kv_idx >= 64 or not doc[kv_idx] == 5) and h < 3");
  EXPECT_ACCEPTED("h < 3 and doc[kv_idx] == 5 and q_idx > 2 and kv_idx < 64");
  EXPECT_ACCEPTED("kv_idx < 64 and (h == 3 or doc[kv_idx] == 5)");
  EXPECT_ACCEPTED("(kv_idx < 64) ^ (kv_idx < 32 and doc[kv_idx] == 5)");
  EXPECT_ACCEPTED("1.0 if kv_idx < 64 and doc[kv_idx] == 5 else 0.0");
  EXPECT_ACCEPTED("where(kv_idx < 64 and doc[kv_idx] == 5, doc[kv_idx], 0)");
  EXPECT_ACCEPTED("where(kv_idx < 64, doc[kv_idx] == 5, False)");
  EXPECT_ACCEPTED("where(kv_idx < 64, doc[kv_idx] == 5, True)");
  EXPECT_ACCEPTED("where(kv_idx < 64, doc[kv_idx] == 5, h == 3)");
  EXPECT_ACCEPTED("kv_idx < 64 and slopes[where(doc[kv_idx] < 8 and h > 3, h, 0)] > 0");
  EXPECT_ACCEPTED("q_len > 100 and doc[kv_idx] == 5") << "what never holds guards everything";
  EXPECT_ACCEPTED("kv_idx < 8 and kv_idx >= 8 and doc[kv_idx] == 5") << "as do terms that contradict each other";
  EXPECT_REFUSED("kv_idx <= 64 and doc[kv_idx] == 5");
  EXPECT_REFUSED("kv_idx < 64 or doc[kv_idx] == 5");
  EXPECT_REFUSED("kv_idx >= 64 and doc[kv_idx] == 5");
  EXPECT_REFUSED("(kv_idx < 64) ^ (doc[kv_idx] == 5)");
  EXPECT_REFUSED("(kv_idx < 64 or h == 3) and doc[kv_idx] == 5");
  EXPECT_REFUSED("doc[kv_idx] < 64 and doc[kv_idx] > 0") << "a term does not guard itself";
  EXPECT_REFUSED("doc[kv_idx] == 4 and doc[kv_idx] > 0") << "nor does one that no element of the tensor fulfils";
  EXPECT_ACCEPTED("doc[q_idx] == 4 and doc[kv_idx] > 0");
  EXPECT_REFUSED("(kv_idx < 64 and doc[kv_idx] == 5) or doc[kv_idx] == 4");
  EXPECT_REFUSED("where(kv_idx < 64 and doc[kv_idx] == 5, 1, doc[kv_idx])");
}

TEST_F(CheckReads, GuardsThatReadMustBeProvenFirst) {
  std::ranges::fill(integers_, 5);
  integers_[63] = 90;  // no index of slopes
  EXPECT_ACCEPTED("doc[q_idx] < 8 and slopes[doc[q_idx]] > 0");
  EXPECT_ACCEPTED("slopes[doc[kv_idx]] > 0 and (doc[kv_idx] < 8 and kv_idx < 64)") << "one guard after the other";
  EXPECT_ACCEPTED("(slopes[doc[kv_idx]] > 0 and doc[kv_idx] < 8) and kv_idx < 64");
  EXPECT_ACCEPTED("(kv_idx < 64 and slopes[doc[kv_idx]] > 0) and doc[kv_idx] < 8") << "the middle one comes last";
  EXPECT_ACCEPTED("doc[where(kv_idx < 64, kv_idx, 0)] < 8 and slopes[doc[where(kv_idx < 64, kv_idx, 0)]] > 0");
  EXPECT_REFUSED("slopes[doc[kv_idx]] > 0 and doc[kv_idx] < 8");
  EXPECT_REFUSED("doc[q_idx] < 8 or slopes[doc[q_idx]] > 0");
  // Either term would bound the other's index: neither can be computed first.
  EXPECT_REFUSED("kv_idx + doc[kv_idx + 1] < 64 and kv_idx + doc[kv_idx] < 60");
  EXPECT_ACCEPTED("kv_idx < 63 and kv_idx + doc[kv_idx + 1] < 64 and kv_idx + doc[kv_idx] < 60");
}

/// Random masks of comparisons and of reads at random places.
class RandomGuards {
 public:
  explicit RandomGuards(unsigned seed) : random_(seed) {}
  std::string mask(int depth) {
    if (depth == 0 || below(6) == 0) return below(3) == 0 ? read() : comparison();
    const auto below_here = [&] { return mask(depth - 1); };
    switch (below(6)) {
      case 0:
        return "(not " + below_here() + ")";
      case 1:
        return "where(" + below_here() + ", " + below_here() + ", " + below_here() + ")";
      default:
        return "(" + below_here() + (below(3) > 0 ? " and " : " or ") + below_here() + ")";
    }
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::string leaf() { return below(2) == 0 ? "q_idx" : "kv_idx"; }
  std::string comparison() {
    static constexpr const char* kComparisons[] = {" < ", " <= ", " > ", " >= ", " == "};
    return "(" + leaf() + kComparisons[below(5)] + std::to_string(below(10)) + ")";
  }
  std::string read() { return "(ids[" + leaf() + "] == " + std::to_string(below(8)) + ")"; }
  std::mt19937 random_;
};

// An accepted mask's value does not depend on reads outside: here they give another number each time.
TEST_F(CheckReads, WhatIsAcceptedNeedsNoReadOutside) {
  std::array<std::int32_t, 10> ids = {3, 1, 4, 1, 5, 2, 6, 7, 3, 3};  // 8 of them belong to the tensor
  std::array<std::int32_t, 10> others = ids;
  others[8] = others[9] = 5;
  for (const Leaf leaf : {Leaf::q_idx, Leaf::kv_idx}) leaves_[leaf] = {0, 9, false};
  Bindings wide;  // reads past the eighth element find what stands there
  RandomGuards random(9);
  int guarded = 0;
  const int count = heddle::test::random_cases(4000);
  for (int i = 0; i < count; ++i) {
    const std::string text = random.mask(2 + i % 3);
    bindings_.captures["ids"] = ConstTensorView(ids.data(), DType::i32, Dims{8});
    const bool accepted = refusal(text).empty();
    const Expr e = parse(text, Symbols(bindings_));
    for (const Precision precision : {Precision::f32, Precision::f64}) {
      const Expr simple = simplify(e, precision);
      if (accepted) {
        EXPECT_EQ(refusal(print(simple)), "") << text << " became " << print(simple);
      }
    }
    if (!accepted) continue;
    const auto values = [&](std::array<std::int32_t, 10>& memory) {
      wide.captures["ids"] = ConstTensorView(memory.data(), DType::i32, Dims{10});
      const Interpreter value(e, wide, Precision::f32);
      std::vector<bool> found;
      for (int at = 0; at < 100; ++at) {
        Element element;
        element[Leaf::q_idx] = at % 10;
        element[Leaf::kv_idx] = at / 10;
        found.push_back(value.boolean(element));
      }
      return found;
    };
    ASSERT_EQ(values(ids), values(others)) << text;
    guarded += e.type() == ExprType::boolean && text.find("ids") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(guarded, count * 3 / 40);
}

/// Remembers of which captures the bounds were asked.
class AskedBounds final : public CaptureBounds {
 public:
  explicit AskedBounds(const Bindings& bindings) : exact_(bindings.captures) {}
  Range bounds(const CaptureDecl& capture, std::span<const Range> indices) const override {
    asked.insert(capture.name);
    return exact_.bounds(capture, indices);
  }
  const Dims& shape(const CaptureDecl& capture) const override { return exact_.shape(capture); }
  mutable std::set<std::string> asked;

 private:
  test::ExactBounds exact_;
};

TEST_F(CheckReads, AsksOnlyForWhatAProofNeeds) {
  using Names = std::set<std::string>;
  std::array<std::int32_t, 64> table{};
  bindings_.captures["table"] = ConstTensorView(table.data(), DType::i32, Dims{64});
  const auto asked = [&](std::string_view text) {
    const AskedBounds bounds(bindings_);
    check_reads_inside(parse(text, Symbols(bindings_)), leaves_, bounds, Precision::f32);
    return bounds.asked;
  };
  EXPECT_EQ(asked("score + f32(table[q_idx]) * slopes[h]"), Names{});
  EXPECT_EQ(asked("table[q_idx] == doc[q_idx] and q_idx < 8 and slopes[q_idx] > 0"), Names{});
  EXPECT_EQ(asked("where(table[q_idx] == 0, slopes[h], 0)"), Names{}) << "a guard that needs not hold";
  EXPECT_EQ(asked("slopes[clip(doc[q_idx], 0, 7)]"), Names{}) << "an index that is inside for all values";
  EXPECT_EQ(asked("slopes[doc[q_idx]] + f32(table[q_idx])"), Names{"doc"});
  EXPECT_EQ(asked("where(table[q_idx] == 1, slopes[doc[q_idx]], 0)"), Names{"doc"});
  EXPECT_EQ(asked("where(kv_idx < doc[q_idx], slopes[kv_idx], f32(table[q_idx]))"), Names{"doc"});
  EXPECT_EQ(asked("at(slopes, table[q_idx], 0) + slopes[doc[q_idx]]"), Names{"doc"});
}

TEST_F(CheckReads, KnowsWhatIsInsideForAllValues) {
  const auto inside = [&](std::string_view text) {
    Symbols symbols(bindings_);
    symbols.params["limit"] = ExprType::i32;
    return reads_stay_inside(parse(text, symbols), leaves_, bindings_, Precision::f32);
  };
  EXPECT_TRUE(inside("slopes[h] + f32(doc[q_idx])"));
  EXPECT_TRUE(inside("where(kv_idx < limit, slopes[h], 0)"));
  EXPECT_TRUE(inside("kv_idx < 64 and doc[kv_idx] < limit"));
  EXPECT_TRUE(inside("slopes[clip(doc[q_idx], 0, 7)]"));
  EXPECT_FALSE(inside("slopes[doc[q_idx]]"));
  EXPECT_FALSE(inside("kv_idx < limit and doc[kv_idx] == 5"));
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

TEST_F(CheckReads, ManyTermsEndInTime) {
  const Capture doc("doc", DType::i32, 1), slopes("slopes", DType::f32, 1);
  const Expr kv = leaf::kv_idx();
  Expr open = leaf::h() < 3, guarded = kv < 64;
  for (int i = 0; i < 200; ++i) {
    open = open & (doc(kv + i) > doc(kv + i + 1) - i);
    guarded = guarded & (doc(kv) > doc(min(kv, 63)) - i);
  }
  const test::ExactBounds bounds(bindings_.captures);
  EXPECT_THROW(check_reads_inside(open, leaves_, bounds, Precision::f32), Error);
  EXPECT_NO_THROW(check_reads_inside(guarded, leaves_, bounds, Precision::f32));
}

TEST_F(CheckReads, ManyConditionsEndInTime) {
  Expr e = parse("doc[kv_idx]", Symbols(bindings_));
  for (int i = 0; i < 200; ++i) e = where(leaf::kv_idx() < 64 + i, e + 1, e - 1);
  const test::ExactBounds bounds(bindings_.captures);
  EXPECT_THROW(check_reads_inside(e, leaves_, bounds, Precision::f32), Error);
}

}  // namespace
}  // namespace heddle::expr
