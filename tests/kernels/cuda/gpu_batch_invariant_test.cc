// AttentionOptions::batch_invariant on a GPU: a sequence's bits are the same alone and in any batch, with lengths from
// the host and on the device, in a graph that is replayed while the others' lengths change.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "engine/batch_of_sequences.h"
#include "heddle/mods.h"
#include "kernels/cuda/gpu_case.h"
#include "kernels/cuda/gpu_runs.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

/// The planner chooses the family.
class GpuBatchInvariant : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = gpu_missing(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

void compute(const AttentionTensors& tensors, const AttentionOptions& options) {
  AttentionOptions there = options;
  there.backend = gpu_backend();
  attention_into(tensors, there);
}

/// On the device under test.
InvarianceTest there(InvarianceTest test, bool lengths_there) {
  if (gpu_backend() == BackendChoice::cuda) test.spec.device = {DeviceKind::cuda, 0};
  test.spec.lengths_on_gpu = lengths_there;
  test.spec.kv_heads = test.spec.values_in_keys ? 1 : 8;
  test.spec.group = test.spec.values_in_keys ? 16 : 4;
  if (!test.spec.values_in_keys) test.spec.qk_dim = test.spec.v_dim = 128;
  test.batches = 12;
  return test;
}
void expect_invariant_there(const InvarianceTest& test) {
  for (const bool lengths_there : {false, true}) {
    SCOPED_TRACE(lengths_there);
    expect_invariant(there(test, lengths_there), compute);
  }
}

TEST_F(GpuBatchInvariant, OneQuery) { expect_invariant_there({.keys = 9000, .seed = 1}); }
TEST_F(GpuBatchInvariant, SomeQueries) {
  InvarianceTest test = {.queries = 40, .keys = 3000, .seed = 2};
  test.spec.mask = mods::causal();
  expect_invariant_there(test);
}
TEST_F(GpuBatchInvariant, Bytes) {
  InvarianceTest test = {.keys = 5000, .seed = 3};
  test.spec.kv_dtype = DType::e4m3;
  expect_invariant_there(test);
}
TEST_F(GpuBatchInvariant, ValuesInKeys) {
  InvarianceTest test = {.keys = 5000, .seed = 4};
  test.spec.values_in_keys = true;
  test.spec.qk_dim = 576;
  test.spec.v_dim = 512;
  expect_invariant_there(test);
}
TEST_F(GpuBatchInvariant, WindowsAndSlopes) {
  InvarianceTest test = {.keys = 6000, .seed = 5};
  test.spec.mask = leaf::q_idx() - leaf::kv_idx() < 1000 || leaf::kv_idx() < 4;
  test.spec.score = leaf::score() - 0.01 * (leaf::q_idx() - leaf::kv_idx());
  expect_invariant_there(test);
}
// Prefill: each tile is one CTA's.
TEST_F(GpuBatchInvariant, ManyQueries) {
  InvarianceTest test = {.queries = 700, .keys = 1500, .seed = 6};
  test.spec.mask = mods::causal();
  expect_invariant_there(test);
}
TEST_F(GpuBatchInvariant, F32) {
  InvarianceTest test = {.keys = 2000, .seed = 7};
  test.spec.q_dtype = test.spec.kv_dtype = DType::f32;
  expect_invariant_there(test);
}
// By tensor cores on compute capabilities 8.0 and 9.0.
TEST_F(GpuBatchInvariant, F64) {
  InvarianceTest test = {.keys = 2000, .seed = 8};
  test.spec.q_dtype = test.spec.kv_dtype = DType::f64;
  expect_invariant_there(test);
}

// One graph: the first sequence keeps its bits while the lengths of all others change.
TEST_F(GpuBatchInvariant, OneGraphForAnyLengths) {
  if (gpu_backend() != BackendChoice::cuda) GTEST_SKIP() << "no graphs on the CPU";
  SequencesSpec spec = there({}, true).spec;
  std::vector<OwnSequence> sequences = {{.seed = 1, .kv_len = 5000}};
  for (std::uint64_t i = 2; i < 14; ++i) sequences.push_back({.seed = i, .kv_len = 7000});
  const BatchOfSequences alone(spec, {sequences.front()}, {}), batch(spec, sequences, {.page_rows = 16});
  compute(alone.tensors(), alone.options());
  const auto bits = alone.bits_of(0);

  Numbers<std::int32_t> lengths({std::ssize(sequences)});
  AttentionOptions options = batch.options();
  options.kv_lengths = lengths.view();
  const AttentionPlan plan(batch.tensors(), options);
  const Tensor workspace = Tensor::empty_on(spec.device, DType::u8, Dims{plan.workspace_bytes() + 1});
  const cuda::ContextScope scope(0);
  const Stream stream;
  const cuda::Driver& cu = cuda::driver();
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec executable = nullptr;
  cuda::check(cu.StreamBeginCapture(stream.handle(), cuda::CUstreamCaptureMode::global), "beginning a capture");
  plan.run(batch.tensors(), {.workspace = workspace.data(), .stream = stream.handle()});
  cuda::check(cu.StreamEndCapture(stream.handle(), &graph), "ending a capture");
  cuda::check(cu.GraphInstantiate(&executable, graph, 0), "making a graph");
  for (int round = 0; round < 20; ++round) {
    std::vector<std::int32_t> now = {5000};
    for (std::size_t i = 1; i < sequences.size(); ++i) {
      now.push_back(static_cast<std::int32_t>((i * 7919 + static_cast<std::size_t>(round) * 104729) % 7001));
    }
    lengths.set(now);
    cuda::check(cu.GraphLaunch(executable, stream.handle()), "launching a graph");
    stream.wait();
    EXPECT_TRUE(batch.bits_of(0) == bits) << "replay " << round;
  }
  cu.GraphExecDestroy(executable);
  cu.GraphDestroy(graph);
}

}  // namespace
}  // namespace heddle::test
