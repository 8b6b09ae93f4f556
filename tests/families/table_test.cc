// Which families are taken, and what a plan carries.
#include "families/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/portable/shared/forward_mma_config.h"
#include "device/known_gpus.h"
#include "expect_error.h"
#include "heddle/mods.h"
#include "plan/hopper.h"
#include "plan/plan.h"
#include "problem/call.h"

namespace heddle::test {
namespace {

plan::Plan first_choice(const problem::AttentionProblem& problem, BackendChoice wanted, int threads,
                        const device::Caps& caps) {
  AttentionOptions options;
  options.backend = wanted;
  options.threads = threads;
  const device::Machine machine = {.cpu = caps, .cuda = {}, .cuda_missing = {}};
  return plan::choose({problem, {}, options, machine}, [](BlockSize) { return nullptr; }).front().plan;
}

TEST(Choose, TakesTheCpuFamilyUnlessAskedForTheReference) {
  const problem::AttentionProblem problem = Call().validate();
  device::Caps caps;
  caps.cores = 5;
  for (const BackendChoice wanted : {BackendChoice::automatic, BackendChoice::cpu}) {
    const plan::Plan plan = first_choice(problem, wanted, 0, caps);
    EXPECT_EQ(plan.family->backend, BackendChoice::cpu);
    EXPECT_EQ(plan.family->name, "cpu_forward");
    EXPECT_EQ(plan.threads, 5);
  }
  const plan::Plan reference = first_choice(problem, BackendChoice::reference, 3, caps);
  EXPECT_EQ(reference.family->backend, BackendChoice::reference);
  EXPECT_EQ(reference.family->name, "reference");
  EXPECT_EQ(reference.threads, 3);
  EXPECT_EQ(reference.workspace_bytes, 0);
}

TEST(Choose, DoesNotLetThreadsChangeTheTile) {
  const problem::AttentionProblem problem = Call().validate();
  device::Caps caps;
  caps.cores = 64;
  const BlockSize tile = first_choice(problem, BackendChoice::cpu, 1, caps).tile;
  for (const int threads : {0, 2, 7, 64}) {
    EXPECT_EQ(first_choice(problem, BackendChoice::cpu, threads, caps).tile, tile);
  }
}

plan::Plan chosen(const HopperCall& call, const Device& device, BackendChoice wanted, const device::Machine& machine) {
  problem::AttentionProblem problem = call.problem();
  problem.device = device;
  AttentionOptions options = call.all_options();
  options.backend = wanted;
  const AttentionTensors tensors = call.tensors();
  return plan::choose({problem, tensors, options, machine}, [&](BlockSize block) { return call.rows_of(block); })
      .front()
      .plan;
}

const Device kCpu{}, kCuda{DeviceKind::cuda, 0};
const device::Machine kNoGpu = {.cpu = {}, .cuda = {}, .cuda_missing = "libcuda.so.1 was not found"};

device::Machine machine_with(const device::CudaCaps& caps) { return {.cpu = {}, .cuda = {caps}, .cuda_missing = {}}; }

TEST(Choose, GoesByTheTensorsDevice) {
  const device::Machine machine = machine_with(h200());
  for (const BackendChoice wanted : {BackendChoice::automatic, BackendChoice::cuda}) {
    EXPECT_EQ(chosen({}, kCuda, wanted, machine).family->name, "forward_sm90");
  }
  EXPECT_EQ(chosen({}, kCpu, BackendChoice::automatic, machine).family->name, "cpu_forward");
  EXPECT_EQ(chosen({}, kCpu, BackendChoice::automatic, kNoGpu).family->name, "cpu_forward");
}

TEST(Choose, TakesTheDeviceOfThatIndex) {
  device::Machine machine = machine_with(h200());
  machine.cuda.push_back(h200());
  machine.cuda[1].index = 1;
  machine.cuda[1].multiprocessors = 78;
  const HopperCall call = {.q_heads = 32, .kv_heads = 32, .q_rows = 2048};
  for (const int index : {0, 1}) {
    const plan::Plan plan = chosen(call, {DeviceKind::cuda, index}, BackendChoice::automatic, machine);
    EXPECT_EQ(plan.device, index);
    EXPECT_EQ(plan.grid, index == 0 ? 132 : 78);
  }
  expect_error(
      [&] {
        chosen(call, {DeviceKind::cuda, 2}, BackendChoice::automatic, machine);
      },
      ErrorCode::unsupported, "q is on cuda:2; this machine has 2 CUDA devices");
}

TEST(Choose, NeverFallsBackToAnotherDevice) {
  device::Machine machine = machine_with(h200());
  machine.amd_missing = "HIP was not found";
  const auto expect_refusal = [](const Device& device, BackendChoice wanted, const device::Machine& on,
                                 const std::string& sentence) {
    expect_error([&] { chosen({}, device, wanted, on); }, ErrorCode::unsupported, sentence);
  };
  expect_refusal(kCuda, BackendChoice::cpu, machine, "q is on cuda:0; backend cpu takes tensors on the CPU");
  expect_refusal(kCuda, BackendChoice::reference, machine,
                 "q is on cuda:0; backend reference takes tensors on the CPU");
  expect_refusal(kCpu, BackendChoice::cuda, machine, "q is on the CPU; backend cuda takes tensors on a CUDA device");
  expect_refusal(
      kCpu, BackendChoice::cuda, kNoGpu,
      "q is on the CPU; backend cuda takes tensors on a CUDA device, and this machine has none: libcuda.so.1 "
      "was not found");
  expect_refusal(kCuda, BackendChoice::automatic, kNoGpu,
                 "q is on cuda:0, but this machine has no CUDA device: libcuda.so.1 was not found");
  expect_refusal({DeviceKind::rocm, 1}, BackendChoice::automatic, machine,
                 "q is on rocm:1, but this machine has no ROCm device: HIP was not found");
}

TEST(Choose, SaysWhyNoFamilyTakesTheProblem) {
  device::CudaCaps old = h200();
  old.major = 7;
  old.name = "NVIDIA V100";
  expect_error(
      [&] { chosen({}, kCuda, BackendChoice::automatic, machine_with(old)); }, ErrorCode::unsupported,
      "no kernel family of backend cuda computes this forward: forward_sm90: cuda:0 (NVIDIA V100) has compute "
      "capability 7.0; 9.0 is accepted; decode_mma: cuda:0 (NVIDIA V100) has compute capability 7.0; 8.0 and later "
      "are accepted; forward_mma: cuda:0 (NVIDIA V100) has compute capability 7.0; 8.0 and "
      "later are accepted");
  expect_error(
      [&] { chosen({.dim = 584}, kCuda, BackendChoice::automatic, machine_with(h200())); }, ErrorCode::unsupported,
      "no kernel family of backend cuda computes this forward: forward_sm90: q and k have head dimension 584; 1 "
      "to 256 are accepted; decode_mma: q and k have head dimension 584, and v 584; 1 to 256 are accepted, or up to "
      "576 "
      "where v is the first columns of k in the same memory, a multiple of 64 up to 512; forward_mma: q and k "
      "have head dimension 584; 1 to 576 are accepted");
}

// The first choice brings its mods and tiles, so that no later stage works them out again; with_schedule() makes the
// same.
TEST(Choose, ThePlanCarriesModsAndTiles) {
  HopperCall call = {.q_heads = 2, .kv_heads = 2, .q_rows = 1000, .kv_rows = 1000};
  call.options.mask_mod = mods::causal();
  call.options.score_mod = leaf::score() * 2.0;
  const problem::AttentionProblem problem = [&] {
    problem::AttentionProblem there = call.problem();
    there.device = kCuda;
    return there;
  }();
  const AttentionTensors tensors = call.tensors();
  const AttentionOptions options = call.all_options();
  const device::Machine machine = machine_with(h200());
  const plan::Request request = {problem, tensors, options, machine};
  const std::vector<plan::Choice> choices = plan::choose(request, [&](BlockSize block) { return call.rows_of(block); });
  ASSERT_GT(choices.size(), 1U);
  EXPECT_EQ(choices.front().plan.family->name, "forward_sm90");
  EXPECT_EQ(choices.back().plan.family->name, "forward_mma");
  for (const plan::Choice& choice : choices) {
    EXPECT_EQ(choice.plan.mods.factor, 2);
    EXPECT_THAT(choice.plan.forms.score, testing::StartsWith("plain: t = 2 * score"));
    EXPECT_NE(choice.plan.forms.mask, "");
    EXPECT_EQ(choice.plan.schedule != nullptr, &choice == &choices.front());
    const plan::Plan listed = plan::with_schedule(choice.plan, request, choice.block_mask.get());
    ASSERT_NE(listed.schedule, nullptr);
    if (choice.plan.family->name == "forward_sm90") {
      EXPECT_EQ(listed.schedule->grid, choice.plan.grid);
    }
  }
  plan::Plan without = choices.front().plan;
  without.schedule.reset();
  const plan::Plan again = plan::with_schedule(without, request, choices.front().block_mask.get());
  EXPECT_EQ(again.schedule->items.size(), choices.front().plan.schedule->items.size());
  EXPECT_EQ(again.schedule->ctas, choices.front().plan.schedule->ctas);
}

// A backward asks for families of its own.
TEST(Choose, FamiliesAreOfOnePass) {
  const auto family_of = [](const Device& device, const device::Machine& machine, DType dtype) {
    const HopperCall call = {.dtype = dtype};
    problem::AttentionProblem problem = call.problem();
    problem.pass = problem::Pass::backward;
    problem.wanted.q = true;
    problem.device = device;
    const AttentionTensors tensors = call.tensors();
    const BackwardTensors backward{
        .q = tensors.q, .k = tensors.k, .v = tensors.v, .o = tensors.o, .d_o = tensors.o, .dq = tensors.o};
    const AttentionOptions options = call.all_options();
    return plan::choose({problem, tensors, options, machine, &backward},
                        [&](BlockSize block) { return call.rows_of(block); })
        .front()
        .plan.family->name;
  };
  device::CudaCaps ampere = h200();
  ampere.major = 8;
  ampere.minor = 0;
  EXPECT_EQ(family_of(kCpu, kNoGpu, DType::bf16), "cpu_backward");
  EXPECT_EQ(family_of(kCuda, machine_with(h200()), DType::bf16), "backward_sm90");
  EXPECT_EQ(family_of(kCuda, machine_with(h200()), DType::f32), "backward_mma");
  EXPECT_EQ(family_of(kCuda, machine_with(ampere), DType::bf16), "backward_mma");
}

// A family whose time is not predicted stands behind, and says so; one that is predicted faster comes first.
TEST(Choose, FewQueriesGoWhereTheyArePredictedFaster) {
  const auto chosen_for = [](std::int64_t q_rows, std::int64_t kv_rows, std::int64_t kv_heads) {
    HopperCall call = {.q_heads = 4 * kv_heads, .kv_heads = kv_heads, .q_rows = q_rows, .kv_rows = kv_rows};
    return chosen(call, kCuda, BackendChoice::automatic, machine_with(h200()));
  };
  const plan::Plan one = chosen_for(1, 65536, 8);
  EXPECT_EQ(one.family->name, "decode_mma");
  EXPECT_THAT(one.rejected, testing::Contains(testing::StartsWith("forward_sm90: predicted ")));
  EXPECT_EQ(one.untried, "");
  EXPECT_EQ(chosen_for(1, 8192, 8).family->name, "decode_mma");
  EXPECT_EQ(chosen_for(1, 1024, 8).family->name, "decode_mma");
  EXPECT_EQ(chosen_for(33, 1024, 8).family->name, "forward_sm90");
  EXPECT_EQ(chosen_for(33, 65536, 1).family->name, "decode_mma");
  EXPECT_EQ(chosen_for(64, 8192, 8).family->name, "decode_mma");
  // If no times are predicted, more than 32 queries go to the other family.
  HopperCall few = {.batch = 2, .q_heads = 32, .kv_heads = 8, .q_rows = 33, .kv_rows = 8192};
  device::CudaCaps ampere = h200();
  ampere.major = 8;
  EXPECT_EQ(chosen(few, kCuda, BackendChoice::automatic, machine_with(ampere)).family->name, "forward_mma");
  few.q_rows = 32;
  EXPECT_EQ(chosen(few, kCuda, BackendChoice::automatic, machine_with(ampere)).family->name, "decode_mma");
  few.kv_dtype = DType::e4m3;
  const plan::Plan bytes = chosen(few, kCuda, BackendChoice::automatic, machine_with(h200()));
  EXPECT_EQ(bytes.family->name, "decode_mma");
  EXPECT_EQ(bytes.untried, "");
  const plan::Plan many = chosen_for(2000, 2000, 8);
  EXPECT_EQ(many.family->name, "forward_sm90");
  EXPECT_THAT(many.rejected, testing::Contains(testing::StartsWith("forward_mma: predicted ")));
}

// A time that is not predicted is no reason to go before.
TEST(Choose, ManyQueriesOnPagesAreNotPredictedForThePortableFamily) {
  const HopperCall call = {.batch = 2, .q_heads = 32, .kv_heads = 8, .q_rows = 2000, .kv_rows = 8192};
  problem::AttentionProblem problem = call.problem();
  problem.device = kCuda;
  problem.page_rows = 64;
  const AttentionTensors tensors = call.tensors();
  const AttentionOptions options = call.all_options();
  const auto choices = plan::choose({problem, tensors, options, machine_with(h200())},
                                    [&](BlockSize block) { return call.rows_of(block); });
  EXPECT_EQ(choices.front().plan.family->name, "forward_sm90");
  EXPECT_THAT(choices.front().plan.rejected,
              testing::Contains("forward_mma: its time is not predicted, so forward_sm90 goes before"));
}

// Pages of any size.
TEST(Choose, FewQueriesOnPages) {
  HopperCall call = {.batch = 16, .q_heads = 32, .kv_heads = 8, .q_rows = 1, .kv_rows = 8192};
  for (const std::int64_t page_rows : {1, 16, 64, 256, 8192}) {
    problem::AttentionProblem problem = call.problem();
    problem.device = kCuda;
    problem.page_rows = page_rows;
    problem.device_lengths = true;
    const AttentionTensors tensors = call.tensors();
    const AttentionOptions options = call.all_options();
    const auto choices = plan::choose({problem, tensors, options, machine_with(h200())},
                                      [&](BlockSize block) { return call.rows_of(block); });
    EXPECT_EQ(choices.front().plan.family->name, "decode_mma") << page_rows;
  }
}

// If none of a family's kernels fits, the next family takes the problem.
TEST(Choose, AFamilyWithoutAFittingKernelIsPassedOver) {
  HopperCall call = {.q_rows = 300, .kv_rows = 300, .mask = mods::causal()};
  const problem::AttentionProblem problem = call.problem();
  call.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::build(call.mask, {problem.q_heads, problem.sequences}, {64, 16}, {}));
  const plan::Plan plan = chosen(call, kCuda, BackendChoice::automatic, machine_with(h200()));
  EXPECT_EQ(plan.family->name, "forward_mma");
  EXPECT_THAT(plan.rejected,
              testing::Contains(testing::HasSubstr("keys do not divide the 16 of a block of block_mask")));
}

// Every chip has a family, and what has not run on it is said.
TEST(Choose, NoGpuIsRefused) {
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    const device::Machine machine = machine_with(gpu.caps);
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      const plan::Plan plan = chosen({.dtype = dtype, .with_lse = false}, kCuda, BackendChoice::automatic, machine);
      EXPECT_EQ(plan.family->name == "forward_sm90", gpu.caps.major == 9 && size_of(dtype) == 2) << gpu.name;
      EXPECT_EQ(plan.untried.empty(), gpu.caps.major == 9) << plan.untried;
    }
  }
}

