// The criterion passes what is right and fails each planted error.
#include "heddle/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "base/element.h"
#include "check/plain.h"
#include "expect_error.h"

namespace heddle::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Tensor random_tensor(DType dtype, const Dims& shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor.to(dtype);
}

// A right result of the reference backend, rounded once, which a test then spoils.
struct Judged {
  Tensor q, k, v, o, lse;
  AttentionOptions options;

  explicit Judged(DType dtype, const AttentionOptions& given = {}, const Dims& q_shape = {1, 2, 20, 16},
                  const Dims& kv_shape = {1, 2, 40, 16})
      : q(random_tensor(dtype, q_shape, 1)),
        k(random_tensor(dtype, kv_shape, 2)),
        v(random_tensor(dtype, kv_shape, 3)),
        options(given) {
    compute();
  }
  void compute() {
    options.backend = BackendChoice::reference;
    const bool with_lse = options.normalizer == Normalizer::softmax;
    const AttentionResult result = attention(q, k, v, options, with_lse);
    o = result.o;
    lse = result.lse;
  }
  CheckReport check() const {
    std::optional<ConstTensorView> given_lse;
    if (options.normalizer == Normalizer::softmax) given_lse = lse;
    return check_attention(q, k, v, options, o, given_lse);
  }
  double get(const Tensor& tensor, std::int64_t i) const {
    return base::load_element(tensor.data(), tensor.dtype(), i);
  }
  void set(const Tensor& tensor, std::int64_t i, double x) { base::store_element(tensor.data(), tensor.dtype(), i, x); }
  // Every element of o becomes f(element).
  void spoil_o(const std::function<double(double)>& f) {
    for (std::int64_t i = 0; i < o.count(); ++i) set(o, i, f(get(o, i)));
  }
};

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};

TEST(Check, PassesARightResult) {
  for (const DType dtype : kAll) {
    for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}) {
      AttentionOptions options;
      options.normalizer = normalizer;
      const CheckReport report = Judged(dtype, options).check();
      EXPECT_TRUE(report.passed) << name(dtype) << '\n' << report.text();
      EXPECT_EQ(report.lse.has_value(), normalizer == Normalizer::softmax);
      EXPECT_LE(report.o.worst_row, 1);
      EXPECT_EQ(report.o.mismatched_specials, 0);
    }
  }
}

// On a single element plain is exact by luck now and then; the rounded reference is right all the same.
TEST(Check, PassesARightResultOfOneElement) {
  for (const DType dtype : kAll) {
    for (std::int64_t keys = 1; keys < 12; ++keys) {
      const CheckReport report = Judged(dtype, {}, {1, 1, 1, 1}, {1, 1, keys, 1}).check();
      EXPECT_TRUE(report.passed) << name(dtype) << '\n' << report.text();
    }
  }
}

TEST(Check, FailsOneWrongElement) {
  for (const DType dtype : kAll) {
    Judged judged(dtype);
    judged.set(judged.o, 37, judged.get(judged.o, 37) + 3);
    const CheckReport report = judged.check();
    EXPECT_FALSE(report.passed) << name(dtype);
    EXPECT_FALSE(report.o.passed);
    EXPECT_TRUE(report.lse->passed);
    EXPECT_GT(report.o.worst_row, 1);
  }
}

