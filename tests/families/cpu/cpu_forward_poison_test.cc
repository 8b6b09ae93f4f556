// NaN, infinities and rows in which nothing attends, in the CPU forward.
#include "families/cpu/cpu_attention.h"

namespace heddle {
namespace {

TEST(CpuForward, SpecialScoresMakeTheirRowNanAndNoOther) {
  on_every_target([] {
    for (const double special : {kNan, kInfinity}) {
      // At the first and the last key of a chunk, and where a row has seen nothing else yet.
      for (const std::int64_t key : {0, 127, 128, 199}) {
        Attention a({.q_rows = 20, .kv_rows = 200, .qk_dim = 8, .v_dim = 8});
        const auto value = static_cast<float>(special);
        a.options.score_mod =
            score_mod([&](Expr s, Expr, Expr, Expr i, Expr j) { return where((i == 3) & (j == Expr(key)), value, s); });
        a.plain.mods.score = [=](double s, auto, auto, auto i, auto j) { return i == 3 && j == key ? special : s; };
        expect_plain(a);
      }
    }
  });
}

TEST(CpuForward, MasksByTheScoreAndExtremeScores) {
  on_every_target([] {
    Attention a({.q_rows = 20, .kv_rows = 200, .qk_dim = 8, .v_dim = 8});
    a.options.score_mod = score_mod([](Expr s, Expr, Expr, Expr i, Expr j) { return where(j < i * 8, -INFINITY, s); });
    a.plain.mods.score = [](double s, auto, auto, auto i, auto j) { return j < i * 8 ? -kInfinity : s; };
    expect_plain(a);
    // A finite sentinel is a score like any other: rows that hold nothing else average their values.
    for (const float extreme : {-3.4028235e38f, -3e38f, 3e38f, -1e4f, 1e4f}) {
      a.options.score_mod = score_mod([&](Expr s, Expr, Expr, Expr i, Expr) { return where(i % 2 == 0, extreme, s); });
      a.plain.mods.score = [=](double s, auto, auto, auto i, auto) {
        return i % 2 == 0 ? static_cast<double>(extreme) : s;
      };
      expect_plain(a);
    }
  });
}

/// A causal attention over two tiles' worth of rows, whose result must not change when what it masks is poisoned.
TEST(CpuForward, PoisonAtMaskedElementsReachesNothing) {
  const Shape shape = {.q_rows = 130, .kv_rows = 300, .qk_dim = 8, .v_dim = 70};
  on_every_target([&] {
    for (const double poison : {kNan, kInfinity, -kInfinity}) {
      for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::sigmoid, Normalizer::none}) {
        Attention a(shape);
        a.options.normalizer = a.plain.normalizer = normalizer;
        a.with_lse = normalizer == Normalizer::softmax;
        make_causal(a);
        const std::vector<std::byte> clean = bytes_of(a.run().o);
        // Keys and values that no query sees; causal masks everything from key 130 on.
        for (std::int64_t j = 130; j < 300; ++j) {
          for (std::int64_t d = 0; d < 8; ++d) poke(a.k, {0, 0, j, d}, poison);
          for (std::int64_t d = 0; d < 70; ++d) poke(a.v, {0, 0, j, d}, poison);
        }
        EXPECT_EQ(bytes_of(a.run().o), clean);
      }
    }
  });
}

