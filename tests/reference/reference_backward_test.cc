// The reference's backward against finite differences, one feature at a time, and against gradients known by hand.
#include "reference/reference_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "heddle/mods.h"
#include "reference/movable_attention.h"

namespace heddle::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double at(const reference::Gradient& gradient, std::int64_t i) {
  return static_cast<const double*>(gradient.value.data())[i];
}
void set(const Tensor& tensor, std::int64_t i, double x) { static_cast<double*>(tensor.data())[i] = x; }

Tensor integers(const Dims& shape, const std::vector<std::int32_t>& values) {
  const Tensor tensor = Tensor::empty(DType::i32, shape);
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(tensor.data()));
  return tensor;
}

/// Every input of this attention is judged, but for `may_stay` of 100 (kinks).
void expect_right(MovableAttention attention, int may_stay = 0) {
  const GradientVerdict verdict = attention.check();
  EXPECT_EQ(verdict.fault, "");
  EXPECT_GT(verdict.nonzero, 0);
  EXPECT_GE(100 * verdict.told, (100 - may_stay) * verdict.points);
}
void expect_right(const AttentionOptions& options, int may_stay = 0) {
  // Two kv heads of two query heads each; Dqk and Dv differ.
  expect_right(MovableAttention({2, 4, 3, 3}, {2, 2, 5, 3}, {2, 2, 5, 2}, options), may_stay);
}

TEST(Backward, Plain) { expect_right(AttentionOptions{}); }

TEST(Backward, Scale) {
  AttentionOptions options;
  options.scale = -0.7;
  expect_right(options);
}

TEST(Backward, Normalizers) {
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
    AttentionOptions options;
    options.normalizer = normalizer;
    expect_right(options);
    options.mask_mod = mods::causal();
    options.score_mod = tanh(leaf::score()) * 2.0 + 0.3;
    options.weight_mod = mods::dropout(0.4, 5);
    expect_right(options);
  }
}

TEST(Backward, Masks) {
  AttentionOptions options;
  options.mask_mod = leaf::q_idx() >= leaf::kv_idx();
  expect_right(options);
  options.mask_mod = (leaf::kv_idx() + leaf::q_idx() + leaf::h()) % 3 == 1;
  expect_right(options);
  options.mask_mod = (leaf::q_idx() != 1) & (leaf::kv_idx() != 2);  // an empty row, and a key that nobody attends
  expect_right(options);
  options.mask_mod = {};
  options.score_mod = where(leaf::kv_idx() > leaf::q_idx(), Expr(-kInfinity), leaf::score() * 1.5);
  expect_right(options);
}

TEST(Backward, Sinks) {
  const Tensor sinks = normal_tensor({4}, 9);
  AttentionOptions options;
  options.sinks = sinks;
  expect_right(options);
  options.mask_mod = leaf::q_idx() != 1;  // the row's sink still has the gradient of lse
  options.score_mod = mods::softcap(1.5);
  expect_right(options);
}

TEST(Backward, ScoreMods) {
  AttentionOptions options;
  for (const Expr& mod :
       {mods::softcap(0.8), leaf::score() * leaf::score(), exp(leaf::score() * 0.5), abs(leaf::score()),
        max(leaf::score(), Expr(0.1)), leaf::score() * to_f32(leaf::kv_idx()), gelu(leaf::score()), Expr(2.0)}) {
    options.score_mod = mod;
    expect_right(options, 10);
  }
}

TEST(Backward, Weights) {
  AttentionOptions options;
  options.weight_mod = mods::dropout(0.3, 11);
  expect_right(options);
  options.weight_mod = to_f32(leaf::kv_idx() - leaf::q_idx());
  expect_right(options);
}

