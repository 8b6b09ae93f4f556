// The reference against results worked out by hand: nothing else in the library checks it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "heddle/attention.h"

namespace heddle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor reals(const Dims& shape, const std::vector<double>& values, DType dtype = DType::f64) {
  Tensor tensor = Tensor::empty(DType::f64, shape);
  std::copy(values.begin(), values.end(), static_cast<double*>(tensor.data()));
  return tensor.to(dtype);
}

Tensor integers(const std::vector<std::int32_t>& values) {
  Tensor tensor = Tensor::empty(DType::i32, {std::ssize(values)});
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(tensor.data()));
  return tensor;
}

std::vector<double> values_of(const Tensor& tensor) {
  const Tensor wide = tensor.to(DType::f64);
  const auto* data = static_cast<const double*>(wide.data());
  return {data, data + wide.count()};
}

// One query, two keys: s = (0, ln 3), so that p is (1, 3) / 4; v = (8, 4).
struct TwoKeys {
  Tensor q = reals({1, 1, 1, 1}, {1}), k = reals({1, 1, 2, 1}, {0, std::log(3.0)}), v = reals({1, 1, 2, 1}, {8, 4});
  AttentionOptions options;

  TwoKeys() {
    options.backend = BackendChoice::reference;
    options.scale = 1.0;
  }
  void expect(double o, double lse) const {
    const AttentionResult result = attention(q, k, v, options, true);
    EXPECT_DOUBLE_EQ(values_of(result.o)[0], o);
    EXPECT_DOUBLE_EQ(values_of(result.lse)[0], lse);
  }
  void expect(double o) const { EXPECT_DOUBLE_EQ(values_of(attention(q, k, v, options).o)[0], o); }
};

TEST(Reference, Softmax) { TwoKeys().expect((8 + 3 * 4) / 4.0, std::log(4.0)); }

TEST(Reference, Scale) {
  TwoKeys two;
  two.options.scale = 2.0;
  two.expect((8 + 9 * 4) / 10.0, std::log(10.0));
  two.options.scale = -1.0;
  two.expect((8 + 4 / 3.0) / (4 / 3.0), std::log(4 / 3.0));
  two.options.scale.reset();  // 1 / sqrt(1)
  two.expect(5, std::log(4.0));
  two.q = reals({1, 1, 1, 4}, {1, 1, 1, 1});
  two.k = reals({1, 1, 2, 4}, {0, 0, 0, 0, std::log(3.0), std::log(3.0), std::log(3.0), std::log(3.0)});
  two.expect((8 + 9 * 4) / 10.0, std::log(10.0));  // 4 ln 3 / sqrt(4)
}

TEST(Reference, ScoreMod) {
  TwoKeys two;
  two.options.score_mod = leaf::score() * 2.0 + to_f32(leaf::kv_idx()) * std::log(2.0);
  two.expect((8 + 18 * 4) / 19.0, std::log(19.0));
}

// Values that are f32 by type are f32 in the reference, too; results computed from them are not rounded.
TEST(Reference, InputsOfF32ModsAreF32) {
  TwoKeys two;
  two.q = two.q.to(DType::f32), two.k = reals({1, 1, 2, 1}, {0, 0}, DType::f32), two.v = two.v.to(DType::f32);
  const Tensor stored = reals({1}, {16777217});
  two.options.bindings = {.captures = {{"x", stored}}, .params = {{"p", 16777217.0}}};
  const Expr big = param("p", ExprType::f32), captured = Capture("x", DType::f64, 1)(0);
  const Expr base = Expr(16777216.0);
  const auto weight = [&](const Expr& e) {
    two.options.weight_mod = e;
    return values_of(attention(two.q, two.k, two.v, two.options).o)[0] / 6;  // the mean of v
  };
  EXPECT_EQ(weight(Expr(16777217.0) - base), 0);
  EXPECT_EQ(weight(big - base), 0);
  EXPECT_EQ(weight(captured - base), 0);
  EXPECT_EQ(weight(to_f32(leaf::kv_idx() * 0 + 16777217) - base), 0);
  EXPECT_EQ(weight(base * base + 1.0 - base * base), 1) << "sums are not rounded";
  two = TwoKeys();  // f64
  two.k = reals({1, 1, 2, 1}, {0, 0});
  two.options.bindings = {.captures = {{"x", stored}}, .params = {{"p", 16777217.0}}};
  EXPECT_EQ(weight(Expr(16777217.0) - base), 1);
  EXPECT_EQ(weight(big - base), 1);
  EXPECT_EQ(weight(captured - base), 1);
  EXPECT_EQ(weight(to_f32(leaf::kv_idx() * 0 + 16777217) - base), 1);
}

