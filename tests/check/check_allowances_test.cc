// The criterion allows roundings of f32 sums, of weights and of storage, and values that a tile's product reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "check/judged.h"
#include "check/plain.h"

namespace heddle::test {
namespace {

// In f32, score - 1e9 keeps no digit of the score: every key counts alike, and o is the mean of v. In float64 one key
// has nearly all the weight, also where its v is 0 and so the row's magnitude next to nothing.
TEST(CheckAllowances, PassesRowsWhoseScoresABiasRoundsAway) {
  AttentionOptions options;
  options.scale = 20;
  options.score_mod = leaf::score() - 1e9;
  Judged judged(DType::f32, options);
  double largest = 0;
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t d = 0; d < 16; ++d) {
      double sum = 0;
      for (std::int64_t j = 0; j < 40; ++j) {
        const std::int64_t i = (h * 40 + j) * 16 + d;
        if (j % 2 == 0) judged.set(judged.v, i, 0);
        sum += judged.get(judged.v, i);
        largest = std::max(largest, std::abs(judged.get(judged.v, i)));
      }
      for (std::int64_t row = 0; row < 20; ++row) judged.set(judged.o, (h * 20 + row) * 16 + d, sum / 40);
    }
  }
  const CheckReport report = judged.check();
  EXPECT_TRUE(report.passed) << report.text();
  // No weights of keys, however wrong, make this of these values.
  judged.set(judged.o, 7 * 16 + 3, 3.1 * largest);
  EXPECT_GT(judged.check().o.worst_row, 1);
}

// Scores near 1e9 that differ are as uncertain as can be. Still a weight lies between 0 and 1.
TEST(CheckAllowances, LetsNoWeightErrByMoreThanOne) {
  AttentionOptions options;
  options.score_mod = where(leaf::kv_idx() == 0, Expr(1e9), Expr(1e9 - 1024.0));
  Judged judged(DType::f32, options);
  const auto set_o = [&](double factor) {
    for (std::int64_t i = 0; i < judged.o.count(); ++i) {
      judged.set(judged.o, i, factor * judged.get(judged.v, i / (20 * 16) * 40 * 16 + i % 16));
    }
  };
  for (std::int64_t i = 0; i < judged.v.count(); ++i) {
    if (i / 16 % 40 != 0) judged.set(judged.v, i, 0);
  }
  for (const double factor : {1.0, 0.25}) {
    set_o(factor);
    EXPECT_TRUE(judged.check().o.passed) << judged.check().text();
  }
  set_o(-0.5);
  EXPECT_FALSE(judged.check().o.passed) << judged.check().text();
}

// Nor does a key far below all others excuse a row.
TEST(CheckAllowances, FailsWhatNoWeightsMakeBesideTheLeastScore) {
  for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::sigmoid}) {
    AttentionOptions options;
    options.normalizer = normalizer;
    options.score_mod = where(leaf::kv_idx() == 7, Expr(std::numeric_limits<float>::lowest()), leaf::score());
    Judged judged(DType::bf16, options);
    ASSERT_TRUE(judged.check().passed) << judged.check().text();
    judged.set(judged.o, 37, normalizer == Normalizer::softmax ? 20 : 200);  // 40 values, none above 4
    EXPECT_GT(judged.check().o.worst_row, 1);
  }
}

// A tile of a GPU multiplies masked values by 0: what is not finite may reach rows that do not attend it.
TEST(CheckAllowances, AllowsMaskedValuesThatAreNotFiniteToReachRowsOfAGpu) {
  AttentionOptions options;
  options.mask_mod = leaf::kv_idx() <= leaf::q_idx();
  Judged judged(DType::f32, options);
  judged.set(judged.v, 10 * 16 + 5, kNaN);  // head 0, key 10, column 5
  judged.compute();
  EXPECT_TRUE(judged.check().passed);
  judged.set(judged.o, 9 * 16 + 5, kNaN);  // row 9 does not attend it
  EXPECT_EQ(judged.check().o.mismatched_specials, 1);
  judged.options.backend = BackendChoice::cuda;
  EXPECT_TRUE(judged.check().passed);
  // Row 9 of a column and of a head whose values are all finite.
  for (const std::int64_t finite : {9 * 16 + 4, (20 + 9) * 16 + 5}) {
    const double right = judged.get(judged.o, finite);
    judged.set(judged.o, finite, kNaN);
    EXPECT_EQ(judged.check().o.mismatched_specials, 1);
    judged.set(judged.o, finite, right);
  }
  // Row 10 attends it.
  judged.set(judged.o, 10 * 16 + 5, 1);
  EXPECT_EQ(judged.check().o.mismatched_specials, 1);
  // Nor is NaN right where an attended value makes infinity.
  judged.set(judged.v, 10 * 16 + 5, kInfinity);
  judged.compute();
  judged.options.backend = BackendChoice::cuda;
  EXPECT_TRUE(judged.check().passed);
  judged.set(judged.o, 10 * 16 + 5, kNaN);
  EXPECT_EQ(judged.check().o.mismatched_specials, 1);
}

