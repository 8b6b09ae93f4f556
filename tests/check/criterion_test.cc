// The criterion at the edges of what it allows: beside overflow, beside a coarse type, beside weights next to 0.
#include "check/criterion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.h"
#include "heddle/attention.h"
#include "heddle/check.h"

namespace heddle::test::edges {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Criterion, TakesEitherSideOfTheOverflowThreshold) {
  // f16 rounds to infinity from 65520 on.
  const auto passes = [](double value, double reference) {
    check::Criterion criterion(DType::f16, true);
    criterion.add({.value = value, .reference = reference, .plain = reference, .floor = 0, .tolerance = 1});
    return criterion.finish().passed;
  };
  EXPECT_TRUE(passes(65504, 65519.5));
  EXPECT_TRUE(passes(kInfinity, 65519.5));
  EXPECT_TRUE(passes(65504, 65520.5));
  EXPECT_FALSE(passes(kInfinity, 65500));
  EXPECT_FALSE(passes(65504, 65530));
  EXPECT_FALSE(passes(-kInfinity, 65530));
}

// A number at the end of what is allowed is rounded, too: its last place may be worth twice the reference's.
TEST(Criterion, RoundsWhateverIsAllowed) {
  // Steps of e5m2 are 1/64 from 1/16 on, 1/128 below.
  const auto passes = [](double value) {
    check::Criterion criterion(DType::e5m2, true);
    criterion.add({.value = value, .reference = 0.058, .plain = value, .floor = 0.0125, .tolerance = 0.0125});
    return criterion.finish().passed;
  };
  EXPECT_TRUE(passes(0.0625));
  EXPECT_TRUE(passes(0.078125));  // of 0.0704
  EXPECT_FALSE(passes(0.09375));
}

/// One query and one key, whose weight beside a sink is 0.7 * 2^-102. 1000 cancels in the score, which makes it as
/// uncertain as a score of 1000.
struct FaintKey {
  Tensor q = Tensor::zeros(DType::f32, {1, 1, 1, 2}), k = Tensor::zeros(DType::f32, {1, 1, 1, 2}),
         v = Tensor::zeros(DType::f32, {1, 1, 1, 2}), d_o = Tensor::zeros(DType::f32, {1, 1, 1, 2}),
         sinks = Tensor::zeros(DType::f32, {1});
  AttentionOptions options;

  FaintKey() {
    const auto set = [](const Tensor& tensor, float first, float second) {
      static_cast<float*>(tensor.data())[0] = first;
      static_cast<float*>(tensor.data())[1] = second;
    };
    set(q, 30, 30);
    set(k, 33.3F, -35.67F);
    set(v, 1, 2);
    set(d_o, 1, -3);
    options.scale = 1;
    options.sinks = sinks;
    options.backend = BackendChoice::reference;
  }
  /// Whether o and gradients pass that are off by so much of themselves.
  bool passes(double error) const {
    const AttentionResult result = attention(q, k, v, options, true);
    BackwardTensors tensors{.q = q, .k = k, .v = v, .o = result.o, .lse = result.lse, .d_o = d_o};
    const BackwardResult gradients = attention_backward(tensors, options);
    tensors.dq = gradients.dq, tensors.dk = gradients.dk, tensors.dv = gradients.dv;
    for (const Tensor* tensor : {&gradients.dq, &gradients.dk, &gradients.dv}) spoil(*tensor, error);
    const bool backward = check_backward(tensors, options).passed;
    spoil(result.o, error);
    const bool forward = check_attention(q, k, v, options, result.o, result.lse).passed;
    EXPECT_EQ(forward, backward);
    return forward;
  }
  static void spoil(const Tensor& tensor, double error) {
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const double x = base::load_element(tensor.data(), tensor.dtype(), i);
      base::store_element(tensor.data(), tensor.dtype(), i, x * (1 + error));
    }
  }
};

// Its error, 1000 units in the last place, is more than what f32 flushes to 0.
TEST(Criterion, CountsWhatAWeightNextToZeroErrsBy) {
  const FaintKey faint;
  EXPECT_TRUE(faint.passes(0));
  EXPECT_TRUE(faint.passes(2e-5));
  EXPECT_FALSE(faint.passes(1e-2));
}

// An infinite score that a mod replaces leaves no bound of the row's errors; dO is 0 there and finite elsewhere.
TEST(Criterion, TakesZerosBesideBoundsThatAreInfinite) {
  const auto filled = [](float x) {
    const Tensor tensor = Tensor::empty(DType::f32, {1, 1, 2, 2});
    std::fill_n(static_cast<float*>(tensor.data()), 4, x);
    return tensor;
  };
  const Tensor q = filled(1), k = filled(0.5F), v = filled(2), d_o = filled(3);
  static_cast<float*>(q.data())[1] = std::numeric_limits<float>::infinity();
  std::fill_n(static_cast<float*>(d_o.data()), 2, 0.0F);
  AttentionOptions options;
  options.backend = BackendChoice::reference;
  options.normalizer = Normalizer::none;
  options.score_mod = Expr(0.25);
  const AttentionResult result = attention(q, k, v, options);
  BackwardTensors tensors{.q = q, .k = k, .v = v, .o = result.o, .d_o = d_o};
  const BackwardResult gradients = attention_backward(tensors, options);
  tensors.dv = gradients.dv;
  const GradientReport report = check_backward(tensors, options);
  EXPECT_TRUE(report.passed) << report.text();
}

}  // namespace
}  // namespace heddle::test::edges
