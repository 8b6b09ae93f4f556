// Masks by bits and masks that read, score and weight mods, dropout, streamed biases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "heddle/mods.h"
#include "kernels/cuda/compile_table.h"

namespace heddle::cuda {
namespace {

// These kernels drop by masks of draws.
TEST_F(CompileTable, KernelsThatDropAreAllAccepted) {
  const Expr seed = param("seed", ExprType::i32), p = param("p", ExprType::f32);
  const Expr draw = random_uniform(seed, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const NamedMods dropout = named("dropout", {}, {}, mods::dropout(0.1, seed));
  NamedMods params = named("dropout by params, by sequence, causal", mods::causal_lower_right(), {},
                           where(draw < p, 0.0, 1.0 / (1.0 - p)));
  params.by_sequence = true;
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    if (config.kv_block % shared::kKeysOfDraw != 0) continue;
    ASSERT_TRUE(plan::config_with(config, dropout.mods).dropped && plan::config_with(config, params.mods).dropped);
    if (!kernel.spare) expect_accepted(config, false, dropout);
    expect_accepted(config, true, params);
  }
}

// Kernels whose blocks lie in granules of 128 keys look up positions once a block, and have room for them.
TEST_F(CompileTable, PlacedKernelsAreAccepted) {
  const Expr seed = param("seed", ExprType::i32);
  const Capture slopes("slopes", DType::f32, 1), table("table", DType::f32, 2), ids("ids", DType::i32, 1);
  const std::vector<NamedMods> all = {
      in_granules("causal", mods::causal()),
      in_granules("window", mods::sliding_window(4096)),
      in_granules("alibi, causal", mods::causal(), mods::alibi(slopes)),
      in_granules("t5, causal", mods::causal(), mods::t5_bias(table, 32, 128, false)),
      in_granules("softcap, causal", mods::causal(), mods::softcap(20)),
      in_granules("dropout, causal", mods::causal(), {}, mods::dropout(0.1, seed)),
      in_granules("padded", {}, leaf::score() + Capture("pad", DType::f32, 1)(leaf::kv_idx())),
      storing_mask(in_granules("documents, alibi", mods::documents(ids), mods::alibi(slopes)))};
  OneOfEach kernels(true);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    if (128 % kernel.kv_block != 0) continue;
    for (const NamedMods& mods : all) {
      const shared::ForwardSm90Config config = plan::config_with(kernel.config(), mods.mods);
      EXPECT_TRUE(config.placed_queries || config.placed_keys);
      kernels.offer(fmt::format("D {}, {}", plan::to_string(plan::dims_of(kernel)), mods.name),
                    fmt::format("{} x {}", config.rows(), kernel.kv_block), source_of(kernel.config(), false, mods));
    }
  }
}

// Every kernel must compile with documents, because their cost is measured on each; for other masks one accepted kernel
// is enough.
TEST_F(CompileTable, MasksByBitsAreAccepted) {
  const Expr documents = mods::documents(Capture("ids", DType::i64, 1));
  const std::vector<NamedMods> masks = {named("dilated", mods::causal() && (leaf::q_idx() - leaf::kv_idx()) % 4 == 0),
                                        named("documents of i64 and causal", documents && mods::causal())};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const HeadDims dims = plan::dims_of(kernel);
    if (kernel.spare || dims.qk != dims.v || (dims.qk != 64 && dims.qk != 128)) continue;
    for (const NamedMods& mask : masks) {
      EXPECT_NE(mask.mods.mask_form, shared::MaskForm::direct);
      expect_accepted(kernel.config(), kernel.warpgroups == 3, mask);
    }
  }
}

TEST_F(CompileTable, MasksThatReadFindAKernel) {
  const Capture ids("ids", DType::i32, 1), keep("keep", DType::boolean, 2);
  expect_one_accepted({named("documents", mods::documents(ids)),
                       named("documents and causal", mods::documents(ids) && mods::causal()),
                       named("tree", mods::tree(ids, Capture("last", DType::i32, 1))),
                       named("table", keep(leaf::q_idx(), leaf::kv_idx()) && mods::causal())});
}

