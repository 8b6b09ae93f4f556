// The CPU backward of bf16 by AMX, or by the stand-in that computes the same bits, against the reference in float64.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "families/cpu/cpu_backward_plans.h"
#include "families/cpu/cpu_choices.h"
#include "families/cpu/cpu_training.h"
#include "families/cpu/emulated_amx.h"

namespace heddle {
namespace {

class CpuBackwardBricks : public WithBricks {};

/// The gradients, which their plan computes with bricks.
void expect_bricks(Training& training, const GradientRequest& request = {}) {
  BackwardTensors tensors = training.inputs();
  const Tensor dk = Tensor::zeros(DType::bf16, training.k.shape());
  tensors.dk = dk;
  ASSERT_THAT(AttentionPlan(tensors, training.options).explain(), testing::HasSubstr("cpu_backward in bf16 by AMX"));
  expect_right(training, request);
}

/// A plan for a machine with this unit and so many cores, run.
void run_on(device::MatrixUnit unit, const BackwardTensors& gradients, const AttentionOptions& options,
            int cores = cpu::cpu_caps().cores) {
  const problem::AttentionProblem problem = problem::validate(gradients, options);
  const AttentionTensors tensors = problem::forward_tensors(gradients);
  device::Machine machine;
  machine.cpu = cpu::cpu_caps();
  machine.cpu.matrix_unit = unit;
  machine.cpu.cores = cores;
  const plan::Plan plan = plan::cpu_backward({problem, tensors, options, machine, &gradients});
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes});
  cpu::prepare_backward({problem, plan, tensors, options, options.bindings, nullptr, &gradients})
      ->launch({tensors, &options, &options.bindings, nullptr, workspace.data(), nullptr, &gradients});
}

TEST_F(CpuBackwardBricks, OddShapesOfEveryKind) {
  const std::vector<Shape> shapes = {
      {},
      {.q_heads = 2, .q_rows = 7, .kv_rows = 130, .qk_dim = 5, .v_dim = 3},
      {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_rows = 97, .kv_rows = 129, .qk_dim = 40, .v_dim = 24},
      {.q_rows = 103, .kv_rows = 63, .qk_dim = 128, .v_dim = 128},
      {.q_rows = 300, .kv_rows = 161, .qk_dim = 64, .v_dim = 80},
      {.q_rows = 5, .kv_rows = 70, .qk_dim = 200, .v_dim = 72},
      {.q_rows = 3, .kv_rows = 4, .qk_dim = 1, .v_dim = 600},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << " Sq " << shape.q_rows << " Dqk " << shape.qk_dim);
    Training training(shape, DType::bf16);
    expect_bricks(training);
    training.options.mask_mod = mods::causal();
    training.options.score_mod = mods::softcap(2);
    expect_bricks(training);
  }
}

TEST_F(CpuBackwardBricks, EveryNormalizer) {
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid, Normalizer::softmax}) {
    Training training({.q_heads = 2, .kv_heads = 1, .q_rows = 33, .kv_rows = 150, .qk_dim = 24, .v_dim = 19},
                      DType::bf16);
    training.options.normalizer = normalizer;
    expect_bricks(training);
    training.options.weight_mod = mods::dropout(0.25, Expr(7));
    expect_bricks(training);
  }
}

TEST_F(CpuBackwardBricks, ScalesOfAnySign) {
  for (const double scale : {-0.7, 0.0, 3.0}) {
    Training training({.q_rows = 70, .kv_rows = 100, .qk_dim = 16, .v_dim = 16}, DType::bf16);
    training.options.scale = scale;
    expect_bricks(training);
  }
}

TEST_F(CpuBackwardBricks, EachOfQKAndVMayBroadcastAlone) {
  for (const auto member : {&Training::q, &Training::k, &Training::v}) {
    Training training({.batch = 3, .q_heads = 2, .q_rows = 9, .kv_rows = 70, .qk_dim = 8, .v_dim = 8}, DType::bf16);
    training.*member = copy(slice(ConstTensorView(training.*member), 0, 0, 1), DType::bf16);
    expect_bricks(training);
  }
}

