// The CPU backward: on every SIMD target against the reference, and what the grid is too small for: several pieces and
// waves, and gradients of captures that tasks own.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "families/cpu/cpu_training.h"
#include "heddle/backward.h"

namespace heddle {
namespace {

TEST(CpuBackward, OddShapesOnEveryTarget) {
  const std::vector<Shape> shapes = {
      {},
      {.q_heads = 2, .q_rows = 7, .kv_rows = 130, .qk_dim = 5, .v_dim = 3},
      {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_rows = 97, .kv_rows = 129, .qk_dim = 40, .v_dim = 24},
      {.q_rows = 103, .kv_rows = 63, .qk_dim = 128, .v_dim = 128},
      {.q_rows = 5, .kv_rows = 70, .qk_dim = 200, .v_dim = 72},
      {.q_rows = 3, .kv_rows = 4, .qk_dim = 1, .v_dim = 3000},
  };
  on_every_target([&] {
    for (const Shape& shape : shapes) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        SCOPED_TRACE(testing::Message() << name(dtype) << " Sq " << shape.q_rows << " Dqk " << shape.qk_dim);
        Training training(shape, dtype);
        expect_right(training);
        training.options.mask_mod = mods::causal();
        training.options.score_mod = mods::softcap(2);
        expect_right(training);
      }
    }
  });
}

TEST(CpuBackward, EveryNormalizerOnEveryTarget) {
  on_every_target([] {
    for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
      Training training({.q_heads = 2, .kv_heads = 1, .q_rows = 33, .kv_rows = 150, .qk_dim = 24, .v_dim = 19});
      training.options.normalizer = normalizer;
      training.options.weight_mod = mods::dropout(0.25, Expr(7));
      expect_right(training);
    }
  });
}

// Its gradient is the sum over the batch, whatever the others have.
TEST(CpuBackward, EachOfQKAndVMayBroadcastAlone) {
  for (const auto member : {&Training::q, &Training::k, &Training::v}) {
    Training training({.batch = 3, .q_heads = 2, .q_rows = 9, .kv_rows = 70});
    training.*member = copy(slice(ConstTensorView(training.*member), 0, 0, 1), DType::f32);
    expect_right(training);
  }
}

// The mod has replaced the scores before the places are found; the last index does not ask for them.
TEST(CpuBackward, PlacesThatDependOnTheScore) {
  Training training({.q_heads = 2, .q_rows = 33, .kv_rows = 70}, DType::f64);
  const Tensor table = random_tensor(DType::f64, {8, 2}, 5);
  training.options.bindings.captures["table"] = table;
  training.options.score_mod =
      parse("score + table[min(max(i32(3.0 * score) + 4, 0), 7), h]", Symbols(training.options.bindings));
  expect_right(training, {.captures = {"table"}});
}

TEST(CpuBackward, ZeroSizes) {
  for (const Shape& shape : {Shape{.q_rows = 0, .kv_rows = 5}, Shape{.q_rows = 5, .kv_rows = 0}, Shape{.batch = 0}}) {
    Training training(shape);
    expect_right(training);
  }
}

// The sum over batch entries and heads of the gradient of a bias that has them all.
std::vector<double> summed(const Tensor& whole, std::int64_t batch, std::int64_t heads, std::int64_t elements,
                           bool over_heads) {
  const auto* from = static_cast<const float*>(whole.data());
  std::vector<double> sum(static_cast<std::size_t>((over_heads ? 1 : heads) * elements));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < elements; ++i) {
        sum[static_cast<std::size_t>((over_heads ? 0 : h * elements) + i)] += from[(b * heads + h) * elements + i];
      }
    }
  }
  return sum;
}

