// Kernels of the plan's table of 16 bits: masks that read nothing, head dims between the table's own, an o of another
// type, and rows that end otherwise.
#include "kernels/cuda/compile_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "heddle/mods.h"

namespace heddle::cuda {
namespace {

TEST_F(CompileTable, KernelsWithoutReadsAreAllAccepted) {
  const std::vector<NamedMods> masks{named("no mask", {}), named("causal", mods::causal()),
                                     named("window", mods::sliding_window(1024))};
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    expect_accepted(config, true, masks[1]);
    if (kernel.spare) continue;
    expect_accepted(config, false, masks[0]);
    expect_accepted(config, false, masks[1]);
    if (!first) continue;
    expect_accepted(config, false, masks[2]);
    expect_accepted(config, true, masks[0], false);
  }
}

// Ends of o in either half of a product's 16 columns, of queries and keys inside them, panels more or fewer than the
// kernel's own.
TEST_F(CompileTable, HeadDimsBetweenTheKernelsOwnAreAccepted) {
  std::vector<HeadDims> all = {{40, 40}, {1, 33}, {80, 72}, {112, 64}, {160, 24}, {100, 136}, {208, 200}};
  for (const HeadDims& dims : all) {
    const auto* kernel = std::ranges::find(kForwardSm90Kernels, plan::native_dims(dims), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, named("no mask", {}));
  }
}

// Stores by threads: their addresses must not take what products have of uniform registers, nor of any others.
TEST_F(CompileTable, OutputsOfOtherTypesAreAccepted) {
  using shared::StorageType;
  const NamedMods causal = named("causal, o of another type", mods::causal());
  NamedMods sequences = named("by sequence, o of another type", {});
  sequences.by_sequence = true;
  const auto with = [](shared::ForwardSm90Config config, StorageType type) {
    config.o_type = type;
    return config;
  };
  for (const StorageType type : {StorageType::f64, StorageType::f16, StorageType::e4m3, StorageType::e5m2}) {
    expect_accepted(with(kForwardSm90Kernels[0].config(), type), false, causal);
  }
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    if (!kernel.spare) expect_accepted(with(kernel.config(), StorageType::f32), false, causal);
  }
  expect_accepted(with(kForwardSm90Kernels[0].config(40, 33), StorageType::bf16), true, sequences);
  expect_accepted(with(kForwardSm90Kernels[0].config(64, 36), StorageType::e4m3), true, sequences);
}

// The row's end alone is another; lists of differing sequences leave the producer the fewest registers.
TEST_F(CompileTable, KernelsWithSinksAreAllAccepted) {
  const NamedMods plain = with_sinks(named("no mask", {}));
  NamedMods lengths = with_sinks(named("by sequence, causal", mods::causal_lower_right()));
  lengths.by_sequence = true;
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    expect_accepted(config, false, lengths);
    if (kernel.spare) continue;
    expect_accepted(config, first, plain);
  }
}

// Every step takes the running maximum, and each row's end has another number to store.
TEST_F(CompileTable, KernelsWithMaxScoresAreAllAccepted) {
  const NamedMods causal = named("causal, max_scores", mods::causal());
  NamedMods lengths = with_sinks(named("device lengths, sinks, max_scores", mods::causal_lower_right()));
  lengths.by_sequence = lengths.device_lengths = true;
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    shared::ForwardSm90Config config = kernel.config();
    config.max_scores = true;
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (kernel.spare) continue;
    expect_accepted(config, !first, causal, first);
    expect_accepted(config, false, lengths, !first);
  }
}

// Each row's end has another number to store; terms of rows and keys are natural in safe tiles.
TEST_F(CompileTable, KernelsWithLseRestAreAllAccepted) {
  const Capture slopes("slopes", DType::f32, 1), pad("pad", DType::f32, 2), table("table", DType::bf16, 2);
  const NamedMods causal = named("causal, lse_rest", mods::causal());
  NamedMods lengths = with_sinks(named("device lengths, sinks, lse_rest", mods::causal_lower_right()));
  lengths.by_sequence = lengths.device_lengths = true;
  const std::vector<NamedMods> terms = {
      named("ALiBi, causal, lse_rest", mods::causal(), mods::alibi(slopes)),
      named("padding, lse_rest", {}, leaf::score() + pad(leaf::b(), leaf::kv_idx())),
      named("ALiBi and padding, causal, lse_rest", mods::causal(),
            mods::alibi(slopes) + pad(leaf::b(), leaf::kv_idx())),
      named("T5, lse_rest", {}, mods::t5_bias(table, 32, 128, true)),
      named("a term of the row, lse_rest", {}, leaf::score() + pad(leaf::h(), leaf::q_idx()))};
  HeadDims last = {0, 0};
  OneOfEach kernels(true);  // D 64 with three warpgroups spills 8 bytes where rows have sinks
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    shared::ForwardSm90Config config = kernel.config();
    config.lse_rest = true;
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (kernel.spare) continue;
    expect_accepted(config, !first, causal);
    const std::string dims = plan::to_string(plan::dims_of(kernel));
    kernels.offer(dims + ", " + lengths.name, std::to_string(config.rows()), source_of(config, false, lengths));
  }
  expect_one_accepted(terms, {.lse_rest = true});
}

TEST_F(CompileTable, KernelsOfOtherNormalizersAreAllAccepted) {
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    // In f16 rows of the latter have powers of their own.
    expect_accepted(config, true, with_normalizer(Normalizer::none, "causal", mods::causal()), false);
    if (kernel.spare) continue;
    expect_accepted(config, false, with_normalizer(Normalizer::sigmoid, "no mask", {}), false);
    if (!first) continue;
    expect_accepted(config, true, with_normalizer(Normalizer::sigmoid, "causal", mods::causal()), false);
    NamedMods lengths = with_normalizer(Normalizer::none, "by sequence, causal", mods::causal_lower_right());
    lengths.by_sequence = true;
    expect_accepted(config, false, lengths, false);
  }
}

}  // namespace
}  // namespace heddle::cuda