TEST(Reference, Masks) {
  TwoKeys two;
  two.options.mask_mod = leaf::kv_idx() == 1;
  two.expect(4, std::log(3.0));
  two.options.mask_mod = Expr(false);
  two.expect(0, -kInfinity);
  two.options.mask_mod = {};
  two.options.score_mod = where(leaf::kv_idx() == 1, Expr(-kInfinity), leaf::score());
  two.expect(8, 0);
}

TEST(Reference, Weights) {
  TwoKeys two;  // l and lse do not see them
  two.options.weight_mod = where(leaf::kv_idx() == 1, Expr(2.0), Expr(0.5));
  two.expect((0.5 * 8 + 2 * 3 * 4) / 4.0, std::log(4.0));
}

TEST(Reference, Sinks) {
  TwoKeys two;
  const Tensor sinks = reals({1}, {std::log(4.0)});
  two.options.sinks = sinks;
  two.expect((8 + 3 * 4) / 8.0, std::log(8.0));
  two.options.mask_mod = Expr(false);
  two.expect(0, std::log(4.0));
}

TEST(Reference, OtherNormalizers) {
  TwoKeys two;
  two.options.normalizer = Normalizer::none;
  two.expect(4 * std::log(3.0));
  two.options.normalizer = Normalizer::sigmoid;
  two.expect(8 * 0.5 + 4 * 0.75);
  two.options.mask_mod = leaf::kv_idx() == 0;
  two.expect(4);
  two.options.score_mod = Expr(-kInfinity);
  two.expect(0);
  two.options.normalizer = Normalizer::none;
  two.expect(0);
}

TEST(Reference, PoisonedScores) {
  for (const double poison : {kInfinity, std::nan("")}) {
    TwoKeys two;
    two.q = reals({1, 1, 2, 1}, {1, 1});
    two.options.score_mod = where((leaf::q_idx() == 0) & (leaf::kv_idx() == 1), Expr(poison), leaf::score());
    const AttentionResult result = attention(two.q, two.k, two.v, two.options, true);
    EXPECT_TRUE(std::isnan(values_of(result.o)[0]));
    EXPECT_TRUE(std::isnan(values_of(result.lse)[0]));
    EXPECT_DOUBLE_EQ(values_of(result.o)[1], 5);
    two.options.mask_mod = leaf::kv_idx() == 0;  // what is masked may be anything
    EXPECT_EQ(values_of(attention(two.q, two.k, two.v, two.options).o), std::vector<double>({8, 8}));
  }
}

TEST(Reference, HeadsOfAGroupShareKeysAndBatchesBroadcast) {
  const Tensor q = Tensor::zeros(DType::f32, {2, 6, 1, 1}), k = Tensor::zeros(DType::f32, {1, 2, 1, 1}),
               v = reals({1, 2, 1, 1}, {10, 20}, DType::f32);
  AttentionOptions options;
  options.backend = BackendChoice::reference;
  EXPECT_EQ(values_of(attention(q, k, v, options).o),
            std::vector<double>({10, 10, 10, 20, 20, 20, 10, 10, 10, 20, 20, 20}));
}

TEST(Reference, Lengths) {
  // v = 1, 2, 3 in the first entry and 4, 5, 6 in the second; equal scores.
  const Tensor q = Tensor::zeros(DType::f32, {2, 1, 2, 1}), k = Tensor::zeros(DType::f32, {2, 1, 3, 1}),
               v = reals({2, 1, 3, 1}, {1, 2, 3, 4, 5, 6}, DType::f32);
  const Tensor q_lengths = integers({1, 2}), kv_lengths = integers({2, 0});
  AttentionOptions options;
  options.backend = BackendChoice::reference;
  options.q_lengths = q_lengths;
  options.kv_lengths = kv_lengths;
  const AttentionResult result = attention(q, k, v, options, true);
  EXPECT_EQ(values_of(result.o), std::vector<double>({1.5, 0, 0, 0}));
  EXPECT_EQ(values_of(result.lse),
            std::vector<double>({static_cast<float>(std::log(2.0)), -kInfinity, -kInfinity, -kInfinity}));
}

// With normalizer none, one key of v = 1 and t a leaf, o is the leaf.
// All scores are 0: o is the mean of a sequence's values, 10 p + r in row r of page p.
TEST(Reference, Pages) {
  const Tensor q = reals({2, 1, 1, 1}, {0, 0}), k = reals({4, 1, 2, 1}, std::vector<double>(8, 0)),
               v = reals({4, 1, 2, 1}, {0, 1, 10, 11, 20, 21, 30, 31});
  const Tensor pages = integers({3, 1, 0, 2}), starts = integers({0, 2, 4}), lengths = integers({3, 4});
  for (const bool listed : {false, true}) {
    AttentionOptions options;
    options.backend = BackendChoice::reference;
    options.page_table = listed ? pages.view() : TensorView(pages.data(), DType::i32, Dims{2, 2});
    if (listed) options.page_starts = starts;
    options.kv_lengths = lengths;
    const std::vector<double> o = values_of(attention(q, k, v, options).o);
    EXPECT_DOUBLE_EQ(o[0], (30 + 31 + 10) / 3.0);
    EXPECT_DOUBLE_EQ(o[1], (0 + 1 + 20 + 21) / 4.0);
  }
}

