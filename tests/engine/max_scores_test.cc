// The largest score of each row: against the reference over drawn problems, and its special values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.h"
#include "engine/grid_specs.h"
#include "expect_error.h"

namespace heddle::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(MaxScores, AgreeWithTheReference) {
  run_drawn(2, [](CaseSpec& spec, int i) {
    spec.seed += 3'000'000;
    spec.normalizer = Normalizer::softmax;
    spec.with_max_scores = true;
    spec.with_lse = i % 2 == 0;
  });
}

TEST(MaxScores, OfManyKeys) {
  run_many_keys([](CaseSpec& spec) {
    spec.seed = 7;
    spec.with_max_scores = true;
  });
}

/// The largest score of one query, whose products with the keys are 1 and whose scores become `scores`.
float largest_of(const std::vector<float>& scores, const AttentionOptions& given, BackendChoice backend) {
  const std::int64_t keys = std::ssize(scores);
  const Tensor q = Tensor::zeros(DType::f32, {1, 1, 1, 4}), k = Tensor::zeros(DType::f32, {1, 1, keys, 4}), v = k;
  Tensor bias = Tensor::empty(DType::f32, {keys});
  std::ranges::copy(scores, static_cast<float*>(bias.data()));
  AttentionOptions options = given;
  const Capture capture("bias", DType::f32, 1);
  options.score_mod = leaf::score() + capture(leaf::kv_idx());
  options.bindings.captures["bias"] = bias;
  options.backend = backend;
  Tensor o = Tensor::zeros(DType::f32, {1, 1, 1, 4}), largest = Tensor::zeros(DType::f32, {1, 1, 1});
  attention_into({.q = q, .k = k, .v = v, .o = o, .max_scores = largest}, options);
  return static_cast<const float*>(largest.data())[0];
}

TEST(MaxScores, SpecialValues) {
  const float sink = 50;
  AttentionOptions with_sink;
  with_sink.sinks = ConstTensorView(&sink, DType::f32, Dims{1});
  for (const BackendChoice backend : {BackendChoice::cpu, BackendChoice::reference}) {
    SCOPED_TRACE(name(backend));
    EXPECT_EQ(largest_of({-3, 2.5F, 1}, {}, backend), 2.5F);
    EXPECT_EQ(largest_of({-3, 2.5F, 1}, with_sink, backend), 2.5F);
    EXPECT_EQ(largest_of({-kInfinity, -1e30F}, {}, backend), -1e30F);
    EXPECT_EQ(largest_of({-kInfinity, -kInfinity}, {}, backend), -kInfinity);
    EXPECT_EQ(largest_of({-kInfinity, -kInfinity}, with_sink, backend), -kInfinity);
    EXPECT_EQ(largest_of({}, {}, backend), -kInfinity);
    EXPECT_TRUE(std::isnan(largest_of({1, kNaN, 2}, {}, backend)));
    EXPECT_TRUE(std::isnan(largest_of({1, kInfinity, 2}, {}, backend)));
  }
}

TEST(MaxScores, AreRefusedWhereTheyDoNotFit) {
  CaseSpec spec;
  spec.q_rows = 5;
  spec.with_max_scores = true;
  AttentionCase c(spec);
  const AttentionTensors right = c.tensors();
  const auto expect_refused = [&](const AttentionTensors& tensors, const AttentionOptions& options, const char* why) {
    expect_error([&] { attention_into(tensors, options); }, ErrorCode::invalid_argument, testing::HasSubstr(why));
  };
  AttentionOptions sigmoid = c.options();
  sigmoid.normalizer = Normalizer::sigmoid;
  expect_refused({right.q, right.k, right.v, right.o, {}, right.max_scores}, sigmoid,
                 "max_scores are asked for with normalizer sigmoid");
  AttentionTensors tensors = right;
  tensors.max_scores->dtype = DType::f64;
  expect_refused(tensors, c.options(), "max_scores is f64; f32 is accepted");
  tensors = right;
  tensors.max_scores->shape = {1, 1, 4};
  expect_refused(tensors, c.options(), "max_scores has shape");
  tensors = right;
  tensors.max_scores = tensors.lse;
  expect_refused(tensors, c.options(), "lse overlaps max_scores in memory");
  const AttentionPlan plan(right, c.options());
  tensors = right;
  tensors.max_scores.reset();
  expect_error([&] { plan.run(tensors); }, ErrorCode::invalid_argument,
               testing::HasSubstr("max_scores is not given; the plan was made with it"));
}

}  // namespace
}  // namespace heddle::test
