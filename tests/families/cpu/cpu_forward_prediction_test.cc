// Predictions of CPU plans: products and bytes counted one by one, and how the time follows the machine.
#include <gtest/gtest.h>

#include <algorithm>

#include "families/cpu/cpu_forward_costs.h"
#include "families/cpu/cpu_forward_plans.h"
#include "families/table.h"
#include "heddle/mods.h"
#include "plan/plan.h"
#include "problem/call.h"

namespace heddle::test {
namespace {

device::Caps machine(int cores = 4) {
  device::Caps caps;
  caps.cores = cores;
  caps.vector_bytes = 64;
  return caps;
}

/// q [batch, q_heads, q_rows, dim] and so on, f32, without memory of their own.
struct Shape {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_rows = 300, kv_rows = 200, dim = 64, v_dim = 64;
  DType dtype = DType::f32;
  bool with_lse = true, shared_kv = false;

  AttentionTensors tensors() const {
    const std::int64_t kv_batch = shared_kv ? 1 : batch;
    AttentionTensors tensors;
    tensors.q = {nullptr, dtype, Dims{batch, q_heads, q_rows, dim}};
    tensors.k = {nullptr, dtype, Dims{kv_batch, kv_heads, kv_rows, dim}};
    tensors.v = {nullptr, dtype, Dims{kv_batch, kv_heads, kv_rows, v_dim}};
    tensors.o = {nullptr, dtype, Dims{batch, q_heads, q_rows, v_dim}};
    const DType lse = dtype == DType::f64 ? DType::f64 : DType::f32;
    if (with_lse) tensors.lse = TensorView{nullptr, lse, Dims{batch, q_heads, q_rows}};
    return tensors;
  }
};

plan::Choice choose(const AttentionTensors& tensors, const AttentionOptions& options,
                    const device::Caps& caps = machine()) {
  const problem::AttentionProblem problem = problem::validate(tensors, options);
  const auto rows_of = [&](BlockSize block) -> std::shared_ptr<const BlockMask> {
    if (problem.mask_mod.empty()) return nullptr;
    return std::make_shared<BlockMask>(
        BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, block, options.bindings, 1));
  };
  const device::Machine machine = {.cpu = caps, .cuda = {}, .cuda_missing = {}};
  return plan::choose({problem, tensors, options, machine}, rows_of).front();
}

plan::Prediction predicted(const Shape& shape, const AttentionOptions& options = {},
                           const device::Caps& caps = machine()) {
  return choose(shape.tensors(), options, caps).plan.predicted.value();
}

/// Pairs of a query and a key that stand in a block of the plan in which some pair attends.
template <class Attends>
double elements_in_blocks(BlockSize block, std::int64_t queries, std::int64_t keys, Attends&& attends) {
  const std::int64_t rows = (queries + block.q - 1) / block.q, columns = (keys + block.kv - 1) / block.kv;
  std::vector<bool> taken(static_cast<std::size_t>(rows * columns));
  for (std::int64_t q = 0; q < queries; ++q) {
    for (std::int64_t k = 0; k < keys; ++k) {
      if (attends(q, k)) taken[static_cast<std::size_t>(q / block.q * columns + k / block.kv)] = true;
    }
  }
  double elements = 0;
  for (std::int64_t q = 0; q < queries; ++q) {
    for (std::int64_t k = 0; k < keys; ++k)
      elements += taken[static_cast<std::size_t>(q / block.q * columns + k / block.kv)];
  }
  return elements;
}

TEST(CpuPrediction, CountsEveryPairWithoutAMask) {
  const Shape shape = {.batch = 2, .q_heads = 8, .kv_heads = 2, .q_rows = 1000, .kv_rows = 520, .dim = 64, .v_dim = 80};
  const plan::Prediction all = predicted(shape);
  EXPECT_EQ(all.flops, 2.0 * (64 + 80) * 2 * 8 * 1000 * 520);
  EXPECT_EQ(all.bytes, 4.0 * 2 * 8 * 1000 * (64 + 80 + 1) + 4.0 * 2 * 2 * 520 * (64 + 80));
}

TEST(CpuPrediction, CountsBytesOfTheCallersTypes) {
  Shape shape = {.dtype = DType::bf16, .with_lse = false};
  EXPECT_EQ(predicted(shape).bytes, 2.0 * 300 * 128 + 2.0 * 200 * 128);
  shape.dtype = DType::f64;
  shape.with_lse = true;
  EXPECT_EQ(predicted(shape).bytes, 8.0 * 300 * 129 + 8.0 * 200 * 128);
}

TEST(CpuPrediction, CountsTheBlocksOfAMaskThatThePlanWalks) {
  for (const auto& [mask, lowest] : {std::pair(mods::causal(), -1000), std::pair(mods::sliding_window(70), -70)}) {
    const Shape shape = {.q_heads = 2, .kv_heads = 2, .q_rows = 1111, .kv_rows = 777};
    AttentionOptions options;
    options.mask_mod = mask;
    const plan::Choice choice = choose(shape.tensors(), options);
    const double elements =
        elements_in_blocks(choice.block_mask->block(), 1111, 777,
                           [&](std::int64_t q, std::int64_t k) { return k <= q && k - q >= lowest; });
    ASSERT_EQ(choice.block_mask->block(), choice.plan.tile);
    EXPECT_LT(elements, 0.8 * 1111 * 777);
    EXPECT_EQ(choice.plan.predicted->flops, 4.0 * 64 * 2 * elements);
  }
}

TEST(CpuPrediction, CountsHeadsThatSeeDifferentKeys) {
  AttentionOptions options;
  options.mask_mod = leaf::kv_idx() < 128 * leaf::h();
  EXPECT_EQ(predicted({.q_heads = 2, .kv_heads = 2}, options).flops, 4.0 * 64 * 300 * 128);
}

TEST(CpuPrediction, CountsEachSequenceAtItsLength) {
  Call call = Call::packed();  // queries 2, 0, 4 and keys 3, 0, 5 of 4 heads on 2, dims 16 and 24
  const plan::Prediction packed = choose(call.tensors, call.options).plan.predicted.value();
  EXPECT_EQ(packed.flops, 2.0 * (16 + 24) * 4 * (2 * 3 + 4 * 5));
  EXPECT_EQ(packed.bytes, 4.0 * 4 * 6 * (16 + 24 + 1) + 4.0 * 2 * (3 + 5) * (16 + 24));

  const Tensor q_lengths = i32s({300, 10}), kv_lengths = i32s({150, 200});
  AttentionOptions options;
  options.q_lengths = q_lengths;
  options.kv_lengths = kv_lengths;
  const plan::Prediction padded = predicted({.batch = 2}, options);
  EXPECT_EQ(padded.flops, 4.0 * 64 * (300 * 150 + 10 * 200));
  EXPECT_EQ(padded.bytes, 4.0 * 64 * (300 + 10) + 4.0 * 65 * 600 + 4.0 * 128 * (150 + 200)) << "all of o is written";
}

TEST(CpuPrediction, ReadsKeysThatABatchSharesOnce) {
  const Shape apart = {.batch = 3};
  Shape shared = apart;
  shared.shared_kv = true;
  EXPECT_EQ(predicted(apart).bytes - predicted(shared).bytes, 4.0 * 128 * 2 * 200);
}

// One query reads its keys in place, and only those that it sees.
TEST(CpuPrediction, ReadsInPlaceOnlyWhatTheMaskLeaves) {
  const Shape decode = {.q_heads = 8, .kv_heads = 2, .q_rows = 1, .kv_rows = 6400};
  AttentionOptions options;
  options.mask_mod = leaf::kv_idx() >= 6000;
  const plan::Prediction last = predicted(decode, options);
  const double keys = 6400 - 6000 / 64 * 64;
  EXPECT_EQ(last.flops, 4.0 * 64 * 8 * keys);
  EXPECT_EQ(last.bytes, 4.0 * 8 * 129 + 4.0 * 2 * 128 * keys);
  options.mask_mod = (leaf::kv_idx() >= 6000) | ((leaf::h() == 1) & (leaf::kv_idx() < 64));
  EXPECT_EQ(predicted(decode, options).bytes, last.bytes + 4.0 * 128 * 64) << "a head's own keys";
}

TEST(CpuPrediction, TakesTheTimeOfItsProducts) {
  const Shape shape = {.q_heads = 8, .kv_heads = 8, .q_rows = 2048, .kv_rows = 2048};
  const plan::Prediction one = predicted(shape, {}, machine(1));
  const double rate = plan::cpu_flops_per_second(expr::Precision::f32, 64);
  EXPECT_GT(one.seconds, one.flops / rate);
  EXPECT_LT(one.seconds, 1.05 * one.flops / rate) << "packing is little beside 2048 queries";
  EXPECT_DOUBLE_EQ(predicted(shape, {}, machine(4)).seconds, one.seconds / 4);

  AttentionOptions options;
  options.threads = 2;
  EXPECT_DOUBLE_EQ(predicted(shape, options, machine(4)).seconds, one.seconds / 2);
  options.threads = 16;
  EXPECT_DOUBLE_EQ(predicted(shape, options, machine(4)).seconds, one.seconds / 4) << "no more than there are cores";

  device::Caps narrow = machine(1);
  narrow.vector_bytes = 32;
  EXPECT_DOUBLE_EQ(predicted(shape, {}, narrow).seconds, 2 * one.seconds);
}

TEST(CpuPrediction, OneTileIsNoWorkForManyCores) {
  const Shape shape = {.q_rows = 12, .kv_rows = 1000};
  EXPECT_EQ(predicted(shape, {}, machine(64)).seconds, predicted(shape, {}, machine(1)).seconds);
}

TEST(CpuPrediction, KeysOfOneQueryCostMoreThanTheirProducts) {
  const Shape decode = {.q_heads = 8, .kv_heads = 8, .q_rows = 1, .kv_rows = 8192};
  const plan::Prediction one = predicted(decode, {}, machine(1));
  EXPECT_GT(one.seconds, 2 * one.flops / plan::cpu_flops_per_second(expr::Precision::f32, 64));
}

TEST(CpuPrediction, WhatNoCacheHoldsComesFromMemory) {
  const Shape decode = {.q_heads = 8, .kv_heads = 8, .q_rows = 1, .kv_rows = 8192};
  device::Caps caps = machine(1);
  caps.l3_bytes = 1 << 20;
  const plan::Prediction out = predicted(decode, {}, caps);
  EXPECT_DOUBLE_EQ(out.seconds, out.bytes / plan::kCpuRates.memory_bytes_per_second);
  caps.l3_bytes = 1 << 30;
  EXPECT_LT(predicted(decode, {}, caps).seconds, out.seconds);
}

TEST(CpuPrediction, RatesFollowTheTable) {
  using expr::Precision;
  for (const Precision precision : {Precision::f32, Precision::f64}) {
    EXPECT_EQ(plan::cpu_flops_per_second(precision, 64), plan::cpu_flops_per_second(precision, 100));
    EXPECT_EQ(plan::cpu_flops_per_second(precision, 8), plan::cpu_flops_per_second(precision, 16) / 2);
    EXPECT_GT(plan::cpu_flops_per_second(precision, 1000), plan::cpu_flops_per_second(precision, 32));
  }
  EXPECT_GT(plan::cpu_flops_per_second(Precision::f32, 128), 2 * plan::cpu_flops_per_second(Precision::f64, 128));
}

device::Caps machine_with_amx() {
  device::Caps caps = machine(1);
  caps.matrix_unit = device::MatrixUnit::amx;
  caps.l3_bytes = std::int64_t{1} << 40;
  return caps;
}

// GFLOP/s of one thread, as docs/notes/cpu_amx.md has them.
TEST(CpuPrediction, AmxTakesTheTimeThatWasMeasured) {
  for (const auto& [dim, gflops] : {std::pair{64, 711.0}, {128, 936.0}}) {
    Shape shape = {.q_heads = 2, .kv_heads = 2, .q_rows = 2048, .kv_rows = 2048, .dim = dim, .v_dim = dim};
    shape.dtype = DType::bf16;
    const plan::Prediction one = predicted(shape, {}, machine_with_amx());
    EXPECT_NEAR(one.flops / one.seconds * 1e-9, gflops, 0.01 * gflops);
    shape.dtype = DType::f16;
    EXPECT_GT(predicted(shape, {}, machine_with_amx()).seconds, 3 * one.seconds) << "f16 takes vectors";
  }
}

// Times of one thread as multiples of the time without mods, as docs/notes/cpu_amx.md has them.
TEST(CpuPrediction, AmxCountsMods) {
  struct Case {
    const char *score, *weight;
    double at_64, at_128;
  };
  const auto predicted_by = [](const Case& mods, std::int64_t dim) {
    Shape shape = {.q_heads = 2, .kv_heads = 2, .q_rows = 2048, .kv_rows = 2048, .dim = dim, .v_dim = dim};
    shape.dtype = DType::bf16;
    AttentionOptions options;
    if (*mods.score != 0) options.score_mod = parse(mods.score);
    if (*mods.weight != 0) options.weight_mod = parse(mods.weight);
    return predicted(shape, options, machine_with_amx()).seconds;
  };
  for (const Case& mods : {Case{"score + 0.25 * f32(kv_idx - q_idx)", "", 1.46, 1.33},
                           {"30.0 * tanh(score / 30.0)", "", 2.27, 1.65},
                           {"abs(score)", "", 1.42, 1.29},
                           {"score * abs(score) + abs(score * 0.5 + 1.0)", "", 2.89, 2.47},
                           {"score + tanh(score)", "", 2.73, 2.28},
                           {"", "where(random_uniform(1, b, h, q_idx, kv_idx) < 0.1, 0.0, 1.1111112)", 3.32, 3.00}}) {
    SCOPED_TRACE(testing::Message() << mods.score << mods.weight);
    EXPECT_NEAR(predicted_by(mods, 64) / predicted_by({"", "", 1, 1}, 64), mods.at_64, 0.25 * mods.at_64);
    EXPECT_NEAR(predicted_by(mods, 128) / predicted_by({"", "", 1, 1}, 128), mods.at_128, 0.25 * mods.at_128);
  }
}

TEST(CpuPrediction, AmxTakesWholeBricks) {
  const auto seconds = [](std::int64_t dim, std::int64_t v_dim) {
    const Shape shape = {.dim = dim, .v_dim = v_dim, .dtype = DType::bf16};
    return predicted(shape, {}, machine_with_amx()).seconds;
  };
  EXPECT_EQ(seconds(33, 33), seconds(64, 48));
  EXPECT_LT(seconds(32, 48), seconds(33, 48));
  EXPECT_LT(seconds(64, 48), seconds(64, 49));
}

// Packed keys and a few queries in one batch: each has its own cost.
TEST(CpuPrediction, AmxReadsTheKeysOfFewQueriesInPlace) {
  Shape decode = {.q_heads = 8, .q_rows = 1, .kv_rows = 8192, .dim = 128, .v_dim = 128, .dtype = DType::bf16};
  const plan::Prediction few = predicted(decode, {}, machine_with_amx());
  const double bytes = 2 * 256 * 8192, elements = 8 * 8192;
  EXPECT_DOUBLE_EQ(few.seconds,
                   elements * plan::kCpuForwardByUnit.score_seconds + bytes / plan::kUnitInPlaceBytesPerSecond);
  device::Caps small = machine_with_amx();
  small.l3_bytes = 0;
  EXPECT_DOUBLE_EQ(predicted(decode, {}, small).seconds, few.bytes / plan::kCpuRates.memory_bytes_per_second);

  decode.q_heads = 1;
  decode.batch = 2;
  decode.q_rows = 100;
  const Tensor q_lengths = i32s({8, 0}), both_lengths = i32s({8, 100});
  AttentionOptions options;
  options.q_lengths = q_lengths;
  const double one = predicted(decode, options, machine_with_amx()).seconds;
  options.q_lengths = both_lengths;
  const double both = predicted(decode, options, machine_with_amx()).seconds;
  const double packed = 100 * 8192 + 8192 * plan::kCpuForwardByUnit.key_elements;
  const double score = plan::kCpuForwardByUnit.score_seconds + plan::kCpuForwardByUnit.dim_seconds * 128;
  EXPECT_NEAR(both - one, packed * score, 1e-9 * both);
}

TEST(CpuPrediction, NothingToDoTakesNoTime) {
  device::Caps caps = machine();
  caps.l3_bytes = 1 << 30;
  AttentionOptions masked;
  masked.mask_mod = mods::causal();
  for (const Shape& shape : {Shape{.batch = 0}, Shape{.q_heads = 0, .kv_heads = 0}, Shape{.q_rows = 0},
                             Shape{.kv_rows = 0}, Shape{.q_rows = 1, .kv_rows = 0}}) {
    for (const AttentionOptions& options : {AttentionOptions(), masked}) {
      const plan::Prediction none = predicted(shape, options, caps);
      EXPECT_EQ(none.flops, 0);
      EXPECT_EQ(none.seconds, 0);
    }
  }
}

}  // namespace
}  // namespace heddle::test