TEST(CpuForward, PoisonedKeysAndQueriesStayInTheRowsThatAttendThem) {
  on_every_target([] {
    Attention a({.q_rows = 130, .kv_rows = 130, .qk_dim = 8, .v_dim = 8});
    make_causal(a);
    poke(a.q, {0, 0, 50, 3}, kNan);
    poke(a.k, {0, 0, 90, 5}, kNan);
    expect_plain(a);
    // A value, too, even of rows that share a tile with some that attend it.
    Attention b({.q_rows = 192, .kv_rows = 192, .qk_dim = 8, .v_dim = 8});
    make_causal(b);
    const Attention::Result clean = b.run();
    for (const double poison : {kNan, kInfinity, -kInfinity}) {
      poke(b.v, {0, 0, 100, 2}, poison);
      const Attention::Result poisoned = b.run();
      for (std::int64_t i = 0; i < 192; ++i) {
        const double got = get_element(poisoned.o, {0, 0, i, 2});
        if (i < 100) {
          EXPECT_EQ(got, get_element(clean.o, {0, 0, i, 2})) << i;
        } else if (std::isnan(poison)) {
          EXPECT_TRUE(std::isnan(got)) << i;
        } else {
          EXPECT_EQ(got, poison) << i;
        }
        const double beside = get_element(poisoned.o, {0, 0, i, 3}), before = get_element(clean.o, {0, 0, i, 3});
        EXPECT_NEAR(beside, before, i < 100 ? 0 : 1e-6) << i;
      }
    }
  });
}

TEST(CpuForward, AWeightCountsOnlyWhereItsElementDoes) {
  on_every_target([] {
    Attention a({.q_rows = 40, .kv_rows = 140, .qk_dim = 8, .v_dim = 8});
    make_causal(a);
    a.options.weight_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return where(j <= i, 2.0f, NAN); });
    a.plain.mods.weight = [](auto, auto, auto i, auto j) { return j <= i ? 2.0 : kNan; };
    expect_plain(a);
  });
}

TEST(CpuForward, RowsThatAttendNothingAndSinks) {
  Attention a({.q_heads = 4, .q_rows = 30, .kv_rows = 140, .qk_dim = 8, .v_dim = 8});
  a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (i % 3 != 0) & (j < i * 5); });
  a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i % 3 != 0 && j < i * 5; };
  expect_plain(a);
  const std::vector<float> values = {0.5f, -INFINITY, 80.0f, -80.0f};
  const Tensor sinks = tensor_of(DType::f32, values);
  a.options.sinks = sinks;
  a.plain.sinks = {0.5, -kInfinity, 80, -80};
  expect_plain(a);
  // A value that all other rows of the tile see.
  poke(a.v, {0, 0, 0, 2}, kNan);
  expect_plain(a);
}

/// Values near the end of the range, whose sum leaves it though their mean does not. In some columns only, with small
/// values beside them that must keep their own accuracy.
Attention of_large_values(const Shape& shape, bool mixed_signs) {
  Attention a(shape);
  const auto rows = a.v.shape()[2], columns = a.v.shape()[3];
  for (std::int64_t h = 0; h < a.v.shape()[1]; ++h) {
    for (std::int64_t j = 0; j < rows; ++j) {
      for (std::int64_t d = 0; d < columns; ++d) {
        const double sign = mixed_signs && (j / 3 + d) % 2 == 0 ? -1 : 1;
        // Query 0, where a mask keeps it from every fourth key, has small values in column 1.
        if (d % 3 == 0 || (d % 3 == 1 && j % 4 != 0)) poke(a.v, {0, h, j, d}, sign * (d % 3 == 0 ? 3e38 : 1e-30));
        if (d % 3 == 1 && j % 4 == 0) poke(a.v, {0, h, j, d}, sign * 3e38);
      }
    }
  }
  return a;
}

TEST(CpuForward, SumsMayLeaveTheRangeThatTheirMeanKeeps) {
  const std::vector<Shape> shapes = {{.q_rows = 1, .kv_rows = 10, .qk_dim = 8, .v_dim = 3},
                                     {.q_heads = 4, .q_rows = 1, .kv_rows = 5000, .qk_dim = 8, .v_dim = 70},
                                     {.q_rows = 130, .kv_rows = 300, .qk_dim = 8, .v_dim = 70}};
  on_every_target([&] {
    for (const Shape& shape : shapes) {
      for (const bool mixed_signs : {false, true}) {
        Attention a = of_large_values(shape, mixed_signs);
        expect_plain(a);
        a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (i % 2 != 0) | (j % 4 != 0); });
        a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i % 2 != 0 || j % 4 != 0; };
        expect_plain(a);
        a.options.weight_mod = mask_mod([](Expr, Expr, Expr, Expr j) { return where(j % 5 == 0, 1.0f, -0.5f); });
        a.plain.mods.weight = [](auto, auto, auto, auto j) { return j % 5 == 0 ? 1.0 : -0.5; };
        expect_plain(a);
      }
    }
  });
}