// Each element of a capture is read by many elements of the matrix, some by none, and two mods read one tensor.
TEST(Backward, Captures) {
  const Tensor slopes = normal_tensor({4}, 20), bias = normal_tensor({4, 3, 5}, 21), table = normal_tensor({9}, 22),
               gain = normal_tensor({}, 23);
  const Tensor doc = integers({5}, {0, 0, 2, 2, 7});
  AttentionOptions options;
  options.bindings.captures = {{"slopes", slopes}, {"bias", bias}, {"table", table}, {"gain", gain}, {"doc", doc}};
  options.bindings.params = {{"alpha", 0.6}, {"beta", -0.4}, {"shift", 1}};
  const Symbols names(options.bindings);
  options.score_mod = parse(
      "score * gain + slopes[h] * (kv_idx - q_idx) * 0.3 + bias[h, q_idx, kv_idx] + alpha * table[doc[kv_idx]] * score",
      names);
  expect_right(options);
  options.weight_mod = parse("1.0 + table[kv_idx] * beta + sigmoid(slopes[h] + shift)", names);
  expect_right(options);
  options.weight_mod = parse("at(table, kv_idx - q_idx, beta * 2.0)", names);
  options.score_mod = parse("score + at(table, kv_idx - q_idx, alpha) * score", names);
  expect_right(options);
  options.normalizer = Normalizer::sigmoid;
  expect_right(options);
  options.clamp_reads = true;
  options.score_mod = parse("score + table[kv_idx - q_idx + shift] * score", names);
  expect_right(options);
}

TEST(Backward, BatchesThatShareATensorHaveTheSum) {
  AttentionOptions options;
  options.mask_mod = leaf::kv_idx() - leaf::b() >= 0;
  expect_right(MovableAttention({3, 2, 2, 2}, {1, 1, 4, 2}, {1, 1, 4, 2}, options));
  expect_right(MovableAttention({1, 2, 2, 2}, {3, 2, 4, 2}, {3, 2, 4, 2}, options));
}

TEST(Backward, Lengths) {
  const Tensor q_lengths = integers({2}, {3, 1}), kv_lengths = integers({2}, {0, 4}), starts = integers({2}, {1, 3}),
               kv_starts = integers({2}, {2, 1});
  AttentionOptions options;
  options.q_lengths = q_lengths;
  options.kv_lengths = kv_lengths;
  options.q_start = starts;
  options.kv_start = kv_starts;
  options.score_mod = leaf::score() * to_f32(leaf::q_idx() - leaf::kv_idx()) * 0.4;
  expect_right(options);
}

TEST(Backward, PackedBatches) {
  const Tensor cu_q = integers({4}, {0, 2, 2, 5}), cu_kv = integers({4}, {0, 3, 4, 6});
  AttentionOptions options;
  options.cu_seqlens_q = cu_q;
  options.cu_seqlens_kv = cu_kv;
  options.mask_mod = leaf::q_idx() >= leaf::kv_idx();
  expect_right(MovableAttention({1, 2, 5, 2}, {1, 1, 6, 2}, {1, 1, 6, 2}, options));
}

// One page serves both sequences, and one serves none.
TEST(Backward, Pages) {
  const Tensor table = integers({2, 2}, {3, 1, 0, 3}), lengths = integers({2}, {3, 4});
  AttentionOptions options;
  options.page_table = table;
  options.kv_lengths = lengths;
  expect_right(MovableAttention({2, 2, 2, 2}, {4, 1, 2, 2}, {4, 1, 2, 2}, options));
}

TEST(Backward, KeysOfUnlistedBlocksHaveNone) {
  const Tensor count = integers({1, 1, 2}, {1, 2}), indices = integers({1, 1, 2, 2}, {1, 0, 0, 1}),
               no_count = integers({1, 1, 2}, {0, 0}), no_indices = integers({1, 1, 2, 2}, {0, 0, 0, 0});
  AttentionOptions options;
  MaskShape shape;
  shape.heads = 2;
  shape.sequences = {Sequence{.q_len = 4, .kv_len = 4}};
  options.block_mask = std::make_shared<BlockMask>(
      BlockMask::from_lists({count, indices, no_count, no_indices}, shape, BlockSize{2, 2}));
  expect_right(MovableAttention({1, 2, 4, 2}, {1, 1, 4, 2}, {1, 1, 4, 2}, options));
}

