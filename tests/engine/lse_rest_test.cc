// lse in two words: lse + lse_rest is m + ln l where lse alone has lost digits of ln l, and gradients that take both
// are right however large the scores are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "engine/backward_case.h"
#include "engine/grid_specs.h"
#include "engine/large_scores.h"
#include "expect_error.h"

namespace heddle::test::lse_rest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = std::numeric_limits<float>::lowest();
constexpr std::int64_t kRows = 5, kKeys = 37, kDim = 8;

/// One head of a few rows, in f32 or f64.
LargeScores large_of(DType dtype, const LargeScores::Added& added, std::int64_t keys = kKeys) {
  return LargeScores({.dtype = dtype, .queries = kRows, .keys = keys, .dim = kDim}, added);
}

const std::vector<BackendChoice> kBackends = {BackendChoice::cpu, BackendChoice::reference};

// f32 keeps 24 bits of a number, so that lse beside -1e6 has lost 3 % of p, and beside -1e9 all of ln l.
TEST(LseRest, MakesGradientsRightHoweverLargeScoresAre) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const BackendChoice backend : kBackends) {
      for (const double level : {0.0, -31360.0, 31360.0, -1e6, 1048576.0, -8e6}) {
        LargeScores large = large_of(dtype, [&](auto, auto) { return level; });
        large.differentiate(backend);
        EXPECT_LT(large.error(), 3e-6) << name(dtype) << ' ' << name(backend) << ' ' << level;
      }
    }
  }
}

TEST(LseRest, MakesGradientsRightOfRowsThatAMaskOfHugeNumbersHides) {
  const auto padded = [](double low) {  // row 0 has nothing but masked keys, row 1 one other key, the rest a few
    return [low](std::int64_t row, std::int64_t key) { return key < 7 * row ? 0.0 : low; };
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double low : {-1e9, kLowest, dtype == DType::f64 ? -1e300 : -1e30}) {
      for (const double sink : {-kInfinity, low, -2.0}) {
        LargeScores large = large_of(dtype, padded(low));
        if (sink != -kInfinity) large.set_sink(sink);
        large.differentiate(BackendChoice::cpu);
        EXPECT_LT(large.error(), 3e-6) << name(dtype) << ' ' << low << ' ' << sink;
        // In float64 the reference keeps the scores beside -1e9, so that it computes another function.
        if (low == -1e9 && dtype == DType::f32) continue;
        large.differentiate(BackendChoice::reference);
        EXPECT_LT(large.error(), 3e-6) << name(dtype) << ' ' << low << ' ' << sink << " of the reference";
      }
    }
  }
}

// Without it p is 1 where it should be 1 / n.
TEST(LseRest, IsZeroWhereItIsNotGiven) {
  LargeScores large = large_of(DType::f32, [](auto, auto) { return -1e9; });
  large.attend(BackendChoice::cpu);
  BackwardTensors tensors = large.backward();
  tensors.lse_rest.reset();
  attention_backward_into(tensors, large.options);
  EXPECT_GT(large.error(), 1);
  attention_backward_into(large.backward(), large.options);  // no plan serves both
  EXPECT_LT(large.error(), 3e-6);
}

TEST(LseRest, SpecialValues) {
  const double ulp = 0.0625;  // of 1e6 in f32
  for (const BackendChoice backend : kBackends) {
    SCOPED_TRACE(name(backend));
    const auto rows = [&](double level, std::int64_t keys, std::optional<double> sink) {
      LargeScores large = large_of(
          DType::f32, [&](auto, auto) { return level; }, keys);
      for (std::int64_t i = 0; i < large.q.count(); ++i) LargeScores::set(large.q, i, 0);
      if (sink) large.set_sink(*sink);
      LargeScores::set(large.rest, 2, 99);
      large.attend(backend);
      return std::pair(LargeScores::element(large.lse, 2), LargeScores::element(large.rest, 2));
    };
    using Pair = std::pair<double, double>;
    EXPECT_EQ(rows(-kInfinity, 3, {}), Pair(-kInfinity, 0));
    EXPECT_EQ(rows(-kInfinity, 3, -1e9), Pair(-1e9, 0));
    EXPECT_EQ(rows(0, 0, {}), Pair(-kInfinity, 0));
    EXPECT_EQ(rows(0, 0, 2.5), Pair(2.5, 0));
    EXPECT_EQ(rows(kLowest, 10, {}), Pair(kLowest, static_cast<float>(std::log(10.0))));
    EXPECT_EQ(rows(kLowest, 10, kLowest), Pair(kLowest, static_cast<float>(std::log(11.0))));
    EXPECT_TRUE(std::isnan(rows(std::nan(""), 3, {}).second));
    const auto [lse, rest] = rows(1e6, 3, {});
    EXPECT_NEAR((lse - 1e6) + rest, std::log(3.0), 1e-7);
    EXPECT_LE(std::abs(rest), ulp / 2);
  }
}

