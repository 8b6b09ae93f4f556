// The criterion passes what is right and fails each planted error.
#include "heddle/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "check/judged.h"
#include "expect_error.h"

namespace heddle::test {
namespace {

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

}  // namespace
}  // namespace heddle::test