/// Reads of the score mod and of the weight mod, one place by the score, whose tiles are those of several units of
/// rows.
TEST_F(CpuBackwardBricks, GradientsOfCaptures) {
  Training training({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 140, .qk_dim = 16, .v_dim = 16},
                    DType::bf16);
  const Tensor table = random_tensor(DType::f32, {300}, 5), steps = random_tensor(DType::f32, {8, 4}, 6);
  const Tensor gate = random_tensor(DType::f32, {4, 140}, 7);
  training.options.bindings.captures = {{"table", table}, {"steps", steps}, {"gate", gate}};
  const Symbols symbols(training.options.bindings);
  training.options.score_mod =
      parse("score + table[kv_idx - q_idx + 150] + steps[min(max(i32(3.0 * score) + 4, 0), 7), h]", symbols);
  training.options.weight_mod = parse("gate[h, kv_idx]", symbols);
  expect_bricks(training, {.captures = {"table", "gate"}});
  training.options.mask_mod = mods::sliding_window(40, 9);
  expect_bricks(training, {.captures = {"table", "steps", "gate"}});
}

/// Sequences of a batch that begin and end where they like.
TEST_F(CpuBackwardBricks, RaggedLengths) {
  Training training({.batch = 3, .q_heads = 2, .kv_heads = 2, .q_rows = 70, .kv_rows = 200, .qk_dim = 32, .v_dim = 16},
                    DType::bf16);
  const Tensor q_lengths = tensor_of<std::int64_t>(DType::i64, {70, 33, 0});
  const Tensor kv_lengths = tensor_of<std::int64_t>(DType::i64, {1, 200, 129});
  training.options.q_lengths = q_lengths;
  training.options.kv_lengths = kv_lengths;
  expect_bricks(training);
  training.options.mask_mod = mods::causal_lower_right();
  expect_bricks(training);
}

/// A mask whose blocks are no multiples of a register: tiles begin and end inside of groups of rows and bricks.
TEST_F(CpuBackwardBricks, BlocksOfAnySize) {
  Training training({.q_heads = 2, .q_rows = 101, .kv_rows = 150, .qk_dim = 16, .v_dim = 24}, DType::bf16);
  training.options.mask_mod = mods::sliding_window(25, 3);
  const MaskShape shape = {2, {{.q_len = 101, .kv_len = 150}}};
  for (const BlockSize block : {BlockSize{1, 100}, BlockSize{7, 64}, BlockSize{24, 24}, BlockSize{48, 16}}) {
    SCOPED_TRACE(testing::Message() << "blocks of " << block.q << " x " << block.kv);
    training.options.block_mask =
        std::make_shared<const BlockMask>(BlockMask::build(training.options.mask_mod, shape, block));
    expect_bricks(training);
  }
}

/// Rows are known to be finite by 64, of which each 32 are packed alone.
TEST_F(CpuBackwardBricks, RowsThatAreNotFiniteInEachHalfOfAPanel) {
  for (const std::int64_t row : {70, 100, 129}) {
    Training training({.q_rows = 130, .kv_rows = 40, .qk_dim = 16, .v_dim = 16}, DType::bf16);
    training.options.mask_mod = leaf::q_idx() != row;
    const BackwardTensors inputs = training.inputs();
    const BackwardResult clean = attention_backward(inputs, training.options);
    for (const Tensor& x : {training.q, training.d_o}) {
      std::fill_n(static_cast<std::uint16_t*>(x.data()) + row * 16, 16, std::uint16_t{0x7fc0});
    }
    const BackwardResult result = attention_backward(inputs, training.options);
    EXPECT_EQ(bytes_of(result.dk), bytes_of(clean.dk)) << row;
    EXPECT_EQ(bytes_of(result.dv), bytes_of(clean.dv)) << row;
  }
}

/// Queries 64 to 127 and key 140 attend nothing. What they hold reaches nobody, in any unit of rows that is computed
/// while AMX still adds up the one before.
TEST_F(CpuBackwardBricks, NumbersThatAreNotFiniteInTheMiddleOfAStep) {
  constexpr std::int64_t kDim = 16;
  for (const std::int64_t kv_rows : {141, 150, 250}) {  // in a tile's only part, in its first, and beside a second
    Training training({.q_rows = 200, .kv_rows = kv_rows, .qk_dim = kDim, .v_dim = kDim}, DType::bf16);
    training.options.mask_mod = leaf::kv_idx() != 140 && (leaf::q_idx() < 64 || leaf::q_idx() >= 128);
    expect_bricks(training);
    const BackwardTensors inputs = training.inputs();
    const BackwardResult clean = attention_backward(inputs, training.options);
    const auto poison = [](const Tensor& x, std::int64_t row) {
      std::fill_n(static_cast<std::uint16_t*>(x.data()) + row * kDim, kDim, std::uint16_t{0x7fc0});
    };
    poison(training.k, 140);
    for (const std::int64_t row : {70, 127}) poison(training.q, row), poison(training.d_o, row);
    const BackwardResult result = attention_backward(inputs, training.options);
    EXPECT_EQ(bytes_of(result.dq), bytes_of(clean.dq)) << kv_rows;
    EXPECT_EQ(bytes_of(result.dk), bytes_of(clean.dk)) << kv_rows;
    EXPECT_EQ(bytes_of(result.dv), bytes_of(clean.dv)) << kv_rows;
  }
}

