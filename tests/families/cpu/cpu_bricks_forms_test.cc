// Mods that the forward by AMX computes among its products, against plain loops in double.
#include <cmath>

#include "families/cpu/bricks_attention.h"
#include "heddle/mods.h"

namespace heddle {
namespace {

class CpuBricksForms : public WithBricks {};

/// More chunks of 64 keys than two, and some keys beside them.
Attention many_keys(std::int64_t rows = 150) {
  return of_bf16({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = rows, .kv_rows = 460, .qk_dim = 72, .v_dim = 40});
}

/// Scores within a half of the cap, within it, and far beyond: each row by itself.
TEST_F(CpuBricksForms, SoftcapsNearAndFar) {
  for (const double factor : {0.5, 6.0, 20.0, 200.0}) {
    for (const std::int64_t rows : {150, 16}) {
      SCOPED_TRACE(testing::Message() << "times " << factor << ", " << rows << " rows");
      Attention a = many_keys(rows);
      a.options.score_mod =
          score_mod([factor](Expr s, Expr, Expr, Expr, Expr) { return tanh(s * factor / 20.0) * 20.0; });
      a.plain.mods.score = [factor](double s, auto, auto, auto, auto) { return std::tanh(s * factor / 20) * 20; };
      expect_bricks(a);
      make_causal(a);
      expect_bricks(a);
    }
  }
}

TEST_F(CpuBricksForms, SlopesOfAnySize) {
  for (const double slope : {-0.5, 1e-3, 0.25, 4.0}) {
    SCOPED_TRACE(testing::Message() << slope);
    Attention a = many_keys();
    a.options.score_mod =
        score_mod([slope](Expr s, Expr, Expr h, Expr i, Expr j) { return s + to_f32(j - i) * (to_f32(h) * slope); });
    a.plain.mods.score = [slope](double s, auto, auto h, auto i, auto j) {
      return s + static_cast<double>(j - i) * static_cast<double>(h) * slope;
    };
    expect_bricks(a);
    make_causal(a);
    expect_bricks(a);
  }
}

/// The tensor has fewer rows and columns than there are queries and keys.
TEST_F(CpuBricksForms, BiasesOfEveryType) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    SCOPED_TRACE(name(dtype));
    Attention a = many_keys();
    const Tensor bias = random_tensor(dtype, {4, 140, 400}, 5);
    a.options.bindings.captures["bias"] = bias;
    const Capture capture("bias", dtype, 3);
    a.options.score_mod = score_mod([&](Expr s, Expr, Expr h, Expr i, Expr j) {
      return s + capture.at({h, i, j}, 0.5);
    });
    a.plain.mods.score = [&](double s, auto, auto h, auto i, auto j) {
      return s + (i < 140 && j < 400 ? get_element(bias, {h, i, j}) : 0.5);
    };
    expect_bricks(a);
    a.options.mask_mod = mods::sliding_window(90, 20);
    a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i - 90 <= j && j <= i + 20; };
    expect_bricks(a);
  }
}

/// Rows of a tile that attend nothing in its first chunks, and whose scores are far from those of others.
TEST_F(CpuBricksForms, RowsWhoseFirstKeysComeLate) {
  for (const double level : {-900.0, 0.0, 900.0}) {
    SCOPED_TRACE(testing::Message() << level);
    Attention a = of_bf16({.q_rows = 400, .kv_rows = 448, .qk_dim = 40, .v_dim = 24});
    a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (j >= i % 4 * 128) & (j <= i + 100); });
    a.plain.mods.mask = [](auto, auto, auto i, auto j) { return j >= i % 4 * 128 && j <= i + 100; };
    expect_bricks(a);
    a.options.score_mod = score_mod([level](Expr s, Expr, Expr, Expr i, Expr) { return s + to_f32(i % 2) * level; });
    a.plain.mods.score = [level](double s, auto, auto, auto i, auto) { return s + static_cast<double>(i % 2) * level; };
    expect_bricks(a);
  }
}

/// NaN and infinities that a mod makes in one row.
TEST_F(CpuBricksForms, SpecialTermsStayInTheirRows) {
  for (const double special : {kNan, kInfinity, -kInfinity, 3e38}) {
    SCOPED_TRACE(testing::Message() << special);
    Attention a = many_keys();
    const Tensor bias = random_tensor(DType::f32, {150, 460}, 5);
    static_cast<float*>(bias.data())[40 * 460 + 300] = static_cast<float>(special);
    a.options.bindings.captures["bias"] = bias;
    const Capture capture("bias", DType::f32, 2);
    a.options.score_mod = score_mod([&](Expr s, Expr, Expr, Expr i, Expr j) { return s + capture(i, j); });
    a.plain.mods.score = [&](double s, auto, auto, auto i, auto j) { return s + get_element(bias, {i, j}); };
    expect_bricks(a);
  }
}

}  // namespace
}  // namespace heddle