/// An o of f64 holds what its attention's reals, f32, do not: sums of t v, or of p w v with large weights.
TEST(CpuForward, AnOOfDoublesMayLeaveTheRangeOfFloats) {
  constexpr float kLeast = std::numeric_limits<float>::lowest();
  const std::vector<Shape> shapes = {{.q_heads = 4, .q_rows = 1, .kv_rows = 5000, .qk_dim = 8, .v_dim = 70},
                                     {.q_rows = 130, .kv_rows = 300, .qk_dim = 8, .v_dim = 70}};
  on_every_target([&] {
    for (const Shape& shape : shapes) {
      Attention a(shape);
      a.o_dtype = DType::f64;
      a.with_lse = false;
      a.options.normalizer = a.plain.normalizer = Normalizer::none;
      // Rows of padding alone, and rows of ordinary scores.
      a.options.score_mod =
          score_mod([](Expr s, Expr, Expr h, Expr i, Expr) { return where((h + i) % 3 == 0, kLeast, s); });
      a.plain.mods.score = [](double s, auto, auto h, auto i, auto) {
        return (h + i) % 3 == 0 ? static_cast<double>(kLeast) : s;
      };
      expect_plain(a);
      EXPECT_GT(std::abs(get_element(a.run().o, {0, 0, 0, 0})), 4e38);

      Attention b = of_large_values(shape, true);
      b.o_dtype = DType::f64;
      b.options.weight_mod = mask_mod([](Expr, Expr, Expr, Expr j) { return to_f32(j % 3) * 1e20f; });
      b.plain.mods.weight = [](auto, auto, auto, auto j) {
        return static_cast<double>(j % 3) * static_cast<double>(1e20f);
      };
      expect_plain(b);
    }
  });
}

TEST(CpuForward, LargeValuesBesideInfinities) {
  on_every_target([] {
    Attention a = of_large_values({.q_rows = 40, .kv_rows = 60, .qk_dim = 8, .v_dim = 6}, false);
    make_causal(a);
    poke(a.v, {0, 0, 20, 0}, -kInfinity);
    poke(a.v, {0, 0, 30, 1}, kNan);
    const Attention::Result result = a.run();
    for (std::int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(get_element(result.o, {0, 0, i, 0}) == -kInfinity, i >= 20) << i;
      EXPECT_EQ(std::isnan(get_element(result.o, {0, 0, i, 1})), i >= 30) << i;
      EXPECT_TRUE(std::isfinite(get_element(result.o, {0, 0, i, 3}))) << i;
    }
  });
}

TEST(CpuForward, SumsOfDoublesMayLeaveTheirRangeToo) {
  Attention a({.q_rows = 7, .kv_rows = 50, .qk_dim = 8, .v_dim = 5}, DType::f64);
  auto* v = static_cast<double*>(a.v.data());
  std::fill_n(v, a.v.count(), 1.5e308);
  const Attention::Result result = a.run();
  for (std::int64_t i = 0; i < result.o.count(); ++i) {
    EXPECT_NEAR(static_cast<const double*>(result.o.data())[i] / 1.5e308, 1, 1e-14);
  }
  const CheckReport report = check_attention(a.q, a.k, a.v, a.options, result.o, result.lse);
  EXPECT_TRUE(report.passed) << report.text();
}

}  // namespace
}  // namespace heddle
