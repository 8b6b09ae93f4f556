// Kernels that load the bits of their mask, and the kernels that find these.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "backend/gpu/stored_mask_launch.h"
#include "heddle/mods.h"
#include "kernels/cuda/compile_table.h"

namespace heddle::cuda {
namespace {

const Capture kIds("ids", DType::i32, 1), kLast("last", DType::i32, 1), kKeep("keep", DType::boolean, 2);

NamedMods tree(const char* name, const Expr& score = {}, const Expr& weight = {}) {
  return storing_mask(named(name, mods::tree(kIds, kLast), score, weight));
}
NamedMods by_sequence(NamedMods mods) {
  mods.name += ", by sequence";
  mods.by_sequence = true;
  return mods;
}

// No kernel is left out, for nothing of the mask is in it; nor do its addresses become each thread's own.
TEST_F(CompileTable, KernelsWithStoredMasksAreAllAccepted) {
  const NamedMods plain = tree("tree"), sequences = by_sequence(with_sinks(tree("tree")));
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    ASSERT_TRUE(plan::config_with(kernel.config(), plain.mods).stores_mask());
    expect_accepted(kernel.config(), false, plain);
    expect_accepted(kernel.config(), true, sequences);
    expect_accepted(kernel.config(), true, plain, false);
    expect_accepted(kernel.config(), false, by_sequence(plain));
  }
}

// The other features also take registers.
TEST_F(CompileTable, StoredMasksBesideOtherFeaturesAreAccepted) {
  const auto storing = [](shared::ForwardSm90Config config, shared::StorageType type) {
    config.o_type = type;
    return config;
  };
  const ForwardSm90Kernel &three = kForwardSm90Kernels[0], &two = kForwardSm90Kernels[1];
  const Capture slopes("slopes", DType::f32, 1);
  const NamedMods plain = tree("tree"), alibi = by_sequence(tree("tree, ALiBi", mods::alibi(slopes)));
  EXPECT_TRUE(alibi.mods.descending);
  expect_accepted(three.config(), false, alibi);
  expect_accepted(paged(two.config(20, 33), 3, true), false, by_sequence(plain));
  expect_accepted(paged(three.config(), 16), false, by_sequence(plain));
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const HeadDims dims = plan::dims_of(kernel);
    if (kernel.spare || dims.qk != dims.v || dims.qk % 64 != 0) continue;
    expect_accepted(kernel.config(), false, alibi);
    expect_accepted(paged(kernel.config(), 16), true, by_sequence(plain));
    expect_accepted(storing(kernel.config(), shared::StorageType::f32), false, plain);
    if (kernel.warpgroups < 3) expect_accepted(paged(kernel.config(), 1), false, by_sequence(plain));
  }
  NamedMods none = storing_mask(with_normalizer(Normalizer::none, "tree", mods::tree(kIds, kLast)));
  expect_accepted(three.config(), true, none, false);
  NamedMods sigmoid = storing_mask(with_normalizer(Normalizer::sigmoid, "tree", mods::tree(kIds, kLast)));
  expect_accepted(three.config(), false, sigmoid, false);
  expect_one_accepted({tree("tree, softcap", mods::softcap(20)),
                       tree("tree, T5", mods::t5_bias(Capture("table", DType::bf16, 2), 32, 128, true)),
                       tree("tree, dropout", {}, mods::dropout(0.1, param("seed", ExprType::i32)))});
}

TEST_F(CompileTable, StoredMasksOfEightBitsAreAccepted) {
  const NamedMods plain = tree("tree");
  for (const ForwardSm90Kernel& kernel : plan::forward_sm90_kernels(true)) {
    if (kernel.spare || kernel.kv_block > 128) continue;
    expect_accepted(kernel.config(), false, plain);
  }
}

TEST_F(CompileTable, WhatStoresMasksIsAccepted) {
  const Expr documents = mods::documents(kIds) && mods::causal();
  for (const Expr& mask : {documents, mods::tree(kIds, kLast), kKeep(leaf::q_token(), leaf::kv_token()),
                           (leaf::kv_idx() % (leaf::h() + 2)) != leaf::b() && leaf::q_len() > leaf::kv_idx()}) {
    for (const bool by_sequence : {false, true}) {
      device_text::ModLayout layout = device_text::layout_of({mask});
      layout.by_sequence = by_sequence;
      const auto cubin =
          jit::build(gpu::cuda_dialect().source("stored_mask", gpu::stored_mask_text(mask, layout), "sm_90a"));
      EXPECT_EQ(cubin->spill_bytes, 0);
      EXPECT_EQ(cubin->stack_bytes, 0);
      fmt::print("{}: {} registers, {:.0f} ms\n", print(mask), cubin->registers, cubin->compile_ms);
    }
  }
}

}  // namespace
}  // namespace heddle::cuda
