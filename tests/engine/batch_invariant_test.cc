// AttentionOptions::batch_invariant on the CPU: a sequence's bits do not depend on its batch.
#include <gtest/gtest.h>

#include "engine/batch_of_sequences.h"
#include "expect_error.h"
#include "heddle/attention.h"
#include "heddle/backward.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

ComputeBatch on(BackendChoice backend, int threads = 2) {
  return [=](const AttentionTensors& tensors, AttentionOptions options) {
    options.backend = backend;
    options.threads = threads;
    attention_into(tensors, options);
  };
}

TEST(BatchInvariant, OneQueryOnTheCpu) {
  InvarianceTest test = {.keys = 2500, .batches = 4, .seed = 1};
  expect_invariant(test, on(BackendChoice::cpu));
  test.spec.q_dtype = test.spec.kv_dtype = DType::f32;
  expect_invariant(test, on(BackendChoice::cpu));
}

// 12 to 300 rows of a head of keys: read in place, or packed.
TEST(BatchInvariant, SomeQueriesOnTheCpu) {
  for (const std::int64_t queries : {3, 20, 75}) {
    InvarianceTest test = {.queries = queries, .keys = 600, .batches = 4, .seed = static_cast<std::uint64_t>(queries)};
    test.spec.q_dtype = test.spec.kv_dtype = queries == 20 ? DType::f64 : DType::bf16;
    expect_invariant(test, on(BackendChoice::cpu, 3));
  }
}

TEST(BatchInvariant, ModsOnTheCpu) {
  InvarianceTest test = {.queries = 9, .keys = 900, .batches = 4, .seed = 5};
  test.spec.mask = mods::causal() && mods::sliding_window(300);
  test.spec.score = leaf::score() - 0.01 * (leaf::q_idx() - leaf::kv_idx());
  expect_invariant(test, on(BackendChoice::cpu));
}

TEST(BatchInvariant, Reference) {
  InvarianceTest test = {.keys = 60, .batches = 3, .seed = 7};
  expect_invariant(test, on(BackendChoice::reference));
}

// One k and v for all sequences is no reason to take another way for more of them.
TEST(BatchInvariant, SharedKeysOnTheCpu) {
  const auto rows = [](std::int64_t batch) {
    const Tensor q = Tensor::zeros(DType::f32, Dims{batch, 4, 3, 16}),
                 k = Tensor::zeros(DType::f32, Dims{1, 1, 700, 16}), v = Tensor::zeros(DType::f32, Dims{1, 1, 700, 16});
    const auto fill = [](const Tensor& tensor, std::int64_t period) {
      for (std::int64_t i = 0; i < tensor.count(); ++i) {
        static_cast<float*>(tensor.data())[i] = static_cast<float>(i % period % 97) * 0.031F - 1.4F;
      }
    };
    fill(q, 4 * 3 * 16);
    fill(k, k.count());
    fill(v, v.count());
    AttentionOptions options;
    options.batch_invariant = true;
    const Tensor o = attention(q, k, v, options).o;
    const auto* first = static_cast<const float*>(o.data());
    return std::vector<float>(first, first + 4 * 3 * 16);
  };
  EXPECT_EQ(rows(1), rows(40));
}

TEST(BatchInvariant, ABackwardRefusesIt) {
  const Tensor x = Tensor::zeros(DType::f32, Dims{1, 1, 4, 8}), lse = Tensor::zeros(DType::f32, Dims{1, 1, 4});
  BackwardTensors tensors;
  tensors.q = tensors.k = tensors.v = tensors.o = tensors.d_o = x;
  tensors.lse = lse;
  AttentionOptions options;
  options.batch_invariant = true;
  expect_error([&] { attention_backward(tensors, options); }, ErrorCode::invalid_argument,
               testing::StartsWith("batch_invariant is true; a backward takes false"));
}

}  // namespace
}  // namespace heddle::test
