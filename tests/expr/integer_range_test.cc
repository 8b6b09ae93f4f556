// integer_range: which values an integer can have by its text alone.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "heddle/error.h"
#include "heddle/expr.h"

namespace heddle {
namespace {

using Bounds = std::pair<std::int32_t, std::int32_t>;
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                       kMost = std::numeric_limits<std::int32_t>::max(), kMostRows = 1 << 30;

TEST(IntegerRange, OfTexts) {
  EXPECT_EQ(integer_range(parse("kv_idx % 5 - 5")), Bounds(-5, -1));
  EXPECT_EQ(integer_range(parse("min(max(q_idx - kv_idx, -3), 3)")), Bounds(-3, 3));
  EXPECT_EQ(integer_range(parse("kv_idx")), Bounds(0, kMostRows));
  EXPECT_EQ(integer_range(parse("q_idx - kv_idx")), Bounds(-kMostRows, kMostRows));
  EXPECT_EQ(integer_range(parse("kv_idx + 1")), Bounds(1, kMostRows + 1));
  EXPECT_EQ(integer_range(parse("kv_idx * 2")), Bounds(kLeast, kMost));
}

TEST(IntegerRange, CapturesAndParamsMayBeAnything) {
  Symbols symbols;
  symbols.captures["ids"] = {DType::i32, 1};
  symbols.params["n"] = ExprType::i32;
  EXPECT_EQ(integer_range(parse("ids[kv_idx]", symbols)), Bounds(kLeast, kMost));
  EXPECT_EQ(integer_range(parse("n", symbols)), Bounds(kLeast, kMost));
}

TEST(IntegerRange, NarrowCapturesHaveTheirTypesValues) {
  const auto bounds = [](DType dtype, const char* text) {
    Symbols symbols;
    symbols.captures["ids"] = {dtype, 1};
    return integer_range(parse(text, symbols));
  };
  EXPECT_EQ(bounds(DType::u8, "ids[kv_idx]"), Bounds(0, 255));
  EXPECT_EQ(bounds(DType::i8, "ids[kv_idx]"), Bounds(-128, 127));
  EXPECT_EQ(bounds(DType::u16, "ids[kv_idx]"), Bounds(0, 65535));
  EXPECT_EQ(bounds(DType::i16, "ids[kv_idx]"), Bounds(-32768, 32767));
  EXPECT_EQ(bounds(DType::u32, "ids[kv_idx]"), Bounds(kLeast, kMost));
  EXPECT_EQ(bounds(DType::u8, "at(ids, kv_idx, -3)"), Bounds(-3, 255));
  EXPECT_EQ(bounds(DType::boolean, "i32(ids[kv_idx])"), Bounds(0, 1));
}

TEST(IntegerRange, RefusesOtherTypes) {
  EXPECT_THROW(integer_range(parse("score")), Error);
  EXPECT_THROW(integer_range(parse("q_idx < kv_idx")), Error);
}

}  // namespace
}  // namespace heddle
