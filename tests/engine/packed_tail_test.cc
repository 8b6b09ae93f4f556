// Packed batches whose tensors have rows behind the last sequence: buffers of a fixed size. Such rows belong to no
// sequence.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "heddle/heddle.h"

namespace heddle::test::packed_tail {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 24, kQueries = 12, kKeys = 17;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Rows behind the first `rows` are NaN.
Tensor random_reals(const Dims& shape, std::int64_t rows, std::uint64_t seed) {
  const Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  auto* element = static_cast<float*>(tensor.data());
  for (std::int64_t h = 0; h < shape[1]; ++h) {
    for (std::int64_t row = 0; row < shape[2]; ++row) {
      for (std::int64_t d = 0; d < shape[3]; ++d) *element++ = row < rows ? normal(rng) : kNan;
    }
  }
  return tensor;
}

/// The first rows of a tensor of heads.
ConstTensorView first(const Tensor& tensor, std::int64_t rows) {
  ConstTensorView view = tensor;
  view.shape[2] = rows;
  return view;
}

float at(const Tensor& tensor, std::int64_t h, std::int64_t row, std::int64_t d) {
  const ConstTensorView view = tensor;
  return static_cast<float>(get_element(view, view.shape.size() == 3 ? Dims{0, h, row} : Dims{0, h, row, d}));
}

/// The rows of `small` are those of `large`, bit for bit, and behind them stands `behind`.
void expect_rows(const Tensor& large, const Tensor& small, float behind) {
  const bool has_columns = large.shape().size() == 4;
  for (std::int64_t h = 0; h < large.shape()[1]; ++h) {
    for (std::int64_t row = 0; row < large.shape()[2]; ++row) {
      for (std::int64_t d = 0; d < (has_columns ? large.shape()[3] : 1); ++d) {
        const float wanted = row < small.shape()[2] ? at(small, h, row, d) : behind;
        ASSERT_EQ(at(large, h, row, d), wanted) << "head " << h << ", row " << row;
      }
    }
  }
}

class PackedTail : public ::testing::TestWithParam<BackendChoice> {
 protected:
  PackedTail() {
    std::memcpy(q_ends_.data(), std::vector<std::int64_t>{0, 5, 5, kQueries}.data(), 32);
    std::memcpy(k_ends_.data(), std::vector<std::int64_t>{0, 9, 11, kKeys}.data(), 32);
    options_.cu_seqlens_q = q_ends_;
    options_.cu_seqlens_kv = k_ends_;
    options_.mask_mod = mods::causal_lower_right();
    options_.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
    options_.bindings.captures["slopes"] = slopes_;
    options_.backend = GetParam();
  }

  Tensor q_ends_ = Tensor::empty(DType::i64, {4}), k_ends_ = Tensor::empty(DType::i64, {4});
  Tensor q_ = random_reals({1, kHeads, kQueries + 7, kDim}, kQueries, 1);
  Tensor k_ = random_reals({1, kKvHeads, kKeys + 3, kDim}, kKeys, 2),
         v_ = random_reals({1, kKvHeads, kKeys + 3, 40}, kKeys, 3);
  Tensor d_o_ = random_reals({1, kHeads, kQueries + 7, 40}, kQueries, 4);
  Tensor slopes_ = mods::alibi_slopes(kHeads);
  AttentionOptions options_;
};

TEST_P(PackedTail, ForwardAndBackward) {
  const AttentionResult whole = attention(q_, k_, v_, options_, true);
  const auto q = first(q_, kQueries), k = first(k_, kKeys), v = first(v_, kKeys);
  const AttentionResult own = attention(q, k, v, options_, true);
  expect_rows(whole.o, own.o, 0);
  expect_rows(whole.lse, own.lse, -std::numeric_limits<float>::infinity());
  if (GetParam() == BackendChoice::cpu) {
    EXPECT_TRUE(check_attention(q_, k_, v_, options_, whole.o, ConstTensorView(whole.lse)).passed);
  }

  const GradientRequest wanted = {.captures = {"slopes"}};
  const BackwardResult gradients =
      attention_backward({.q = q_, .k = k_, .v = v_, .o = whole.o, .lse = whole.lse, .d_o = d_o_}, options_, wanted);
  const BackwardResult own_gradients = attention_backward(
      {.q = q, .k = k, .v = v, .o = own.o, .lse = own.lse, .d_o = first(d_o_, kQueries)}, options_, wanted);
  expect_rows(gradients.dq, own_gradients.dq, 0);
  expect_rows(gradients.dk, own_gradients.dk, 0);
  expect_rows(gradients.dv, own_gradients.dv, 0);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    EXPECT_EQ(get_element(gradients.d_captures.at("slopes"), {h}),
              get_element(own_gradients.d_captures.at("slopes"), {h}));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PackedTail, ::testing::Values(BackendChoice::cpu, BackendChoice::reference));

}  // namespace
}  // namespace heddle::test::packed_tail
