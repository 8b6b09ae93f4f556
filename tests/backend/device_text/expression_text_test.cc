// The text of mods: golden files, its vocabulary, layouts, wrong use.
//
// The golden files are written anew by
//   HEDDLE_REFRESH_GOLDEN=1 build/release/tests/backend/device_text/backend_cuda_expression_text_test
// Read the difference before committing it: kernels in every user's cache are made again.
#include "backend/device_text/expression_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/device_text/words.h"
#include "expect_error.h"
#include "expr/simplify.h"
#include "golden.h"
#include "heddle/mods.h"

namespace heddle::device_text {
namespace {

using leaf::b;
using leaf::h;
using leaf::kv_idx;
using leaf::q_idx;
using leaf::score;
using testing::HasSubstr;
using testing::Not;

std::string text_of(const std::string& name, const Expr& mod) {
  const Expr simple = expr::simplify(mod, expr::Precision::f32);
  return mod_text(name, simple, layout_of({simple}), name == "score" ? TakesScore::yes : TakesScore::no);
}

void expect_golden_text(const std::string& file, const std::string& text) {
  test::expect_golden_text("tests/backend/device_text/golden/" + file + ".txt", text);
}

void expect_golden(const std::string& file, const std::string& name, const Expr& mod) {
  expect_golden_text(file, text_of(name, mod));
}

// If sequences differ, their numbers are read once a tile from a list.
TEST(ExpressionText, GoldenBySequence) {
  const Expr mask = expr::simplify((leaf::q_token() - leaf::kv_token() <= leaf::q_len()) &
                                       (q_idx() - leaf::q_start() >= kv_idx() + leaf::kv_len() - leaf::q_len()),
                                   expr::Precision::f32);
  ModLayout layout = layout_of({mask});
  layout.by_sequence = true;
  expect_golden_text("by_sequence", mod_text("mask", mask, layout, TakesScore::no));
}

TEST(ExpressionText, Golden) {
  expect_golden("causal", "mask", mods::causal());
  expect_golden("window", "mask", mods::sliding_window(1024, 16));
  expect_golden("documents", "mask", mods::documents(Capture("ids", DType::i64, 2)) & mods::causal());
  expect_golden("blocks", "mask", mods::block_diffusion(128));
  expect_golden("alibi", "score", mods::alibi(Capture("slopes", DType::f32, 1)));
  expect_golden("bias", "score", score() + Capture("bias", DType::bf16, 4)(b(), h(), q_idx(), kv_idx()));
  expect_golden("relative_bias", "score", mods::relative_bias(Capture("table", DType::f16, 2), 64));
  expect_golden("softcap", "score", mods::softcap(30));
  expect_golden("fill", "score",
                score() + Capture("near", DType::e4m3, 2).at({h(), kv_idx() - q_idx()}, param("far", ExprType::f32)));
  expect_golden("dropout", "weight", mods::dropout(0.1, param("seed", ExprType::i32)));
}

Expr gated_alibi(const std::string& slopes, const std::string& gate) {
  return where(param(gate, ExprType::boolean), mods::alibi(Capture(slopes, DType::f32, 1)), score());
}

TEST(ExpressionText, EqualMods_HaveEqualTexts_WhateverTheirNames) {
  EXPECT_EQ(text_of("score", gated_alibi("slopes", "gate")), text_of("score", gated_alibi("slopes", "gate")));
  EXPECT_EQ(text_of("score", gated_alibi("slopes", "gate")), text_of("score", gated_alibi("asm_trap", "exit_0")));
  EXPECT_NE(text_of("score", gated_alibi("slopes", "gate")),
            text_of("score", mods::alibi(Capture("slopes", DType::f32, 1))));
}

TEST(ExpressionText, NamesOfUsersAreNotInIt) {
  const std::string text = text_of("score", gated_alibi("intruder", "exploit"));
  EXPECT_THAT(text, Not(HasSubstr("intruder")));
  EXPECT_THAT(text, Not(HasSubstr("exploit")));
}

TEST(ExpressionText, NumbersAreExact) {
  const auto literal = [](const Expr& x) { return text_of("score", score() * x); };
  EXPECT_THAT(literal(0.1), HasSubstr("0x1.99999ap-4F"));
  EXPECT_THAT(literal(-3.0), HasSubstr("-0x1.8p+1F"));
  EXPECT_THAT(literal(1e-42), HasSubstr("0x1.65p-140F"));
  EXPECT_THAT(literal(std::numeric_limits<double>::infinity()), HasSubstr("(0x7F800000U)"));
  EXPECT_THAT(literal(-std::numeric_limits<double>::infinity()), HasSubstr("(0xFF800000U)"));
  EXPECT_THAT(literal(std::numeric_limits<double>::quiet_NaN()), HasSubstr("(0x7FC00000U)"));
  EXPECT_THAT(text_of("mask", min(q_idx(), std::numeric_limits<std::int32_t>::min()) == kv_idx()),
              HasSubstr("(-2147483647 - 1)"));
}

TEST(ExpressionText, SharedNodesAreComputedOnce) {
  const Expr x = exp(score());
  const std::string text = text_of("score", x * x + x);
  EXPECT_EQ(text.find("ops::exp("), text.rfind("ops::exp("));
}

// One operation of each stage, each in its own function.
TEST(ExpressionText, StagesHaveTheirOwn) {
  const Expr mod =
      (h() * 3 + 1 < 5) & (exp(to_f32(q_idx())) < 7.0) & (kv_idx() % 12 < 3) & (abs(q_idx() - kv_idx()) < 9);
  const std::string text = text_of("mask", mod);
  const auto body = [&](const std::string& function) {
    const std::size_t begin = text.find(" mask_" + function + "(");
    return text.substr(begin, text.find("\n}\n", begin) - begin);
  };
  for (const auto& [function, operation] : {std::pair("uniform", "ops::mul("), std::pair("row", "ops::exp("),
                                            std::pair("column", "ops::mod("), std::pair("element", "ops::abs(")}) {
    for (const char* other : {"uniform", "row", "column", "element"}) {
      EXPECT_EQ(body(other).find(operation) != std::string::npos, std::string(function) == other) << text;
    }
  }
}

TEST(Layout, NamesOfAllModsSorted) {
  const Expr mask = kv_idx() < param("limit", ExprType::i32) + Capture("doc", DType::i64, 2)(b(), q_idx());
  const Expr score_mod = score() * param("gain", ExprType::f32) + Capture("bias", DType::f16, 1)(h()) +
                         to_f32(param("limit", ExprType::i32));
  const ModLayout layout = layout_of({mask, Expr(), score_mod});
  EXPECT_THAT(layout.params, testing::ElementsAre(std::pair("gain", ExprType::f32), std::pair("limit", ExprType::i32)));
  EXPECT_THAT(layout.captures, testing::ElementsAre(ModLayout::CaptureSlot{"bias", DType::f16, 1},
                                                    ModLayout::CaptureSlot{"doc", DType::i64, 2}));
  EXPECT_TRUE(layout_of({}).params.empty());
  EXPECT_TRUE(layout_of({Expr(), Expr()}).captures.empty());
}

Expr sum_of_params(int count) {
  Expr sum = 0;
  for (int i = 0; i < count; ++i) sum = sum + param(fmt::format("p{}", i), ExprType::i32);
  return sum;
}
Expr sum_of_captures(int count) {
  Expr sum = 0;
  for (int i = 0; i < count; ++i) sum = sum + Capture(fmt::format("c{}", i), DType::i32, 1)(h());
  return sum;
}

TEST(Layout, LimitsAreSaid) {
  EXPECT_EQ(layout_of({sum_of_params(16)}).params.size(), 16U);
  EXPECT_EQ(layout_of({sum_of_captures(8)}).captures.size(), 8U);
  expect_error([] { layout_of({sum_of_params(17)}); }, ErrorCode::unsupported,
               "the mods read 17 params, but a CUDA kernel takes at most 16");
  expect_error(
      [] {
        layout_of({sum_of_captures(5), sum_of_captures(9)});
      },
      ErrorCode::unsupported, "the mods read 9 captures, but a CUDA kernel takes at most 8");
  expect_error([] { layout_of({Capture("deep", DType::f32, 5)(b(), h(), q_idx(), kv_idx(), 0)}); },
               ErrorCode::unsupported, "capture 'deep' has rank 5, but a CUDA kernel reads captures of rank 4 at most");
}

TEST(Layout, OneNameMeansOneThing) {
  expect_error(
      [] {
        layout_of({h() < param("x", ExprType::i32), score() + param("x", ExprType::f32)});
      },
      ErrorCode::invalid_argument, "'x' is a param of type i32 in one mod and a param of type f32 in another");
  expect_error(
      [] {
        layout_of({h() < Capture("x", DType::i32, 1)(b()), h() < Capture("x", DType::i64, 1)(b())});
      },
      ErrorCode::invalid_argument,
      "'x' is a capture of i32 with rank 1 in one mod and a capture of i64 with rank 1 in another");
  EXPECT_EQ(layout_of({h() < param("x", ExprType::i32), kv_idx() < param("x", ExprType::i32)}).params.size(), 1U);
}

TEST(ExpressionText, WrongUse) {
  expect_error([] { mod_text("mask", Expr(), {}, TakesScore::no); }, ErrorCode::internal, "an empty mod has no text");
  expect_error([] { mod_text("mask", score() < 0.0, {}, TakesScore::no); }, ErrorCode::internal,
               "`score < 0.0` was given no score, but reads it");
  expect_error([] { mod_text("score", score() + param("x", ExprType::f32), {}, TakesScore::yes); }, ErrorCode::internal,
               "'x' is not in the layout of the mods, or is another type there");
  expect_error(
      [] {
        const Expr other = Capture("x", DType::f32, 2)(h(), h());
        mod_text("score", Capture("x", DType::f32, 1)(h()), layout_of({other}), TakesScore::yes);
      },
      ErrorCode::internal, "'x' is not in the layout of the mods, or is another type there");
}

// A line that has no comma where it should end stays longer.
TEST(ExpressionText, WrapsLinesAtCommasAlone) {
  const std::string word(200, 'x');
  EXPECT_EQ(wrapped(word), word);
  EXPECT_EQ(wrapped("f(a, " + word + ", b)"), "f(a,\n    " + word + ",\n    b)");
}

}  // namespace
}  // namespace heddle::device_text