/// With batch_invariant.
plan::Plan invariant(HopperCall call, const device::Machine& machine) {
  call.options.batch_invariant = true;
  return chosen(call, kCuda, BackendChoice::automatic, machine);
}

// One family for few queries and one for many, by the table's order: times depend on the batch.
TEST(Choose, ForAnyBatchAlike) {
  const device::Machine machine = machine_with(h200());
  for (const std::int64_t batch : {1, 4, 300}) {
    for (const std::int64_t keys : {64, 1 << 17}) {
      const plan::Plan few =
          invariant({.batch = batch, .q_heads = 32, .kv_heads = 8, .q_rows = 1, .kv_rows = keys}, machine);
      EXPECT_EQ(few.family->name, "decode_mma");
      EXPECT_THAT(few.rejected, testing::Contains("forward_sm90: with batch_invariant decode_mma goes before, whatever "
                                                  "the batch"));
      const plan::Plan many =
          invariant({.batch = batch, .q_heads = 32, .kv_heads = 8, .q_rows = 300, .kv_rows = keys}, machine);
      EXPECT_EQ(many.family->name, "forward_sm90");
      EXPECT_EQ(many.packed_heads, 0);
      EXPECT_EQ(many.tile, invariant({.q_heads = 32, .kv_heads = 8, .q_rows = 65, .kv_rows = 65}, machine).tile);
    }
  }
  EXPECT_EQ(invariant({.q_rows = 1, .dtype = DType::f32}, machine).family->name, "forward_mma");
}

