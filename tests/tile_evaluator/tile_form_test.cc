// Forms of tiles that callers finish themselves: what is left for them is what a run does.
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "heddle/mods.h"
#include "tile_evaluator/tile_runs.h"

namespace heddle::cpu {
namespace {

using expr::Precision;
using Kind = TileForm::Kind;

constexpr int kFormRows = 32;

TilePosition tile(std::int64_t q_first, std::int64_t kv_first, int columns) {
  return {.h = 1,
          .sequence = {.q_len = 100, .kv_len = 200},
          .q_first = q_first,
          .kv_first = kv_first,
          .rows = kFormRows,
          .columns = columns};
}

TileForm form_of(const Expr& e, const TilePosition& at = tile(0, 0, 64), const Bindings& bindings = {}) {
  const TileProgram program(e, Precision::f32);
  TileProgram::Scratch scratch(program, bindings);
  return program.start_form(at, scratch);
}

/// The terms beside what a run makes of scores.
void expect_added(const Expr& e, const TilePosition& at, const Bindings& bindings, bool streamed) {
  const TileProgram program(e, Precision::f32);
  TileProgram::Scratch scratch(program, bindings), other(program, bindings);
  test::Surface<float> scores(at.rows, at.columns, 0), want(at.rows, at.columns, 0);
  for (int r = 0; r < at.rows; ++r) {
    for (int c = 0; c < at.columns; ++c) scores.at(r, c) = static_cast<float>(r * 7 % 5) - static_cast<float>(c) / 8;
  }
  program.run(at, scores.data(), want.data(), want.stride(), other);
  const TileForm form = program.start_form(at, scratch);
  ASSERT_EQ(form.kind, Kind::added);
  EXPECT_EQ(form.streamed, streamed);
  for (int r = 0; r < at.rows; ++r) {
    for (int c = 0; c < at.columns; ++c) {
      ASSERT_EQ(scores.at(r, c) + form.terms[r * form.terms_apart + c], want.at(r, c)) << r << ", " << c;
    }
  }
}

TEST(TileForm, DistancesAndKeysAreTerms) {
  const Tensor slopes = mods::alibi_slopes(4);
  Bindings bindings;
  bindings.captures["slopes"] = slopes;
  for (const int columns : {64, 128, 40}) {
    expect_added(mods::alibi(Capture("slopes", DType::f32, 1)), tile(64, 48, columns), bindings, false);
    expect_added(leaf::score() + to_f32(leaf::kv_idx()) * 0.25, tile(64, 48, columns), {}, false);
  }
}

TEST(TileForm, RowsOfATensorStayWhereTheyAre) {
  const Tensor bias = Tensor::empty(DType::f32, {2, 100, 200});
  for (std::int64_t i = 0; i < bias.count(); ++i) static_cast<float*>(bias.data())[i] = static_cast<float>(i % 1009);
  const Expr wide = leaf::score() + Capture("bias", DType::f32, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  Bindings bindings;
  bindings.captures["bias"] = bias;
  expect_added(wide, tile(32, 0, 64), bindings, true);
  expect_added(wide, tile(68, 72, 128), bindings, true);
  // Rows or columns past the end: the last ones count.
  expect_added(wide, tile(80, 0, 64), bindings, false);
  expect_added(wide, tile(0, 160, 64), bindings, false);
  // Neighbours that are no rows of keys.
  const Expr turned = leaf::score() + Capture("bias", DType::f32, 3)(leaf::h(), leaf::kv_idx(), leaf::q_idx());
  expect_added(turned, tile(32, 0, 64), bindings, false);
  const Expr jumps = leaf::score() + Capture("bias", DType::f32, 3)(leaf::h(), leaf::q_idx() % 7, leaf::kv_idx());
  expect_added(jumps, tile(32, 0, 64), bindings, false);
  // 32 x 128 converted numbers have no room in a register.
  const Tensor narrow = bias.to(DType::bf16);
  bindings.captures["bias"] = narrow;
  const Expr converted = leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  expect_added(converted, tile(32, 0, 64), bindings, false);
  EXPECT_EQ(form_of(converted, tile(32, 0, 128), bindings).kind, Kind::other);
}

TEST(TileForm, Caps) {
  const TileForm form = form_of(mods::softcap(30));
  ASSERT_EQ(form.kind, Kind::capped);
  EXPECT_EQ(form.outside, 30);
  EXPECT_FLOAT_EQ(form.inside, 1.0F / 30);
  Bindings bindings;
  bindings.params["cap"] = 20.0;
  const Expr cap = param("cap", ExprType::f32);
  const TileForm scaled = form_of(tanh(leaf::score() * 3.0 / cap) * cap * 0.5, tile(0, 0, 64), bindings);
  ASSERT_EQ(scaled.kind, Kind::capped);
  EXPECT_FLOAT_EQ(scaled.outside, 10);
  EXPECT_FLOAT_EQ(scaled.inside, 0.15F);
  bindings.params["cap"] = 1e-30;  // its inverse is out of range where it is squared
  EXPECT_EQ(form_of(tanh(leaf::score() / cap) * cap, tile(0, 0, 64), bindings).kind, Kind::other);
}

TEST(TileForm, OtherProgramsHaveNone) {
  const Expr s = leaf::score();
  for (const Expr& e : {s * 2.0, s + tanh(s), tanh(s) + 1.0, tanh(tanh(s)), 1.0 / s, 2.0 / tanh(s), s + leaf::q_idx(),
                        tanh(s) * to_f32(leaf::kv_idx()), max(s, Expr(0.0)), Expr(1.0)}) {
    EXPECT_EQ(form_of(e).kind, Kind::other) << TileProgram(e, Precision::f32).text();
  }
  const TileProgram wide(mods::softcap(30), Precision::f64);
  const Bindings none;
  TileProgram::Scratch scratch(wide, none);
  EXPECT_EQ(wide.start_form(tile(0, 0, 64), scratch).kind, Kind::other);
}

}  // namespace
}  // namespace heddle::cpu