// Large biases that broadcast: tasks take all sequences, or all sequences and heads, so that each element has one
// owner.
TEST(CpuBackward, LargeBiasesThatBroadcastHaveOneOwnerAnElement) {
  constexpr std::int64_t kBatch = 2, kHeads = 2, kRows = 1500;
  Training training({.batch = kBatch,
                     .q_heads = kHeads,
                     .kv_heads = kHeads,
                     .q_rows = kRows,
                     .kv_rows = kRows,
                     .qk_dim = 8,
                     .v_dim = 8});
  const Tensor zeros = Tensor::zeros(DType::f32, {kBatch, kHeads, kRows, kRows});
  training.options.bindings.captures["bias"] = zeros;
  training.options.score_mod = parse("score + bias[b, h, q_idx, kv_idx]", Symbols(training.options.bindings));
  const BackwardResult whole = attention_backward(training.inputs(), training.options, {.captures = {"bias"}});
  for (const bool over_heads : {false, true}) {
    SCOPED_TRACE(over_heads);
    const Dims shape = over_heads ? Dims{kRows, kRows} : Dims{kHeads, kRows, kRows};
    const Tensor bias = Tensor::zeros(DType::f32, shape);
    training.options.bindings.captures["bias"] = bias;
    training.options.score_mod = parse(over_heads ? "score + bias[q_idx, kv_idx]" : "score + bias[h, q_idx, kv_idx]",
                                       Symbols(training.options.bindings));
    const BackwardTensors inputs = training.inputs();
    const BackwardResult result = attention_backward(inputs, training.options, {.captures = {"bias"}});
    const std::vector<double> sum = summed(whole.d_captures.at("bias"), kBatch, kHeads, kRows * kRows, over_heads);
    const auto* given = static_cast<const float*>(result.d_captures.at("bias").data());
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(given[i], sum[i], 1e-8 + 1e-5 * std::abs(sum[i])) << i;
    EXPECT_EQ(bytes_of(result.dk), bytes_of(whole.dk));

    BackwardTensors tensors = inputs;
    tensors.d_captures["bias"] = result.d_captures.at("bias");
    const std::string text = AttentionPlan(tensors, training.options).explain();
    const char* owner = over_heads ? "each element is added by one task, which takes all sequences and all heads"
                                   : "each element is added by one task, which takes all sequences;";
    EXPECT_NE(text.find(owner), std::string::npos) << text;
  }
}

// One sequence and head on a machine of many cores: tasks share its keys.
TEST(CpuBackward, PiecesAddUp) {
  Training training({.q_rows = 300, .kv_rows = 1000, .qk_dim = 16, .v_dim = 16});
  training.options.mask_mod = mods::causal_lower_right();
  expect_right(training);
}

TEST(CpuBackward, BitsDoNotDependOnThreads) {
  Training training(
      {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 700, .kv_rows = 700, .qk_dim = 16, .v_dim = 16});
  const Tensor table = random_tensor(DType::f32, {1400}, 9);
  training.options.bindings.captures["table"] = table;
  training.options.score_mod = parse("score + table[kv_idx - q_idx + 700]", Symbols(training.options.bindings));
  const BackwardTensors inputs = training.inputs();
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 3, 7}) {
    training.options.threads = threads;
    const BackwardResult result = attention_backward(inputs, training.options, {.captures = {"table"}});
    const std::vector<std::vector<std::byte>> bytes = {bytes_of(result.dq), bytes_of(result.dk), bytes_of(result.dv),
                                                       bytes_of(result.d_captures.at("table"))};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << threads << " threads";
  }
}

// Tasks prepare and store their own queries with one thread and with two; with 16 there are too few tasks for that. A
// sequence without keys has dq of 0.
TEST(CpuBackward, TasksThatPrepareTheirQueriesMakeTheSameBits) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Training training(
        {.batch = 4, .q_heads = 8, .kv_heads = 4, .q_rows = 65, .kv_rows = 300, .qk_dim = 32, .v_dim = 40}, dtype);
    const std::vector<std::int64_t> q = {65, 64, 9, 50}, kv = {300, 77, 0, 129};
    const Tensor q_lengths = tensor_of(DType::i64, q), kv_lengths = tensor_of(DType::i64, kv);
    training.options.q_lengths = q_lengths;
    training.options.kv_lengths = kv_lengths;
    expect_right(training);
    const BackwardTensors inputs = training.inputs();
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {16, 1, 2}) {
      training.options.threads = threads;
      const BackwardResult result = attention_backward(inputs, training.options, {});
      const std::vector<std::vector<std::byte>> bytes = {bytes_of(result.dq), bytes_of(result.dk), bytes_of(result.dv)};
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace heddle
