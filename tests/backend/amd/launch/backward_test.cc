// The portable backward on AMD's chips through the whole library, as forward_test.cc has the forward: text compiled by
// clang, the code object executed by the simulator, judged by the one criterion.
#include <gtest/gtest.h>

#include "backend/amd/launch/fake_device.h"
#include "kernels/cuda/backward_capture_specs.h"
#include "kernels/cuda/gpu_backward_case.h"
#include "scoped_environment.h"

namespace heddle::amd {
namespace {

using test::BackwardSpecs;

class AmdBackward : public FakeDeviceTest {
  const ScopedVariable family_{"HEDDLE_FAMILY", "backward_mma"};
};

BackwardSpecs backward_of(std::int64_t q_rows, std::int64_t kv_rows, std::int64_t dim) {
  return {test::backward_spec(q_rows, kv_rows, dim), test::rows_wanted("all")};
}

TEST_F(AmdBackward, IsRightWithoutMods) {
  BackwardSpecs at = backward_of(70, 90, 64);
  at.spec.group = 2;
  at.spec.v_dim = 40;
  test::GpuBackwardCase(at).run_and_judge();
}

TEST_F(AmdBackward, AppliesModsToSequences) {
  BackwardSpecs at = backward_of(50, 70, 32);
  at.spec.q_dtype = at.spec.k_dtype = at.spec.v_dtype = DType::f16;
  at.spec.batch = 2;
  at.spec.sequences = "packed";
  at.spec.mask = "causal";
  at.spec.score = "softcap";
  at.spec.weight = "dropout";
  at.spec.sinks = "mixed";
  test::GpuBackwardCase(at).run_and_judge();
}

// Granules of a longer sequence, and gradients of what positions read.
TEST_F(AmdBackward, LooksUpGranules) {
  BackwardSpecs at = {test::captured("temperature_and_gate", "", 32, "all")};
  at.spec.q_rows = 70;
  at.spec.kv_rows = 130;
  at.spec.batch = 1;
  at.spec.granule = 64;
  test::GpuBackwardCase(at).run_and_judge();
}

TEST_F(AmdBackward, SumsGradientsOfCaptures) {
  for (const char* score : {"temperature_and_gate", "relative_bias"}) {
    BackwardSpecs at = {test::captured(score, "", 32, "all")};
    at.spec.q_rows = 50;
    at.spec.kv_rows = 70;
    at.spec.batch = 1;
    test::GpuBackwardCase(at).run_and_judge();
  }
}

// Sums are integers, so both runs have the same bits.
TEST_F(AmdBackward, SumsGradientsOfCapturesInOrder) {
  BackwardSpecs at = {test::captured("relative_bias", "", 32, "all")};
  at.spec.q_rows = 50;
  at.spec.kv_rows = 70;
  at.spec.batch = 1;
  at.backward.deterministic = true;
  test::GpuBackwardCase(at).run_and_judge();
}

TEST_F(AmdBackward, SumsWhatServesAllSequences) {
  BackwardSpecs at = backward_of(50, 70, 32);
  at.spec.batch = 2;
  at.spec.share_kv_batch = true;
  at.spec.sequences = "lengths";
  at.spec.mask = "causal";
  test::GpuBackwardCase(at).run_and_judge();
}

TEST_F(AmdBackward, CopiesTensorsOf8Bits) {
  BackwardSpecs at = backward_of(50, 70, 33);
  at.spec.group = 2;
  at.spec.k_dtype = at.spec.v_dtype = DType::e4m3;
  at.spec.descale = true;
  at.spec.mask = "causal";
  test::GpuBackwardCase(at).run_and_judge();
}

TEST_F(AmdBackward, DifferentiatesF64) {
  for (const char* score : {"softcap", "temperature_and_gate"}) {
    BackwardSpecs at = {test::captured(score, "", 32, "all")};
    at.spec.q_dtype = at.spec.k_dtype = at.spec.v_dtype = DType::f64;
    at.spec.q_rows = 30;
    at.spec.kv_rows = 40;
    at.spec.batch = 1;
    test::GpuBackwardCase(at).run_and_judge();
  }
}

// Packed keys of which not all count: NaN stands behind them, and their gradients are zero.
TEST_F(AmdBackward, LeavesTheKeysThatDoNotCount) {
  BackwardSpecs at = backward_of(50, 70, 32);
  at.spec.batch = 2;
  at.spec.sequences = "slots";
  at.spec.mask = "causal_lower_right";
  at.spec.device_lengths = true;
  test::GpuBackwardCase(at).run_and_judge();
}

}  // namespace
}  // namespace heddle::amd