// One query, two keys of scores 0 and ln 3: p = (1, 3) / 4. v = (8, 4), dO = 1: o = 5, dP = v, delta = 5.
TEST(Backward, ByHand) {
  AttentionOptions options;
  options.scale = 0.5;
  MovableAttention two({1, 1, 1, 1}, {1, 1, 2, 1}, {1, 1, 2, 1}, options);
  set(two.q, 0, 2), set(two.k, 0, 0), set(two.k, 1, std::log(3.0)), set(two.v, 0, 8), set(two.v, 1, 4);
  set(two.d_o, 0, 1), set(*two.d_lse, 0, 0);
  const reference::Gradients gradients = two.gradients();
  // ds = p (dP - delta) = (3 / 4, -3 / 4)
  EXPECT_DOUBLE_EQ(at(gradients.q, 0), -0.5 * 0.75 * std::log(3.0));
  EXPECT_DOUBLE_EQ(at(gradients.k, 0), 0.5 * 0.75 * 2);
  EXPECT_DOUBLE_EQ(at(gradients.k, 1), -0.5 * 0.75 * 2);
  EXPECT_DOUBLE_EQ(at(gradients.v, 0), 0.25);
  EXPECT_DOUBLE_EQ(at(gradients.v, 1), 0.75);
  set(*two.d_lse, 0, 5);  // dlse cancels delta: ds = p dP
  EXPECT_DOUBLE_EQ(at(two.gradients().k, 0), 0.5 * 2 * 2);
  EXPECT_DOUBLE_EQ(at(two.gradients().k, 1), 0.5 * 3 * 2);
}

// Descale factors: gradients are of the numbers as stored.
TEST(Backward, DescaleFactorsAreConstants) {
  const auto stored = [](double x) {
    const Tensor tensor = Tensor::empty(DType::f64, {1, 1, 1, 1});
    set(tensor, 0, x);
    return tensor.to(DType::e4m3);
  };
  const auto factor = [](float x) {
    const Tensor tensor = Tensor::empty(DType::f32, {1, 1});
    static_cast<float*>(tensor.data())[0] = x;
    return tensor;
  };
  const Tensor q = stored(2), k = stored(3), v = stored(8), d_o = normal_tensor({1, 1, 1, 1}, 3);
  const Tensor q_descale = factor(0.5F), k_descale = factor(4), v_descale = factor(1.5F);
  const Tensor o = Tensor::zeros(DType::f32, {1, 1, 1, 1});
  AttentionOptions options;
  options.normalizer = Normalizer::none;
  options.q_descale = q_descale;
  options.k_descale = k_descale;
  options.v_descale = v_descale;
  set(d_o, 0, 1);
  const AttentionTensors tensors{q, k, v, o, {}};
  const problem::AttentionProblem problem = problem::validate(tensors, options);
  const backend::RunArguments arguments{tensors, &options, &options.bindings, nullptr, nullptr};
  const reference::Gradients gradients = reference::attend_backward(problem, arguments, {.d_o = d_o}, 0);
  // o = (2 * 3 * 0.5 * 4) * (8 * 1.5)
  EXPECT_DOUBLE_EQ(at(gradients.q, 0), 3 * 0.5 * 4 * 8 * 1.5);
  EXPECT_DOUBLE_EQ(at(gradients.k, 0), 2 * 0.5 * 4 * 8 * 1.5);
  EXPECT_DOUBLE_EQ(at(gradients.v, 0), 2 * 3 * 0.5 * 4 * 1.5);
}

void expect_zero(const reference::Gradient& gradient, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i) EXPECT_EQ(at(gradient, i), 0) << i;
}
void expect_finite(const reference::Gradient& gradient) {
  for (std::int64_t i = 0; i < gradient.value.count(); ++i) EXPECT_TRUE(std::isfinite(at(gradient, i))) << i;
}