// In f32, score - 1e9 keeps no digit of the score: every key counts alike, and o is the mean of v. In float64 one key
// has nearly all the weight, also where its v is 0 and so the row's magnitude next to nothing.
TEST(Check, PassesRowsWhoseScoresABiasRoundsAway) {
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
TEST(Check, LetsNoWeightErrByMoreThanOne) {
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
TEST(Check, FailsWhatNoWeightsMakeBesideTheLeastScore) {
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
TEST(Check, AllowsMaskedValuesThatAreNotFiniteToReachRowsOfAGpu) {
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

TEST(Check, EitherSideOfTheRangeIsRightNearIt) {
  EXPECT_EQ(check_cancelling(1024, 1024, kNaN).mismatched_specials, 0);
  EXPECT_EQ(check_cancelling(1024, 1024, 416).mismatched_specials, 0);
  EXPECT_EQ(check_cancelling(1024, 1024, -416).mismatched_specials, 1);
  EXPECT_EQ(check_cancelling(1024, 1024, 100).mismatched_specials, 1);
  // All of the range and both sides of it are within what is allowed.
  EXPECT_EQ(check_cancelling(1024, 4096, -416).mismatched_specials, 0);
  EXPECT_EQ(check_cancelling(0, 4096, kNaN).mismatched_specials, 0);
}

TEST(Check, FailsSwappedRows) {
  Judged judged(DType::bf16);
  for (std::int64_t d = 0; d < 16; ++d) {
    const double x = judged.get(judged.o, d);
    judged.set(judged.o, d, judged.get(judged.o, 16 + d));
    judged.set(judged.o, 16 + d, x);
  }
  EXPECT_FALSE(judged.check().passed);
}

// One bad row among rows a thousand times as large: the tensor's largest and mean errors do not show it.
TEST(Check, FailsOneBadRowInAGoodTensor) {
  AttentionOptions options;
  options.weight_mod = where(leaf::q_idx() == 3, Expr(1.0), Expr(4000.0));
  Judged judged(DType::bf16, options);
  for (std::int64_t d = 0; d < 16; ++d) judged.set(judged.o, 3 * 16 + d, judged.get(judged.o, 3 * 16 + d) + 0.4);
  const CheckReport report = judged.check();
  EXPECT_LE(report.o.max_error, report.o.max_allowed);
  EXPECT_LE(report.o.mean_error, report.o.mean_allowed);
  EXPECT_GT(report.o.worst_row, 1);
  EXPECT_FALSE(report.passed);
}

// A right result may round the weight up or down; plain's own weight, 1 / 256, is exact.
TEST(Check, AllowsARoundingOfTheOneWeightThatDecides) {
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
TEST(Check, AllowsEqualWeightsToRoundAlike) {
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

// A small bias everywhere: no element is badly wrong, but the mean error tells.
TEST(Check, FailsASmallBias) {
  for (const auto& [dtype, bias] : {std::pair(DType::f64, 1e-13), std::pair(DType::f32, 2e-5),
                                    std::pair(DType::f16, 6e-4), std::pair(DType::bf16, 6e-3)}) {
    Judged judged(dtype);
    judged.spoil_o([&, bias = bias](double x) { return x + bias; });
    const CheckReport report = judged.check();
    EXPECT_GT(report.o.mean_error, report.o.mean_allowed) << name(dtype);
    EXPECT_FALSE(report.passed) << name(dtype);
  }
}

TEST(Check, FailsAWrongScale) {
  for (const DType dtype : kAll) {
    Judged judged(dtype);
    judged.options.scale = 0.26;  // computed with 0.25
    EXPECT_FALSE(judged.check().passed) << name(dtype);
  }
}

TEST(Check, FailsLessPrecisionThanPlain) {
  Judged coarse(DType::f64);
  coarse.spoil_o([](double x) { return static_cast<float>(x); });
  EXPECT_FALSE(coarse.check().passed);
  Judged coarser(DType::f32);
  coarser.spoil_o([](double x) { return static_cast<double>(to_f32(to_f16(x))); });
  EXPECT_FALSE(coarser.check().passed);
}

TEST(Check, FailsAWrongLse) {
  const auto failing = [](const std::function<void(Judged&)>& spoil) {
    Judged judged(DType::bf16);
    spoil(judged);
    const CheckReport report = judged.check();
    EXPECT_TRUE(report.o.passed);
    EXPECT_FALSE(report.lse->passed);
    EXPECT_FALSE(report.passed);
  };
  failing([](Judged& j) { j.set(j.lse, 11, j.get(j.lse, 11) + 1e-3); });
  failing([](Judged& j) {
    for (std::int64_t i = 0; i < j.lse.count(); ++i) j.set(j.lse, i, j.get(j.lse, i) / std::log(2.0));
  });
  failing([](Judged& j) { j.set(j.lse, 5, -kInfinity); });
  failing([](Judged& j) { j.set(j.lse, 5, kNaN); });
}

// Sums of 256 products err by some units of their terms, whatever the sink makes of the row's weights.
TEST(Check, JudgesTheLargestScoreBesideAnySink) {
  for (const float sink : {0.0F, kInfinity, kNaN}) {
    const Tensor sinks = Tensor::empty(DType::f32, {2});
    std::fill_n(static_cast<float*>(sinks.data()), 2, sink);
    AttentionOptions options;
    options.sinks = sinks;
    Judged judged(DType::f32, options, {1, 2, 20, 256}, {1, 2, 40, 256});
    const Tensor largest = Tensor::empty(DType::f32, {1, 2, 20});
    attention_into({.q = judged.q, .k = judged.k, .v = judged.v, .o = judged.o, .max_scores = largest}, judged.options);
    const auto check = [&] {
      return *check_attention(judged.q, judged.k, judged.v, judged.options, judged.o, std::nullopt, largest).max_scores;
    };
    const auto move = [&](double by) {
      for (std::int64_t i = 0; i < largest.count(); ++i) judged.set(largest, i, judged.get(largest, i) + by);
    };
    move(2e-6);
    EXPECT_TRUE(check().passed) << sink;
    EXPECT_GT(check().max_error, 1e-6) << sink;
    move(1e-3);
    EXPECT_FALSE(check().passed) << sink;
  }
}

// Tensor cores keep 14 bits of sums of 8-bit products; nobody else is excused.
TEST(Check, KnowsTheSumsOfAGpuInEightBits) {
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
TEST(Check, KnowsTheProductsOfTf32) {
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

TEST(Check, FailsNaNAndInfinityInTheWrongPlace) {
  AttentionOptions options;  // row 2 is NaN
  options.score_mod = where((leaf::q_idx() == 2) & (leaf::kv_idx() == 7), Expr(kNaN), leaf::score());
  const Judged right(DType::f32, options);
  ASSERT_TRUE(right.check().passed) << right.check().text();
  ASSERT_TRUE(std::isnan(right.get(right.o, 2 * 16)));

  Judged finite(DType::f32, options);  // NaN is right there and nowhere else
  finite.set(finite.o, 2 * 16, 0);
  EXPECT_EQ(finite.check().o.mismatched_specials, 1);
  EXPECT_FALSE(finite.check().passed);

  Judged moved(DType::f32, options);
  for (std::int64_t d = 0; d < 16; ++d) {
    moved.set(moved.o, 2 * 16 + d, moved.get(moved.o, 3 * 16 + d));
    moved.set(moved.o, 3 * 16 + d, kNaN);
  }
  EXPECT_EQ(moved.check().o.mismatched_specials, 32);

  Judged infinite(DType::f32, options);
  infinite.set(infinite.o, 2 * 16, kInfinity);
  EXPECT_FALSE(infinite.check().passed);
}

TEST(Check, FailsRowsThatShouldBeEmpty) {
  Tensor lengths = Tensor::zeros(DType::i32, {1});
  static_cast<std::int32_t*>(lengths.data())[0] = 15;
  AttentionOptions options;
  options.q_lengths = lengths;
  options.mask_mod = leaf::q_idx() != 4;
  ASSERT_TRUE(Judged(DType::f32, options).check().passed);
  for (const std::int64_t row : {4, 15, 19}) {  // masked, past the end, the last one
    Judged judged(DType::f32, options);
    judged.set(judged.o, row * 16 + 5, 1e-30);
    EXPECT_FALSE(judged.check().passed) << row;
    judged.compute();
    judged.set(judged.lse, row, -1e30);
    EXPECT_FALSE(judged.check().passed) << row;
    judged.compute();
    judged.set(judged.o, row * 16, kNaN);
    EXPECT_FALSE(judged.check().passed) << row;
  }
}

TEST(Check, FailsIgnoredMasksSinksAndWeights) {
  const Tensor sinks = Tensor::zeros(DType::f32, {2});
  const auto failing = [](const std::function<void(AttentionOptions&)>& change) {
    Judged judged(DType::bf16);
    change(judged.options);
    EXPECT_FALSE(judged.check().passed);
  };
  failing([](AttentionOptions& o) { o.mask_mod = !(leaf::q_idx() == 19 && leaf::kv_idx() == 39); });
  failing([&](AttentionOptions& o) { o.sinks = sinks; });
  failing([](AttentionOptions& o) { o.weight_mod = where(leaf::kv_idx() == 0, Expr(0.5), Expr(1.0)); });
  failing([](AttentionOptions& o) { o.score_mod = leaf::score() + to_f32(leaf::kv_idx()) * 0.01; });
}

TEST(Check, TextShowsTheFigures) {
  Judged judged(DType::f32);
  judged.set(judged.lse, 0, 99);
  const std::string text = judged.check().text();
  EXPECT_THAT(text, testing::HasSubstr("worst row"));
  EXPECT_THAT(text, testing::ContainsRegex("\no .*passed\nlse .*FAILED\n"));
}

TEST(Check, RefusesWhatAttentionRefuses) {
  const Judged judged(DType::f32);
  expect_error([&] { check_attention(judged.q, judged.k, judged.v, {}, slice(judged.o.view(), 2, 0, 3), {}); },
               ErrorCode::invalid_argument, "o has shape [1, 2, 3, 16]; [1, 2, 20, 16] is accepted");
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
