// The portable forward on AMD's chips through the whole library, from a plan to results: hipRTC's text compiled by
// clang, the code object executed by the simulator, judged by the one criterion. Nothing may be wrong with a launch: no
// missing wait, race, access out of bounds, undefined value or duplicate store.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "backend/amd/launch/fake_device.h"
#include "kernels/cuda/gpu_case.h"
#include "kernels/portable/specs.h"

namespace heddle::amd {
namespace {

using test::CaseSpec;
using test::GpuCase;

class AmdForward : public FakeDeviceTest {};

CaseSpec spec_of(std::uint64_t seed, std::int64_t q_rows, std::int64_t kv_rows, std::int64_t dim) {
  CaseSpec spec;
  spec.seed = seed;
  spec.q_rows = q_rows;
  spec.kv_rows = kv_rows;
  spec.qk_dim = spec.v_dim = dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = seed % 2 == 0 ? DType::bf16 : DType::f16;
  spec.threads = 1;
  return spec;
}

void run_and_judge(const CaseSpec& spec) {
  SCOPED_TRACE(spec.text());
  GpuCase c(spec);
  ASSERT_TRUE(c.run());
  judge(c.host());
  EXPECT_EQ(take_findings(), "");
}

TEST_F(AmdForward, IsRightWithoutMods) {
  run_and_judge(spec_of(1, 65, 70, 64));
  CaseSpec grouped = spec_of(2, 70, 33, 100);
  grouped.group = 2;
  grouped.v_dim = 40;
  grouped.layout = test::Layout::bshd;
  run_and_judge(grouped);
}

TEST_F(AmdForward, AppliesMods) {
  CaseSpec spec = spec_of(11, 70, 90, 64);
  spec.score = "alibi";
  spec.mask = "causal";
  run_and_judge(spec);
  spec = spec_of(12, 40, 130, 32);
  spec.score = "softcap";
  spec.weight = "dropout";
  run_and_judge(spec);
  spec = spec_of(13, 66, 80, 64);
  spec.mask = "documents";
  spec.score = "full_bias";
  spec.sinks = "mixed";
  run_and_judge(spec);
}

// Granules of a longer sequence: waves look up where their queries are, and where the keys of each step.
TEST_F(AmdForward, LooksUpGranules) {
  CaseSpec spec = spec_of(14, 130, 200, 64);
  spec.granule = 64;
  spec.score = "alibi";
  spec.mask = "causal";
  run_and_judge(spec);
}

TEST_F(AmdForward, MultipliesWideTypesPlainly) {
  CaseSpec spec = spec_of(21, 33, 40, 39);  // of rows whose last 16 bytes are not all the tensor's
  spec.layout = test::Layout::padded;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f32;
  spec.mask = "causal";
  run_and_judge(spec);
  spec = spec_of(22, 20, 40, 16);
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f64;
  run_and_judge(spec);
}

// Values of more columns than a thread has sums for come in slices, and where 64 rows of queries have no room in LDS
// tiles have fewer.
TEST_F(AmdForward, ReadsWideHeads) {
  struct Wide {
    DType dtype;
    std::int64_t q_rows, qk_dim, v_dim;
  };
  std::uint64_t seed = 26;
  for (const Wide& wide : {Wide{DType::bf16, 33, 512, 512},
                           {DType::f16, 2, 300, 257},
                           {DType::f32, 17, 256, 256},
                           {DType::f64, 5, 128, 130}}) {
    CaseSpec spec = spec_of(seed++, wide.q_rows, 20, wide.qk_dim);
    spec.v_dim = wide.v_dim;
    spec.kv_heads = spec.batch = 1;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = wide.dtype;
    spec.mask = "causal";
    run_and_judge(spec);
  }
}

// They become f16 as they are loaded: of rows that their 8 columns divide, and of rows at odd addresses.
TEST_F(AmdForward, ReadsElementsOf8Bits) {
  CaseSpec spec = spec_of(24, 50, 70, 64);
  spec.k_dtype = DType::e4m3, spec.v_dtype = DType::e5m2;
  spec.group = 2;
  spec.descale = true;
  spec.mask = "causal";
  run_and_judge(spec);
  spec = spec_of(25, 3, 90, 43);
  spec.q_dtype = DType::e5m2, spec.k_dtype = spec.v_dtype = DType::e4m3;
  spec.layout = test::Layout::padded;
  spec.descale = true;
  spec.score = "alibi";
  run_and_judge(spec);
}

// Every function of a real, in f32 and in f64.
TEST_F(AmdForward, AppliesFunctions) {
  const Expr s = leaf::score(), near = s * 0.25, above = abs(s) + 0.5;
  const Expr powers = exp(-above) + exp2(near) + expm1(near) + pow(above, 0.3) + sigmoid(s);
  const Expr logarithms = log(above) + log2(above) + log1p(above) + rsqrt(above) + sqrt(above);
  const Expr angles = sin(s) + cos(s) + tan(near) + atan(s);
  const Expr others = erf(s) + erfc(near) + 0.1 * tanh(s + s * s) + above % 0.7;
  for (const DType dtype : {DType::f32, DType::f64}) {
    CaseSpec spec = spec_of(24, 3, 20, 16);  // few queries: small tiles
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
    GpuCase c(spec);
    c.options().score_mod = powers + logarithms + angles + others;
    ASSERT_TRUE(c.run());
    judge(c.host());
    EXPECT_EQ(take_findings(), "");
  }
}

// Their functions are the library's own (kernels/amd/language/f64_functions.cuh).
TEST_F(AmdForward, AppliesModsOfF64) {
  CaseSpec spec = spec_of(23, 20, 40, 16);
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f64;
  spec.score = "softcap";
  spec.mask = "causal";
  run_and_judge(spec);
  spec.score = "relative_bias";
  spec.weight = "dropout";
  run_and_judge(spec);
}

// Few queries: heads share a tile, several workgroups its keys, which the last one merges.
TEST_F(AmdForward, SplitsTheKeysOfFewQueries) {
  CaseSpec spec = spec_of(31, 2, 400, 64);
  spec.group = 4;
  spec.page_rows = 16;
  spec.sequences = "lengths";
  run_and_judge(spec);
}

TEST_F(AmdForward, ReadsSequencesWhereTheyAre) {
  CaseSpec spec = spec_of(41, 50, 60, 32);
  spec.batch = 3;
  spec.sequences = "packed";
  spec.q_start = "ahead";
  spec.kv_start = "ahead";
  spec.mask = "causal";
  run_and_judge(spec);
  spec = spec_of(42, 50, 60, 32);
  spec.batch = 3;
  spec.sequences = "lengths";
  spec.device_lengths = true;
  run_and_judge(spec);
}

// Packed keys of which not all count, with NaN behind them: lengths of the host, and of the device.
TEST_F(AmdForward, ReadsTheKeysThatCount) {
  for (const bool device_lengths : {false, true}) {
    CaseSpec spec = spec_of(43, 50, 60, 32);
    spec.batch = 3;
    spec.sequences = "slots";
    spec.mask = "causal_lower_right";
    spec.device_lengths = device_lengths;
    run_and_judge(spec);
  }
}

TEST_F(AmdForward, NormalizesOtherwise) {
  CaseSpec spec = spec_of(51, 30, 60, 64);
  spec.normalizer = Normalizer::sigmoid;
  run_and_judge(spec);
  spec = spec_of(53, 30, 60, 64);
  spec.normalizer = Normalizer::none;
  spec.weight = "dropout";
  run_and_judge(spec);
}

// HEDDLE_TEST_FULL: a grid as that of the host. Few cases of it may have no kernel: f32 at head dims above 128 has no
// room in LDS, and 16 bits at 256 not always the registers. HEDDLE_TEST_CASE: one of the cases.
TEST_F(AmdForward, Grid) {
  if (std::getenv("HEDDLE_TEST_FULL") == nullptr) GTEST_SKIP() << "a part of HEDDLE_TEST_FULL";
  const char* const only = std::getenv("HEDDLE_TEST_CASE");
  test::PortableSpecs source(710'000, 20'000, {DType::bf16, DType::f16, DType::f32});
  int left_out = 0;
  for (int i = 0; i < 60; ++i) {
    const CaseSpec spec = source.draw();
    if (only != nullptr && std::to_string(spec.seed) != only) continue;
    SCOPED_TRACE(spec.text());
    GpuCase c(spec);
    if (c.run()) {
      judge(c.host());
    } else {
      ++left_out;
      EXPECT_TRUE(std::max(spec.qk_dim, spec.v_dim) > 128);
    }
    EXPECT_EQ(take_findings(), "");
  }
  EXPECT_LE(left_out, 6);
}

// One kernel serves as a graph does: what is recorded on a stream runs again, with the content of then.
TEST_F(AmdForward, IsRecordedByAGraph) {
  CaseSpec spec = spec_of(61, 3, 300, 64);
  spec.group = 2;
  GpuCase c(spec);
  const AttentionPlan plan(c.tensors(), c.options_there());
  void* stream = nullptr;
  ASSERT_EQ(fake_hip<int(void**, unsigned)>("hipStreamCreateWithFlags")(&stream, 1), 0);
  c.upload();
  const auto before = launches();
  fake_hip<void(void*)>("fake_hip_capture")(stream);
  plan.run(c.tensors(), {.workspace = c.workspace(plan.workspace_bytes()), .stream = stream});
  fake_hip<void(void*)>("fake_hip_capture")(nullptr);
  EXPECT_EQ(launches(), before);
  for (int i = 0; i < 2; ++i) {
    c.upload();
    fake_hip<void()>("fake_hip_replay")();
    c.download();
    judge(c.host());
  }
  EXPECT_EQ(launches(), before + 2);
}

}  // namespace
}  // namespace heddle::amd