// NaN in q, k, v and dO where nothing attends, in masked keys, and past the ends, reaches nothing.
TEST(Backward, WhatTakesNoPartReachesNothing) {
  const Tensor lengths = integers({1}, {3}), sinks = normal_tensor({1}, 4), bias = normal_tensor({5}, 5);
  AttentionOptions options;
  options.q_lengths = lengths;
  options.sinks = sinks;
  options.mask_mod = (leaf::q_idx() != 1) & (leaf::kv_idx() != 2);
  options.bindings.captures["bias"] = bias;
  options.score_mod =
      where(leaf::kv_idx() == 3, Expr(-kInfinity), leaf::score() * Capture("bias", DType::f64, 1)(leaf::kv_idx()));
  MovableAttention attention({1, 1, 4, 1}, {1, 1, 5, 1}, {1, 1, 5, 1}, options);
  const reference::Gradients clean = attention.gradients();
  for (const int row : {1, 3}) set(attention.q, row, kNaN), set(attention.d_o, row, kNaN);
  set(*attention.d_lse, 3, kNaN);  // that of row 1 is the sink's
  for (const int key : {2, 3}) set(attention.k, key, kNaN), set(attention.v, key, kInfinity), set(bias, key, kNaN);
  const reference::Gradients gradients = attention.gradients();
  for (const auto* gradient :
       {&gradients.q, &gradients.k, &gradients.v, &*gradients.sinks, &gradients.captures.at("bias")}) {
    expect_finite(*gradient);
  }
  for (const int row : {1, 3}) expect_zero(gradients.q, row, row + 1);
  for (const auto* gradient : {&gradients.k, &gradients.v, &gradients.captures.at("bias")})
    expect_zero(*gradient, 2, 4);
  EXPECT_EQ(at(*gradients.sinks, 0), at(*clean.sinks, 0));
  EXPECT_EQ(at(gradients.k, 0), at(clean.k, 0));
  // A key that takes part in rows 0 and 2.
  set(attention.v, 4, kNaN);
  EXPECT_TRUE(std::isnan(at(attention.gradients().q, 0)));
  EXPECT_TRUE(std::isnan(at(attention.gradients().k, 0)));
  expect_zero(attention.gradients().q, 1, 2);
}

TEST(Backward, RowsThatAreNaNReachWhatTakesPart) {
  AttentionOptions options;
  options.score_mod = where((leaf::q_idx() == 1) & (leaf::kv_idx() == 0), Expr(kInfinity), leaf::score());
  options.mask_mod = leaf::kv_idx() <= leaf::q_idx();
  MovableAttention attention({1, 1, 3, 1}, {1, 1, 3, 1}, {1, 1, 3, 1}, options);
  const reference::Gradients gradients = attention.gradients();
  EXPECT_TRUE(std::isnan(at(gradients.q, 1)));
  EXPECT_TRUE(std::isfinite(at(gradients.q, 0)));
  EXPECT_TRUE(std::isfinite(at(gradients.q, 2)));
  for (const int key : {0, 1}) EXPECT_TRUE(std::isnan(at(gradients.v, key)));
  EXPECT_TRUE(std::isfinite(at(gradients.v, 2)));
}

TEST(Backward, TheSameWithAnyNumberOfThreads) {
  AttentionOptions options;
  MovableAttention attention({2, 4, 70, 2}, {2, 2, 9, 2}, {2, 2, 9, 2}, options);
  const reference::Gradients one = attention.gradients();
  attention.options.threads = 4;
  const reference::Gradients four = attention.gradients();
  for (std::int64_t i = 0; i < one.k.value.count(); ++i) EXPECT_NEAR(at(one.k, i), at(four.k, i), 1e-14);
}

}  // namespace
}  // namespace heddle::test