TEST(LseRest, AgreesWithTheReference) {
  run_drawn(3, [](CaseSpec& spec, int i) {
    spec.seed += 4'000'000;
    spec.normalizer = Normalizer::softmax;
    spec.with_lse_rest = true;
    spec.with_max_scores = i % 3 == 0;
  });
}

TEST(LseRest, OfManyKeys) {
  run_many_keys([](CaseSpec& spec) {
    spec.seed = 8;
    spec.with_lse_rest = true;
  });
}

TEST(LseRest, OfABackwardAgreesWithTheReference) {
  SpecSource source({.elements = 18'000, .products = 4'000'000});
  for (int i = 0; i < scaled(60); ++i) {
    CaseSpec spec = source.draw();
    spec.seed += 5'000'000;
    spec.normalizer = Normalizer::softmax;
    spec.with_lse_rest = true;
    spec.q_rows = std::min<std::int64_t>(spec.q_rows, 65);
    spec.kv_rows = std::min<std::int64_t>(spec.kv_rows, 130);
    AttentionCase attention_case(spec);
    BackwardCase backward_case(attention_case, {.with_d_lse = i % 2 == 0});
    run_and_judge(backward_case, backward_backends().front());
  }
}

TEST(LseRest, IsRefusedWhereItDoesNotFit) {
  CaseSpec spec;
  spec.q_rows = 5;
  spec.with_lse_rest = true;
  AttentionCase c(spec);
  const AttentionTensors right = c.tensors();
  const auto expect_refused = [&](const AttentionTensors& tensors, const char* why) {
    expect_error([&] { attention_into(tensors, c.options()); }, ErrorCode::invalid_argument, testing::HasSubstr(why));
  };
  AttentionTensors tensors = right;
  tensors.lse.reset();
  expect_refused(tensors, "lse_rest is given without lse");
  tensors = right;
  tensors.lse_rest->dtype = DType::f64;
  expect_refused(tensors, "lse_rest is f64; f32 is accepted");
  tensors = right;
  tensors.lse_rest->shape = {1, 1, 4};
  expect_refused(tensors, "lse_rest has shape");
  tensors = right;
  tensors.lse_rest->device = {DeviceKind::cuda, 0};
  expect_refused(tensors, "q is on the CPU and lse_rest on cuda:0");
  tensors = right;
  tensors.lse_rest = tensors.lse;
  expect_refused(tensors, "lse overlaps lse_rest in memory");
  const AttentionPlan plan(right, c.options());
  tensors = right;
  tensors.lse_rest.reset();
  expect_error([&] { plan.run(tensors); }, ErrorCode::invalid_argument,
               testing::HasSubstr("lse_rest is not given; the plan was made with it"));
}

TEST(LseRest, IsRefusedByABackwardWhereItDoesNotFit) {
  LargeScores large = large_of(DType::f32, [](auto, auto) { return 0.0; });
  large.attend(BackendChoice::cpu);
  const auto expect_refused = [&](const BackwardTensors& tensors, const char* why) {
    expect_error([&] { attention_backward_into(tensors, large.options); }, ErrorCode::invalid_argument,
                 testing::HasSubstr(why));
  };
  BackwardTensors tensors = large.backward();
  tensors.lse_rest->dtype = DType::f64;
  expect_refused(tensors, "lse_rest is f64; f32 is accepted");
  tensors = large.backward();
  tensors.lse_rest->shape = {1, 1, 4};
  expect_refused(tensors, "lse_rest has shape");
  tensors = large.backward();
  tensors.lse.reset();
  expect_refused(tensors, "lse_rest is given without lse");
  tensors = large.backward();
  tensors.dq = TensorView(const_cast<void*>(tensors.lse_rest->data), DType::f32, {1, 1, kRows, kDim});
  expect_refused(tensors, "dq overlaps lse_rest in memory");
}

TEST(LseRest, OfFamiliesOfGpus) {
  LargeScores large = large_of(DType::bf16, [](auto, auto) { return 0.0; });
  for (const char* gpu : {"h200", "a100"}) {
    SCOPED_TRACE(gpu);
    EXPECT_THAT(explain_on(gpu, large.forward(), large.options).json, testing::HasSubstr("forward_"));
    EXPECT_THAT(explain_on(gpu, large.backward(), large.options).json, testing::HasSubstr("backward_"));
  }
}

}  // namespace
}  // namespace heddle::test::lse_rest