// o is `sum`, beside which 40 terms of `size` cancel: it may err by 40 size / 64. e4m3 reaches to 448.
TensorCheck check_cancelling(double sum, double size, double given) {
  const Tensor ones = Tensor::empty(DType::f32, {1, 1, 40, 1}), v = Tensor::empty(DType::f32, {1, 1, 40, 1});
  for (std::int64_t i = 0; i < 40; ++i) {
    static_cast<float*>(ones.data())[i] = 1;
    static_cast<float*>(v.data())[i] = static_cast<float>((i % 2 == 0 ? size : -size) + (i == 0 ? sum : 0));
  }
  const Tensor k = ones.to(DType::bf16), o = Tensor::empty(DType::e4m3, {1, 1, 1, 1});
  const Tensor q = Tensor::zeros(DType::bf16, {1, 1, 1, 1});
  base::store_element(q.data(), q.dtype(), 0, 1);
  base::store_element(o.data(), o.dtype(), 0, given);
  AttentionOptions options;
  options.normalizer = Normalizer::none;
  options.scale = 1;
  return check_attention(q, k, v.to(DType::bf16), options, o, {}).o;
}

TEST(CheckAllowances, EitherSideOfTheRangeIsRightNearIt) {
  EXPECT_EQ(check_cancelling(1024, 1024, kNaN).mismatched_specials, 0);
  EXPECT_EQ(check_cancelling(1024, 1024, 416).mismatched_specials, 0);
  EXPECT_EQ(check_cancelling(1024, 1024, -416).mismatched_specials, 1);
  EXPECT_EQ(check_cancelling(1024, 1024, 100).mismatched_specials, 1);
  // All of the range and both sides of it are within what is allowed.
  EXPECT_EQ(check_cancelling(1024, 4096, -416).mismatched_specials, 0);
  EXPECT_EQ(check_cancelling(0, 4096, kNaN).mismatched_specials, 0);
}

// A right result may round the weight up or down; plain's own weight, 1 / 256, is exact.
TEST(CheckAllowances, AllowsARoundingOfTheOneWeightThatDecides) {
  const auto first = leaf::kv_idx() == 0;
  AttentionOptions options;
  options.score_mod = where(first, 0.0, -std::log(256.0));
  options.weight_mod = where(first, 0.0, 1.0);
  const Tensor q = random_tensor(DType::bf16, {1, 1, 1, 16}, 1), k = random_tensor(DType::bf16, {1, 1, 2, 16}, 2);
  const auto filled = [](const Dims& shape, float x) {
    Tensor tensor = Tensor::empty(DType::f32, shape);
    std::fill_n(static_cast<float*>(tensor.data()), tensor.count(), x);
    return tensor;
  };
  const Tensor v = filled({1, 1, 2, 16}, 1).to(DType::bf16);
  const auto passes = [&](double units) {
    const Tensor o = filled({1, 1, 1, 16}, static_cast<float>((1 + units * 0x1p-8) / 257));
    return check_attention(q, k, v, options, o, {}).passed;
  };
  for (const double units : {0.0, 0.99, -0.99}) EXPECT_TRUE(passes(units)) << units;
  for (const double units : {1.05, -1.05}) EXPECT_FALSE(passes(units)) << units;
}