// Tiles of the CPU are as large for one sequence as for many.
TEST(Choose, TilesOfTheCpuForAnyBatchAlike) {
  device::Machine machine = kNoGpu;
  machine.cpu.cores = 64;
  const auto tile = [&](std::int64_t batch, bool batch_invariant) {
    HopperCall call = {.batch = batch, .q_heads = 8, .kv_heads = 8, .q_rows = 150, .kv_rows = 300, .dim = 64};
    call.options.batch_invariant = batch_invariant;
    return chosen(call, kCpu, BackendChoice::automatic, machine).tile;
  };
  EXPECT_NE(tile(1, false), tile(300, false));
  EXPECT_EQ(tile(1, true), tile(300, true));
}

// CTAs that share a tile's steps are as many for any number of tiles.
TEST(Choose, SplitsForAnyBatchAlike) {
  const device::Machine machine = machine_with(h200());
  const auto splits = [&](std::int64_t batch, std::int64_t queries, const Expr& mask) {
    HopperCall call = {.batch = batch,
                       .q_heads = 8,
                       .kv_heads = 8,
                       .q_rows = queries,
                       .kv_rows = 4096,
                       .mask = mask,
                       .dtype = DType::f32};
    return invariant(call, machine).part<shared::ForwardMmaConfig>().splits;
  };
  for (const std::int64_t batch : {1, 40}) {
    for (const std::int64_t queries : {1, 5, 16}) EXPECT_EQ(splits(batch, queries, {}), 8) << queries;
    EXPECT_EQ(splits(batch, 17, {}), 1);
    EXPECT_EQ(splits(batch, 1, leaf::kv_idx() <= leaf::q_idx() + 4000), 1);
  }
}

}  // namespace
}  // namespace heddle::test
