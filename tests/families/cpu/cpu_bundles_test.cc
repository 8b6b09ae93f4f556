// Tiles that go through the same keys together have the bits that each has alone.
#include <memory>
#include <string>
#include <vector>

#include "families/cpu/bricks_attention.h"
#include "families/cpu/cpu_choices.h"
#include "heddle/mods.h"

namespace heddle {
namespace {

struct Numbers {
  Tensor o, lse, max_scores;

  bool operator==(const Numbers& other) const {
    return bytes_of(o) == bytes_of(other.o) && bytes_of(lse) == bytes_of(other.lse) &&
           bytes_of(max_scores) == bytes_of(other.max_scores);
  }
};

/// By a plan with those bundles.
Numbers numbers_of(const Attention& a, const plan::CpuBundles& bundles, int threads) {
  const Dims shape = a.o_shape(), rows = {shape[0], shape[1], shape[2]};
  const DType number = a.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Numbers result = {nan_tensor(a.o_dtype, shape), nan_tensor(number, rows), nan_tensor(number, rows)};
  AttentionTensors tensors = {a.q, a.k, a.v, result.o, {}};
  if (a.with_lse) tensors.lse = result.lse.view();
  if (a.options.normalizer == Normalizer::softmax && a.v.shape()[3] % 2 != 0) {
    tensors.max_scores = result.max_scores.view();
  }
  const problem::AttentionProblem problem = problem::validate(tensors, a.options);
  plan::Plan plan = plan::cpu_forward(problem, threads, cpu::cpu_caps());
  plan::CpuForwardPart& part = plan.part<plan::CpuForwardPart>();
  part.bundles = bundles;
  plan.workspace_bytes = plan::cpu_forward_pair_bytes(problem, plan.tile.q, part.bricks()) +
                         threads * plan::cpu_forward_scratch(problem, plan.tile.q, part.bricks(), bundles.tiles).bytes;
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes});
  const std::unique_ptr<backend::Kernel> kernel =
      cpu::prepare_forward({problem, plan, tensors, a.options, {}, a.options.block_mask.get()});
  if (threads == 1) {
    EXPECT_EQ(kernel->facts().contains("bundles"), bundles.tiles > 1);
  }
  kernel->launch({tensors, &a.options, &a.options.bindings, nullptr, workspace.data()});
  return result;
}

void expect_same_bits(const Attention& a) {
  const Numbers alone = numbers_of(a, {}, 1);
  for (const plan::CpuBundles& bundles :
       {plan::CpuBundles{2, 128, 0}, plan::CpuBundles{3, 256, 100}, plan::CpuBundles{16, 384, 0}}) {
    for (const int threads : {1, 2}) {
      EXPECT_EQ(numbers_of(a, bundles, threads), alone) << bundles.tiles << " tiles, " << threads << " threads";
    }
  }
}

const std::vector<DType> kTypes = {DType::bf16, DType::f32, DType::f64};

class CpuBundles : public WithBricks {};

TEST_F(CpuBundles, OddShapesMasksAndOutputs) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t dim : {31, 64}) {
      SCOPED_TRACE(std::string(name(dtype)) + ", " + std::to_string(dim));
      Attention a({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 477, .kv_rows = 901, .qk_dim = 24, .v_dim = dim},
                  dtype);
      expect_same_bits(a);
      a.options.mask_mod = mods::sliding_window(300, 90);
      expect_same_bits(a);
      a.with_lse = false;
      expect_same_bits(a);
    }
  }
}

/// Block masks whose rows differ, with heads that share keys and see others of them.
TEST_F(CpuBundles, BlockMasks) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const BlockSize block : {BlockSize{32, 64}, BlockSize{48, 40}}) {
      SCOPED_TRACE(std::string(name(dtype)) + ", " + std::to_string(block.q));
      Attention a({.q_heads = 4, .kv_heads = 1, .q_rows = 500, .kv_rows = 900, .qk_dim = 32, .v_dim = 32}, dtype);
      a.options.mask_mod = mask_mod(
          [](Expr, Expr h, Expr i, Expr j) { return (j <= i + 300) & ((j / 150 + h) % 4 != 1) & (i % 97 != 5); });
      a.options.block_mask =
          std::make_shared<BlockMask>(BlockMask::build(a.options.mask_mod, MaskShape::uniform(1, 4, 500, 900), block));
      expect_same_bits(a);
    }
  }
}