TEST(Reference, LeavesOfAPackedBatch) {
  const Tensor q = Tensor::zeros(DType::f32, {1, 2, 5, 1}), k = Tensor::zeros(DType::f32, {1, 1, 4, 1}),
               v = reals({1, 1, 4, 1}, {1, 1, 1, 1}, DType::f32);
  const Tensor cu_q = integers({0, 2, 2, 5}), cu_kv = integers({0, 3, 3, 4}), starts = integers({10, 0, 20});
  AttentionOptions options;
  options.backend = BackendChoice::reference;
  options.normalizer = Normalizer::none;
  options.cu_seqlens_q = cu_q;
  options.cu_seqlens_kv = cu_kv;
  options.q_start = starts;
  options.mask_mod = leaf::kv_idx() == leaf::kv_len() - 1;  // the last key of the sequence
  const auto expect_leaf = [&](const Expr& leaf, const std::vector<double>& first, const std::vector<double>& second) {
    options.score_mod = to_f32(leaf);
    std::vector<double> expected = first;
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_EQ(values_of(attention(q, k, v, options).o), expected) << print(leaf);
  };
  const auto expect_both_heads = [&](const Expr& leaf, const std::vector<double>& head) {
    expect_leaf(leaf, head, head);
  };
  expect_both_heads(leaf::b(), {0, 0, 2, 2, 2});
  expect_leaf(leaf::h(), {0, 0, 0, 0, 0}, {1, 1, 1, 1, 1});
  expect_both_heads(leaf::q_idx(), {10, 11, 20, 21, 22});
  expect_both_heads(leaf::kv_idx(), {2, 2, 0, 0, 0});
  expect_both_heads(leaf::q_token(), {0, 1, 2, 3, 4});
  expect_both_heads(leaf::kv_token(), {2, 2, 3, 3, 3});
  expect_both_heads(leaf::q_len(), {2, 2, 3, 3, 3});
  expect_both_heads(leaf::kv_len(), {3, 3, 1, 1, 1});
  expect_both_heads(leaf::q_start(), {10, 10, 20, 20, 20});
}

TEST(Reference, DescaleFactors) {
  // q k = 2 * 3, scaled by 0.5 * 4 (head 0) or 0.25 * 4 (head 1); v = 8 * 1.5.
  const Tensor q = reals({1, 2, 1, 1}, {2, 2}, DType::e4m3), k = reals({1, 1, 1, 1}, {3}, DType::e4m3),
               v = reals({1, 1, 1, 1}, {8}, DType::e5m2);
  const Tensor q_descale = reals({1, 2}, {0.5, 0.25}, DType::f32), k_descale = reals({1, 1}, {4}, DType::f32),
               v_descale = reals({1, 1}, {1.5}, DType::f32);
  AttentionOptions options;
  options.backend = BackendChoice::reference;
  options.normalizer = Normalizer::none;
  options.q_descale = q_descale;
  options.k_descale = k_descale;
  options.v_descale = v_descale;
  EXPECT_EQ(values_of(attention(q, k, v, options).o), std::vector<double>({12 * 12, 6 * 12}));
}

TEST(Reference, RoundsOnceIntoAnyOutput) {
  TwoKeys two;
  two.options.normalizer = Normalizer::none;
  two.options.score_mod = Expr(1.0) / 3.0;
  two.options.mask_mod = leaf::kv_idx() == 0;
  two.v = reals({1, 1, 2, 1}, {1, 1});
  const Tensor f32_inputs[] = {two.q.to(DType::f32), two.k.to(DType::f32), two.v.to(DType::f32)};
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    const Tensor o = Tensor::zeros(dtype, {1, 1, 1, 1});
    attention_into(f32_inputs[0], f32_inputs[1], f32_inputs[2], o, {}, two.options);
    // Score mods are computed in float64 here, also for f32 inputs.
    EXPECT_EQ(values_of(o), values_of(reals({1}, {1 / 3.0}, dtype))) << name(dtype);
  }
}

// 3 * 0.1 == 0.3 holds in f32 and not in f64: a mask means what it means in the attention's own reals.
TEST(Reference, EvaluatesMasksInTheProblemsPrecision) {
  TwoKeys two;
  two.options.mask_mod = (to_f32(leaf::kv_idx()) + 2.0) * 0.1 == 0.3;
  two.expect(0, -kInfinity);
  for (Tensor* tensor : {&two.q, &two.k, &two.v}) *tensor = tensor->to(DType::f32);
  two.expect(4, static_cast<float>(std::log(3.0)));
}

}  // namespace
}  // namespace heddle