/// A query that holds NaN attends all keys: its dq and all of dk and dv are NaN.
TEST_F(CpuBackwardBricks, NanOfAQueryReachesWhatItAttends) {
  Training training({.q_rows = 200, .kv_rows = 150, .qk_dim = 16, .v_dim = 16}, DType::bf16);
  static_cast<std::uint16_t*>(training.q.data())[70 * 16 + 3] = 0x7fc0;
  const BackwardResult result = attention_backward(training.inputs(), training.options);
  const auto count_nan = [](const Tensor& x) {
    const auto* words = static_cast<const std::uint16_t*>(x.data());
    return std::count_if(words, words + x.count(), [](std::uint16_t word) { return (word & 0x7fff) > 0x7f80; });
  };
  EXPECT_EQ(count_nan(result.dq), 16);
  EXPECT_EQ(count_nan(result.dk), 150 * 16);
  EXPECT_EQ(count_nan(result.dv), 150 * 16);
}

/// Steps of one part and of two, one of them narrow, over units that are whole or end early: parts take turns in the
/// buffers of scores, slopes and reads.
TEST_F(CpuBackwardBricks, PartsOfEveryWidth) {
  for (const std::int64_t kv_rows : {20, 40, 64, 65, 100, 128, 170}) {
    for (const std::int64_t q_rows : {16, 33, 270}) {
      SCOPED_TRACE(testing::Message() << q_rows << " x " << kv_rows);
      Training training({.q_rows = q_rows, .kv_rows = kv_rows, .qk_dim = 72, .v_dim = 32}, DType::bf16);
      expect_bricks(training);
      const Tensor gate = random_tensor(DType::f32, {kv_rows}, 7);
      training.options.bindings.captures = {{"gate", gate}};
      training.options.score_mod = parse("score * gate[kv_idx]", Symbols(training.options.bindings));
      expect_bricks(training, {.captures = {"gate"}});
    }
  }
}

/// On one core, tiles of keys are wide. Buffers of a whole step then have two parts, which the gradients of captures,
/// and keys and queries that are not finite, walk.
TEST_F(CpuBackwardBricks, WideTilesOfKeys) {
  for (const std::int64_t kv_rows : {1024, 1170}) {
    SCOPED_TRACE(testing::Message() << kv_rows << " keys");
    Training training({.q_heads = 2, .kv_heads = 1, .q_rows = 41, .kv_rows = kv_rows, .qk_dim = 40, .v_dim = 24},
                      DType::bf16);
    const Tensor table = random_tensor(DType::f32, {kv_rows + 150}, 5), steps = random_tensor(DType::f32, {8}, 6);
    const Tensor gate = random_tensor(DType::f32, {2, kv_rows}, 7);
    training.options.bindings.captures = {{"table", table}, {"steps", steps}, {"gate", gate}};
    const Symbols symbols(training.options.bindings);
    training.options.score_mod =
        parse("score + table[kv_idx - q_idx + 150] + steps[min(max(i32(3.0 * score) + 4, 0), 7)]", symbols);
    training.options.weight_mod = parse("gate[h, kv_idx]", symbols);
    training.options.mask_mod = leaf::kv_idx() != 70 && leaf::kv_idx() != 400 && leaf::q_idx() != 40;
    BackwardTensors tensors = training.inputs();
    const Tensor dq = Tensor::zeros(DType::bf16, training.q.shape()),
                 dk = Tensor::zeros(DType::bf16, training.k.shape());
    const Tensor dv = Tensor::zeros(DType::bf16, training.v.shape());
    tensors.dq = dq, tensors.dk = dk, tensors.dv = dv;
    const std::vector<Tensor> sums = {Tensor::zeros(DType::f32, table.shape()),
                                      Tensor::zeros(DType::f32, steps.shape()),
                                      Tensor::zeros(DType::f32, gate.shape())};
    tensors.d_captures = {{"table", sums[0]}, {"steps", sums[1]}, {"gate", sums[2]}};
    const auto run = [&] {
      run_on(cpu::cpu_caps().matrix_unit, tensors, training.options, 1);
      std::vector<std::vector<std::byte>> bytes = {bytes_of(dq), bytes_of(dk), bytes_of(dv)};
      for (const Tensor& sum : sums) bytes.push_back(bytes_of(sum));
      return bytes;
    };
    const auto clean = run();
    const GradientReport report = check_backward(tensors, training.options);
    EXPECT_TRUE(report.passed) << report.text();
    const auto poison = [](const Tensor& x, std::int64_t row, std::int64_t dim) {
      std::fill_n(static_cast<std::uint16_t*>(x.data()) + row * dim, dim, std::uint16_t{0x7fc0});
    };
    poison(training.k, 70, 40), poison(training.k, 400, 40), poison(training.q, 40, 40), poison(training.d_o, 40, 24);
    EXPECT_EQ(run(), clean);
  }
}