TEST_F(CpuBundles, ModsOfEveryRole) {
  for (const DType dtype : kTypes) {
    SCOPED_TRACE(name(dtype));
    Attention a({.q_heads = 4, .kv_heads = 2, .q_rows = 450, .kv_rows = 700, .qk_dim = 40, .v_dim = 33}, dtype);
    a.options.mask_mod = mods::causal();
    a.options.score_mod = mods::softcap(2);
    expect_same_bits(a);
    a.options.score_mod =
        score_mod([](Expr s, Expr, Expr h, Expr i, Expr j) { return s + to_f32(j - i) * (to_f32(h) * 0.25); });
    expect_same_bits(a);
    a.options.weight_mod = mods::dropout(0.25, Expr(7));
    expect_same_bits(a);
    a.options.score_mod = score_mod([](Expr s, Expr, Expr, Expr i, Expr) { return s * to_f32(i % 5 - 2); });
    expect_same_bits(a);
    a.options.normalizer = Normalizer::sigmoid;
    a.with_lse = false;
    expect_same_bits(a);
  }
}

/// Values that are not finite, rows that attend nothing, and sums that overflow: tiles that are computed once more.
TEST_F(CpuBundles, SpecialNumbers) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    SCOPED_TRACE(name(dtype));
    Attention a({.q_heads = 3, .q_rows = 450, .kv_rows = 700, .qk_dim = 8, .v_dim = 70}, dtype);
    const auto set = [&](const Tensor& x, std::int64_t j, std::int64_t d, double value) {
      dtype == DType::bf16 ? poke_bf16(x, {0, 0, j, d}, value) : poke(x, {0, 0, j, d}, value);
    };
    a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (i % 3 != 0) & (j <= i + 100); });
    for (const std::int64_t j : {0, 130, 131, 400, 699}) set(a.v, j, j % 70, j % 2 == 0 ? kInfinity : kNan);
    set(a.k, 257, 3, kNan);
    set(a.q, 33, 3, kInfinity);
    expect_same_bits(a);
    for (std::int64_t j = 0; j < 700; ++j) {
      for (std::int64_t d = 0; d < 70; d += 3) set(a.v, j, d, (j / 3 + d) % 2 == 0 ? -3e38 : 3e38);
    }
    expect_same_bits(a);
  }
}

/// A plan makes bundles if packed keys and values do not stay in L2, and tells of them.
TEST_F(CpuBundles, OfLongSequencesAlone) {
  device::Caps caps = cpu::cpu_caps();
  caps.l2_bytes = 2 << 20;
  const auto bundles = [&](DType dtype, std::int64_t rows, std::int64_t keys, std::int64_t dim) {
    const Attention a({.q_rows = rows, .kv_rows = keys, .qk_dim = dim, .v_dim = dim}, dtype);
    const Tensor o = nan_tensor(dtype, a.o_shape());
    const problem::AttentionProblem problem = problem::validate({a.q, a.k, a.v, o, {}}, a.options);
    return plan::cpu_forward(problem, 1, caps).part<plan::CpuForwardPart>().bundles;
  };
  EXPECT_EQ(bundles(DType::f32, 2000, 1500, 128).tiles, 1);
  EXPECT_EQ(bundles(DType::f32, 2000, 1600, 128).tiles, 8);
  EXPECT_EQ(bundles(DType::f32, 2000, 1600, 128).keys, 512);
  EXPECT_EQ(bundles(DType::f32, 2, 1600, 128).tiles, 1) << "keys in place";
  EXPECT_EQ(bundles(DType::bf16, 2000, 3000, 128).tiles, 1);
  EXPECT_EQ(bundles(DType::bf16, 2000, 3100, 128).tiles, 16);
  EXPECT_EQ(bundles(DType::bf16, 2000, 3100, 128).keys, 1024);
}

}  // namespace
}  // namespace heddle