// Each head dim has a kernel for each of them, also where its rows are of several heads.
TEST_F(CompileTable, KernelsThatStreamABiasAreAllAccepted) {
  const auto biased = [](std::string name, const Capture& bias, const Expr& mask, bool by_sequence = false) {
    NamedMods mods = named(std::move(name), mask, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()));
    mods.by_sequence = by_sequence;
    return mods;
  };
  const std::vector<NamedMods> all = {biased("bias bf16", Capture("bias", DType::bf16, 3), {}),
                                      biased("bias bf16, causal", Capture("bias", DType::bf16, 3), mods::causal()),
                                      biased("bias f32", Capture("bias", DType::f32, 3), {}),
                                      biased("bias bf16, by sequence", Capture("bias", DType::bf16, 3), {}, true)};
  const NamedMods bits = biased("bias f32, by sequence, by head", Capture("bias", DType::f32, 3),
                                leaf::kv_idx() % (leaf::h() + 2) != 0, true);
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90WideCaptureKernels) {
    for (const NamedMods& mods : {all[2], bits}) {
      for (const int packed : {0, 16, 64}) {
        shared::ForwardSm90Config config = kernel.config();
        config.packed_queries = packed;
        expect_accepted(streaming(config, mods), false, mods);
      }
    }
  }
  OneOfEach kernels(true);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    for (std::size_t i = 0; i < 3 * all.size(); ++i) {
      const NamedMods& mods = all[i / 3];
      const int packed = std::array{0, 16, 64}[i % 3];
      shared::ForwardSm90Config config = kernel.config();
      config.packed_queries = packed;
      config = streaming(config, mods);
      if (config.streamed_bytes == 0) continue;
      kernels.offer(fmt::format("D {}, packed by {}, {}", plan::to_string(plan::dims_of(kernel)), packed, mods.name),
                    fmt::format("{} x {}, {} stages, {} tiles, {} q, {} o", config.rows(), kernel.kv_block,
                                config.stages, config.streamed_stages, config.q_buffers, config.o_panels),
                    source_of(config, false, mods));
    }
  }
}

TEST_F(CompileTable, NumbersOfKeysFindAKernel) {
  const Capture pad("pad", DType::f32, 2), temperature("temperature", DType::f32, 1), gate("gate", DType::f32, 2),
      slopes("slopes", DType::f32, 1), table("table", DType::f32, 2);
  const Expr score = leaf::score(), q = leaf::q_idx(), kv = leaf::kv_idx();
  const auto index = [&](std::int32_t side) {
    const Expr row = floor_div(q % (side * side), side) - floor_div(kv % (side * side), side);
    return (row + (side - 1)) * (2 * side - 1) + (q % side - kv % side) + (side - 1);
  };
  std::vector<NamedMods> all = {
      named("padding", {}, score + pad(leaf::b(), kv)),
      named("padding, causal", mods::causal(), score + pad(leaf::b(), kv)),
      named("temperature and gate, causal", mods::causal(), score * temperature(kv) + gate(leaf::h(), q)),
      named("temperature and padding", {}, score * temperature(kv) + pad(leaf::b(), kv)),
      named("ALiBi and padding, causal", mods::causal(), mods::alibi(slopes) + pad(leaf::b(), kv)),
      named("Swin", {}, score + table(index(32), leaf::h())),
      named("Swin, 48 x 48", {}, score + table(index(48), leaf::h())),
  };
  for (const NamedMods& mods : all) EXPECT_TRUE(mods.mods.has_key_numbers()) << mods.name;
  expect_one_accepted(all);
}

TEST_F(CompileTable, ScoreAndWeightModsFindAKernel) {
  const Capture slopes("slopes", DType::f32, 1), table("table", DType::bf16, 2), bias("bias", DType::bf16, 3);
  const Expr relative = leaf::score() + to_f32(leaf::q_idx() - leaf::kv_idx());
  std::vector<NamedMods> all = {named("ALiBi, causal", mods::causal(), mods::alibi(slopes)),
                                named("relative position", {}, relative),
                                named("T5", {}, mods::t5_bias(table, 32, 128, true)),
                                named("softcap", {}, mods::softcap(20)),
                                named("bias", {}, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx())),
                                named("dropout", {}, {}, mods::dropout(0.1, param("seed", ExprType::i32)))};
  expect_one_accepted(all);
  expect_one_accepted(all, {.fp8 = true});
}

TEST_F(CompileTable, ScoreAndWeightModsOfOtherNormalizersFindAKernel) {
  const Capture slopes("slopes", DType::f32, 1), table("table", DType::bf16, 2), bias("bias", DType::bf16, 3);
  const auto sigmoid = [](std::string name, const Expr& mask, const Expr& score, const Expr& weight = {}) {
    return with_normalizer(Normalizer::sigmoid, std::move(name), mask, score, weight);
  };
  const auto none = [](std::string name, const Expr& mask, const Expr& score, const Expr& weight = {}) {
    return with_normalizer(Normalizer::none, std::move(name), mask, score, weight);
  };
  const Expr dropout = mods::dropout(0.1, param("seed", ExprType::i32)), positive = max(leaf::score(), 0.0);
  std::vector<NamedMods> all = {sigmoid("shifted", {}, leaf::score() - 9.0),
                                sigmoid("softcap", {}, mods::softcap(20)),
                                sigmoid("ALiBi, causal", mods::causal(), mods::alibi(slopes)),
                                none("T5", {}, mods::t5_bias(table, 32, 128, true)),
                                none("squared ReLU", {}, positive * positive),
                                none("softcap", {}, mods::softcap(20))},
                         in_f16 = {none("ALiBi", {}, mods::alibi(slopes)), none("dropout", {}, {}, dropout),
                                   sigmoid("bias", {}, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()))};
  expect_one_accepted(all, {.lse = false});
  expect_one_accepted(in_f16, {.f16 = true, .lse = false});
}

}  // namespace
}  // namespace heddle::cuda
