// Kernels of sequences that differ, with lengths of the host or of the device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "backend/device_code/headers.h"
#include "backend/gpu/dialect.h"
#include "backend/gpu/texts.h"
#include "heddle/mods.h"
#include "kernels/cuda/compile_table.h"

namespace heddle::cuda {
namespace {

TEST_F(CompileTable, KernelsOfSequencesThatDifferAreAllAccepted) {
  NamedMods plain = named("by sequence", {}), causal = named("by sequence, causal", mods::causal_lower_right());
  plain.by_sequence = causal.by_sequence = true;
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (first || !kernel.spare) expect_accepted(config, true, causal);
    if (!first) continue;
    expect_accepted(config, false, plain);
  }
}

// Ends of rows that TMA does not store, and key blocks counted from a sequence's last one: with three warpgroups the
// producer has the fewest registers for that.
TEST_F(CompileTable, SequencesWithOddHeadDimsAndDescendingScoresAreAccepted) {
  NamedMods causal = named("by sequence, causal", mods::causal_lower_right()),
            alibi = named("by sequence, ALiBi, causal", mods::causal(), mods::alibi(Capture("slopes", DType::f32, 1)));
  causal.by_sequence = alibi.by_sequence = true;
  EXPECT_TRUE(alibi.mods.descending);
  expect_accepted(kForwardSm90Kernels[0].config(20, 33), false, causal);
  for (const HeadDims& dims : {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{100, 65}}) {
    const auto* kernel = std::ranges::find(kForwardSm90Kernels, plan::native_dims(dims), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, alibi);
  }
}

// Lengths on the device cost nothing in the loop, but registers of the producer and of rows that attend nothing.
TEST_F(CompileTable, KernelsWithLengthsOnTheDeviceAreAllAccepted) {
  NamedMods plain = named("device lengths", {}), causal = named("device lengths, causal", mods::causal()),
            alibi =
                named("device lengths, ALiBi, causal", mods::causal(), mods::alibi(Capture("slopes", DType::f32, 1)));
  for (NamedMods* mods : {&plain, &causal, &alibi}) mods->by_sequence = mods->device_lengths = true;
  EXPECT_TRUE(alibi.mods.descending);
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (first || !kernel.spare) expect_accepted(config, false, causal);
    if (!first) continue;
    expect_accepted(config, true, plain);
  }
  expect_accepted(kForwardSm90Kernels[0].config(20, 33), false, causal);
  for (const HeadDims& dims : {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{100, 65}}) {
    const auto* kernel = std::ranges::find(kForwardSm90Kernels, plan::native_dims(dims), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, alibi);
  }
}

TEST_F(CompileTable, WhatPlacesSequencesIsAccepted) {
  const auto cubin = jit::build({.name = "sequences",
                                 .text = gpu::sequences_text().text,
                                 .headers = device_code::cuda_headers(),
                                 .architecture = "sm_90a"});
  EXPECT_EQ(cubin->spill_bytes, 0);
  EXPECT_EQ(cubin->stack_bytes, 0);
  fmt::print("sequences: {} registers, {:.0f} ms\n", cubin->registers, cubin->compile_ms);
}

TEST_F(CompileTable, WhatCopiesRowsIsAccepted) {
  const auto cubin =
      jit::build(gpu::cuda_dialect().source("copy_rows", "#include \"around/copied_rows_kernel.cuh\"\n", "sm_90a"));
  EXPECT_EQ(cubin->spill_bytes, 0);
  EXPECT_EQ(cubin->stack_bytes, 0);
  fmt::print("copy_rows: {} registers, {:.0f} ms\n", cubin->registers, cubin->compile_ms);
}

// Odd rows, an o that threads store, and a streamer that follows the steps: all of them fill rows, or pass over tiles,
// that only the device knows.
TEST_F(CompileTable, LengthsOnTheDeviceBesideOtherFeaturesAreAccepted) {
  const auto there = [](NamedMods mods) {
    mods.name += ", device lengths";
    mods.by_sequence = mods.device_lengths = true;
    return mods;
  };
  const auto storing = [](shared::ForwardSm90Config config, shared::StorageType type) {
    config.o_type = type;
    return config;
  };
  const Expr documents = mods::documents(Capture("ids", DType::i32, 1)) && mods::causal();
  const NamedMods sinks = there(with_sinks(named("causal", mods::causal())));
  const ForwardSm90Kernel& first = kForwardSm90Kernels[0];
  expect_accepted(first.config(20, 33), false, sinks);
  expect_accepted(storing(first.config(), shared::StorageType::e4m3), false, sinks);
  expect_accepted(storing(first.config(40, 33), shared::StorageType::f64), true, sinks);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const HeadDims dims = plan::dims_of(kernel);
    if (kernel.spare || dims.qk != dims.v || dims.qk % 64 != 0) continue;
    expect_accepted(kernel.config(), kernel.warpgroups == 3, sinks);
  }
  expect_accepted(first.config(), true, there(with_normalizer(Normalizer::none, "causal", mods::causal())), false);
  expect_accepted(first.config(), false, there(with_normalizer(Normalizer::sigmoid, "no mask", {})), false);
  expect_one_accepted({there(named("documents and causal", documents)),
                       there(named("dropout", {}, {}, mods::dropout(0.1, param("seed", ExprType::i32))))});
  const Capture bias("bias", DType::bf16, 3);
  const NamedMods biased =
      there(with_sinks(named("bias", {}, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()))));
  OneOfEach kernels;
  for (const int dim : {64, 128}) {
    for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
      if (plan::dims_of(kernel).qk != dim || plan::dims_of(kernel).v != dim) continue;
      const shared::ForwardSm90Config config = streaming(kernel.config(), biased);
      if (config.streamed_bytes == 0) continue;
      kernels.offer(fmt::format("D {}, {}", dim, biased.name), fmt::format("{} x {}", config.rows(), kernel.kv_block),
                    source_of(config, false, biased));
    }
  }
}

}  // namespace
}  // namespace heddle::cuda