TEST_F(CpuBackwardBricks, GradientsThatNobodyAsksFor) {
  Training training({.q_heads = 2, .kv_heads = 2, .q_rows = 70, .kv_rows = 140, .qk_dim = 16, .v_dim = 24},
                    DType::bf16);
  for (const GradientRequest& request :
       {GradientRequest{.k = false, .v = false}, GradientRequest{.q = false, .v = false},
        GradientRequest{.q = false, .k = false}}) {
    expect_bricks(training, request);
  }
}

/// dO of f32 is not rounded to bf16: the f32 kernel takes it.
TEST_F(CpuBackwardBricks, OthersTakeF32) {
  Training training({.q_rows = 40, .kv_rows = 40, .qk_dim = 16, .v_dim = 16}, DType::bf16);
  BackwardTensors tensors = training.inputs();
  const Tensor o = training.forward.o.to(DType::f32), d_o = training.d_o.to(DType::f32);
  const Tensor dk = Tensor::zeros(DType::bf16, training.k.shape());
  tensors.o = o, tensors.d_o = d_o, tensors.dk = dk;
  EXPECT_THAT(AttentionPlan(tensors, training.options).explain(), testing::HasSubstr("cpu_backward in f32"));
}

/// Both ways compute the same bits, on a machine with AMX.
TEST_F(CpuBackwardBricks, AmxAndItsStandInComputeTheSameBits) {
  if (cpu::cpu_caps().matrix_unit != device::MatrixUnit::amx) GTEST_SKIP() << "no AMX, or HEDDLE_CPU_AMX=emulated";
  for (const std::int64_t dim : {8, 64, 80, 128}) {
    Training training({.q_heads = 2, .kv_heads = 2, .q_rows = 177, .kv_rows = 300, .qk_dim = dim, .v_dim = dim},
                      DType::bf16);
    training.options.mask_mod = mods::causal();
    training.options.threads = 1;
    BackwardTensors tensors = training.inputs();
    std::vector<std::vector<std::byte>> first;
    for (const device::MatrixUnit unit : {device::MatrixUnit::amx, device::MatrixUnit::emulated}) {
      const Tensor dq = Tensor::zeros(DType::bf16, training.q.shape()),
                   dk = Tensor::zeros(DType::bf16, training.k.shape());
      const Tensor dv = Tensor::zeros(DType::bf16, training.v.shape());
      tensors.dq = dq, tensors.dk = dk, tensors.dv = dv;
      run_on(unit, tensors, training.options);
      const std::vector<std::vector<std::byte>> bytes = {bytes_of(dq), bytes_of(dk), bytes_of(dv)};
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << dim;
    }
  }
}

TEST_F(CpuBackwardBricks, BitsDoNotDependOnThreads) {
  Training training({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 300, .kv_rows = 300, .qk_dim = 16, .v_dim = 16},
                    DType::bf16);
  const BackwardTensors inputs = training.inputs();
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 7}) {
    training.options.threads = threads;
    const BackwardResult result = attention_backward(inputs, training.options);
    const std::vector<std::vector<std::byte>> bytes = {bytes_of(result.dq), bytes_of(result.dk), bytes_of(result.dv)};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << threads << " threads";
  }
}

}  // namespace
}  // namespace heddle