// Equal weights are exact beside their own maximum. Beside another one they are some other number, and all round alike.
TEST(CheckAllowances, AllowsEqualWeightsToRoundAlike) {
  const auto passes = [](const Expr& score, double units) {
    AttentionOptions options;
    options.score_mod = score;
    const Tensor q = random_tensor(DType::f16, {1, 2, 20, 16}, 1), k = random_tensor(DType::f16, {1, 2, 256, 16}, 2),
                 v = random_tensor(DType::f16, {1, 2, 256, 16}, 3), o = Tensor::empty(DType::f32, {1, 2, 20, 16});
    options.backend = BackendChoice::reference;
    attention_into({.q = q, .k = k, .v = v, .o = o}, options);
    float* const first = static_cast<float*>(o.data());
    std::for_each(first, first + o.count(), [&](float& x) { x *= static_cast<float>(1 + units * 0x1p-11); });
    return check_attention(q, k, v, options, o, {}).passed;
  };
  const Expr equal(0.5), different = leaf::kv_idx() * -0.001;
  for (const double units : {0.0, 0.99, -0.99}) EXPECT_TRUE(passes(equal, units)) << units;
  for (const double units : {1.05, -1.05}) EXPECT_FALSE(passes(equal, units)) << units;
  for (const double units : {0.99, -0.99}) EXPECT_FALSE(passes(different, units)) << units;
}

// Tensor cores keep 14 bits of sums of 8-bit products. No other backend is excused.
TEST(CheckAllowances, KnowsTheSumsOfAGpuInEightBits) {
  const auto passes = [](DType dtype, BackendChoice backend, double error) {
    Judged judged(dtype);
    judged.options.backend = backend;
    judged.set(judged.lse, 11, judged.get(judged.lse, 11) + error);
    return judged.check().lse->passed;
  };
  constexpr double kFew = 2e-4, kMany = 1e-1;
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    EXPECT_TRUE(passes(dtype, BackendChoice::cuda, kFew));
    EXPECT_FALSE(passes(dtype, BackendChoice::cuda, kMany));
    EXPECT_FALSE(passes(dtype, BackendChoice::cpu, kFew));
  }
  EXPECT_FALSE(passes(DType::bf16, BackendChoice::cuda, kFew));
  Judged mixed(DType::bf16);
  mixed.k = mixed.k.to(DType::e4m3);
  mixed.v = mixed.v.to(DType::e4m3);
  mixed.compute();
  mixed.options.backend = BackendChoice::cuda;
  EXPECT_TRUE(mixed.check().passed);
  mixed.set(mixed.lse, 11, mixed.get(mixed.lse, 11) + kFew);
  EXPECT_FALSE(mixed.check().lse->passed);
}

// Operands of 11 bits err by far more than f32's, where the caller allows them; other types do not change.
TEST(CheckAllowances, KnowsTheProductsOfTf32) {
  const auto passes = [](DType dtype, bool allow_tf32, double error) {
    Judged judged(dtype);
    judged.options.allow_tf32 = allow_tf32;
    judged.set(judged.lse, 11, judged.get(judged.lse, 11) + error);
    return judged.check().lse->passed;
  };
  constexpr double kFew = 5e-4, kMany = 1e-1;
  EXPECT_TRUE(passes(DType::f32, true, kFew));
  EXPECT_FALSE(passes(DType::f32, true, kMany));
  EXPECT_FALSE(passes(DType::f32, false, kFew));
  EXPECT_FALSE(passes(DType::bf16, true, kFew));
}

TEST(Plain, RoundsSignificandsAsTheStorageTypesDo) {
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> uniform(0.01, 100);
  for (int i = 0; i < 10000; ++i) {
    const double x = uniform(rng);
    EXPECT_EQ(check::round_significand(x, check::significand_bits(DType::f16)), to_f32(to_f16(x)));
    EXPECT_EQ(check::round_significand(x, check::significand_bits(DType::bf16)), to_f32(to_bf16(x)));
    EXPECT_EQ(check::round_significand(-x, check::significand_bits(DType::f32)), static_cast<float>(-x));
    const double y = x + 1;  // normal in both fp8 types
    EXPECT_EQ(check::round_significand(y, check::significand_bits(DType::e4m3)), to_f32(to_e4m3(y)));
    EXPECT_EQ(check::round_significand(y, check::significand_bits(DType::e5m2)), to_f32(to_e5m2(y)));
  }
  EXPECT_EQ(check::round_significand(0x1.01p-300, 8), 0x1p-300);  // no limit of exponent
}

}  // namespace
}  // namespace heddle::test
