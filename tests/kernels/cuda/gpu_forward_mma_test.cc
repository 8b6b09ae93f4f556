// The portable forward on sm_90, which the planner takes only where HEDDLE_FAMILY names it: every storage type, few
// queries whose keys several CTAs share, against the reference by the one criterion.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/deck.h"
#include "engine/split_specs.h"
#include "kernels/cuda/gpu_test.h"
#include "kernels/portable/specs.h"

namespace heddle::test {
namespace {

class GpuForwardMma : public GpuTest {
 private:
  ScopedVariable family_{"HEDDLE_FAMILY", "forward_mma"};
};

template <class Specs>
std::vector<CaseSpec> drawn(int count, Specs& source) {
  std::vector<CaseSpec> specs;
  while (std::ssize(specs) < (reduced() ? count / 10 : count)) {
    const CaseSpec spec = source.draw();
    if (fits(spec)) specs.push_back(spec);
  }
  return specs;
}

void run_and_judge_all(const std::vector<CaseSpec>& specs) {
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

TEST_F(GpuForwardMma, Grid) {
  PortableSpecs source(610'000, 200'000, {DType::bf16, DType::bf16, DType::f16});
  run_and_judge_all(drawn(120, source));
}

// Queries and keys of two tensors each.
TEST_F(GpuForwardMma, RowsOfTwoTensors) {
  SplitSpecs<PortableSpecs> source(615'000, PortableSpecs(615'000, 200'000, {DType::bf16, DType::f16, DType::f32}));
  run_and_judge_all(drawn(120, source));
}

// Positions by granules, which waves and steps look up; granules of 96 rows are looked up by mods.
TEST_F(GpuForwardMma, Granules) {
  PortableSpecs source(617'000, 200'000, {DType::bf16, DType::f16, DType::f32});
  Deck<std::int64_t> granule({64, 128, 192, 96}, 617);
  Deck<std::string> score({"", "alibi", "t5_bias", "softcap", "padded"}, 618), weight({"", "", "dropout"}, 619);
  std::vector<CaseSpec> specs = drawn(120, source);
  for (CaseSpec& spec : specs) {
    spec.granule = granule.deal();
    spec.score = score.deal();  // whose captures have all positions
    spec.weight = weight.deal();
    if (spec.score == "padded") spec.normalizer = Normalizer::softmax;  // some of its terms are near the lowest number
    spec.q_start = spec.kv_start = "none";
  }
  run_and_judge_all(specs);
}

// Multiplied as they are, by fused multiply-adds.
TEST_F(GpuForwardMma, WideTypes) {
  PortableSpecs source(620'000, 200'000, {DType::f32, DType::f32, DType::f64});
  std::vector<CaseSpec> specs = drawn(80, source);
  for (CaseSpec& spec : specs) {
    // A row of o may err by what its own sum may: without a normalizer the scores' errors are most of it, in f64 all.
    if (spec.q_dtype == DType::f64 && spec.normalizer == Normalizer::none) spec.normalizer = Normalizer::sigmoid;
  }
  run_and_judge_all(specs);
}

// Values of more columns than a thread's registers have sums for: two launches, of a slice each.
TEST_F(GpuForwardMma, Slices) {
  Deck<PortableDims> dims({{512, 512}, {576, 512}, {320, 320}, {64, 300}, {512, 257}, {257, 511}, {300, 64}}, 1),
      dims_of_f64({{256, 256}, {160, 160}, {64, 129}, {200, 255}}, 2);
  PortableSpecs source(660'000, 150'000, {DType::bf16, DType::f16, DType::f32, DType::f64});
  std::vector<CaseSpec> specs = drawn(80, source);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    CaseSpec& spec = specs[i];
    const PortableDims drawn_dims = spec.q_dtype == DType::f64 ? dims_of_f64.deal() : dims.deal();
    spec.qk_dim = drawn_dims.qk;
    spec.v_dim = drawn_dims.v;
    if (i % 4 == 3) spec.q_rows = 1 + static_cast<std::int64_t>(i / 4 % 5), spec.kv_rows = 700;
    if (spec.q_dtype == DType::f64 && spec.normalizer == Normalizer::none) spec.normalizer = Normalizer::sigmoid;
  }
  run_and_judge_all(specs);
}

// Mods whose reals are f64, among them those of few queries.
TEST_F(GpuForwardMma, ModsOfF64) {
  PortableSpecs source(650'000, 150'000, {DType::f64});
  std::vector<CaseSpec> specs = drawn(80, source);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    CaseSpec& spec = specs[i];
    if (i % 4 == 3) spec.q_rows = 1 + static_cast<std::int64_t>(i / 4 % 5), spec.kv_rows = 700;
    if (spec.normalizer == Normalizer::none) spec.normalizer = Normalizer::sigmoid;
  }
  run_and_judge_all(specs);
}

// So few that several CTAs share a tile's keys, and query heads a tile.
TEST_F(GpuForwardMma, FewQueries) {
  PortableSpecs source(630'000, 200'000, {DType::bf16, DType::f16, DType::f32});
  Deck<std::int64_t> q_rows({1, 1, 2, 3, 5, 16, 31}, 71), kv_rows({1, 60, 500, 1000, 2100}, 72),
      group({1, 2, 4, 7, 8, 20, 71}, 73);
  std::vector<CaseSpec> specs = drawn(80, source);
  for (CaseSpec& spec : specs) {
    spec.q_rows = q_rows.deal();
    spec.kv_rows = kv_rows.deal();
    spec.group = spec.q_rows > 2 ? std::min<std::int64_t>(group.deal(), 8) : group.deal();
    spec.batch = 1;
    spec.share_q_batch = spec.share_kv_batch = false;
    // Few keys do not tell whether what CTAs share is merged.
    if (spec.page_rows == 1) spec.page_rows = 16;
  }
  run_and_judge_all(specs);
}

// Keys and values of 8 bits, beside queries of 16 bits or of 8. Every fourth case has few queries, every seventh
// slices.
TEST_F(GpuForwardMma, Bytes) {
  BytesSpecs<PortableSpecs> source(670'000, 200'000, std::vector{DType::bf16});
  std::vector<CaseSpec> specs = drawn(160, source);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    CaseSpec& spec = specs[i];
    if (i % 4 == 3) spec.q_rows = 1 + static_cast<std::int64_t>(i / 4 % 5), spec.kv_rows = 700;
    if (i % 7 == 6) spec.qk_dim = i % 2 == 0 ? 512 : 300, spec.v_dim = i % 3 == 0 ? 512 : 328;
  }
  run_and_judge_all(specs);
}

// Lists in blocks of fewer than 64 queries: tiles of as many rows.
TEST_F(GpuForwardMma, SmallBlocks) {
  std::vector<CaseSpec> specs;
  for (const BlockSize block : {BlockSize{16, 16}, BlockSize{32, 64}, BlockSize{48, 32}, BlockSize{96, 64}}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
      for (const std::int64_t dim : {64, 128}) {
        CaseSpec spec;
        spec.seed = 680'000 + specs.size();
        spec.kv_heads = 2;
        spec.group = specs.size() % 3 == 0 ? 4 : 1;
        spec.q_rows = 300;
        spec.kv_rows = 400;
        spec.qk_dim = spec.v_dim = dim;
        spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
        spec.mask = specs.size() % 2 == 0 ? "causal_lower_right" : "";
        spec.rows = "lists";
        spec.block = block;
        specs.push_back(spec);
      }
    }
  }
  run_and_judge_all(specs);
}

// Parts of tiles are merged in one order: a run gives the bits of the run before.
TEST_F(GpuForwardMma, GivesTheSameBitsEachTime) {
  PortableSpecs source(640'000, 100'000, {DType::bf16, DType::f32});
  std::vector<CaseSpec> specs = drawn(20, source);
  for (CaseSpec& spec : specs) {
    spec.q_rows = 3;
    spec.kv_rows = 3000;
  }
  for_each_spec(specs, [](const CaseSpec& spec) {
    GpuCase c(spec);
    if (!c.run()) return;
    const auto once = outputs_of(c.host());
    c.run();
    EXPECT_EQ(outputs_of(c.host()), once);
  });
}

}  // namespace
}  // namespace heddle::test
