// Granules of a longer sequence in the portable kernels, on the host: waves and steps look up one position, and mods
// read all others from there. By default a few of the cases are drawn; HEDDLE_TEST_FULL runs all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/backward_capture_specs.h"
#include "kernels/portable/host_backward.h"
#include "kernels/portable/host_kernel.h"
#include "problem/problem.h"
#include "sample.h"

namespace heddle::test {
namespace {

using shared::FragmentKind;

struct Mods {
  const char *mask, *score, *weight;
};
constexpr Mods kMods[] = {{"causal", "alibi", ""},
                          {"sliding_window", "t5_bias", "dropout"},
                          {"documents", "softcap", ""},
                          {"", "padded", "weights_by_key"},
                          {"tree", "", ""}};

void set_types(CaseSpec& spec, FragmentKind fragments) {
  const bool of_f32 = fragments == FragmentKind::outer || fragments == FragmentKind::tf32;
  const bool of_f64 = fragments == FragmentKind::fma || fragments == FragmentKind::dmma;
  const DType dtype = of_f32 ? DType::f32 : of_f64 ? DType::f64 : DType::bf16;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  spec.allow_tf32 = fragments == FragmentKind::tf32;
}

/// Several tiles, waves whose rows other granules have, ends inside of granules.
CaseSpec forward_spec(const Mods& mods, const std::string& sequences, FragmentKind fragments, std::uint64_t number) {
  CaseSpec spec;
  spec.seed = 900 + number;
  spec.threads = 1;
  spec.batch = sequences == "whole" ? 1 : 3;
  spec.kv_heads = 1;
  spec.group = 2;
  spec.q_rows = 200;
  spec.kv_rows = 330;
  spec.qk_dim = spec.v_dim = number % 2 == 0 ? 64 : 40;
  set_types(spec, fragments);
  spec.granule = std::vector<std::int64_t>{64, 128, 192}[(number + number / 3) % 3];
  spec.sequences = sequences;
  spec.mask = mods.mask;
  spec.score = mods.score;
  spec.weight = mods.weight;
  return spec;
}

/// All mods over each kind of sequences; of an architecture's fragments over one of them in turns.
std::vector<CaseSpec> forward_specs(FragmentKind fragments) {
  std::vector<CaseSpec> specs;
  std::uint64_t number = 0;
  for (const Mods& mods : kMods) {
    for (const char* sequences : {"whole", "lengths", "packed"}) {
      // Numbers of packed keys are read by kv_token, which no granule has.
      const bool reads_tokens = sequences == std::string("packed") && mods.weight == std::string("weights_by_key");
      ++number;
      if (reads_tokens || (fragments != FragmentKind::host && number % 4 != 1)) continue;
      specs.push_back(forward_spec(mods, sequences, fragments, number));
    }
  }
  return specs;
}

void run_forward(FragmentKind fragments, std::vector<CaseSpec> specs) {
  const auto number = static_cast<std::uint64_t>(fragments);
  if (!is_drawn(number, 3)) GTEST_SKIP() << "not drawn";
  const std::size_t drawn = drawn_case(number, specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!takes_all() && i != drawn) continue;
    AttentionCase c(specs[i]);
    const HostRun run = {.fragments = fragments, .candidate = static_cast<int>(drawn_case(100 + i, 4))};
    SCOPED_TRACE(specs[i].text());
    const std::string name = run_on_host(c, run);
    SCOPED_TRACE(name);
    judge(c);
    // Ragged lengths may leave no pair of a query and a key.
    const bool has_pairs = problem::has_elements(problem::validate(c.tensors(), c.options()));
    EXPECT_EQ(name.find(" placed ") != std::string::npos, has_pairs);
  }
}

TEST(GranulesOnHost, Forward) { run_forward(FragmentKind::host, forward_specs(FragmentKind::host)); }
TEST(GranulesOnHost, ForwardOverMma) { run_forward(FragmentKind::mma, forward_specs(FragmentKind::mma)); }
TEST(GranulesOnHost, ForwardOverFma) { run_forward(FragmentKind::fma, forward_specs(FragmentKind::fma)); }
TEST(GranulesOnHost, ForwardOverDmma) { run_forward(FragmentKind::dmma, forward_specs(FragmentKind::dmma)); }
TEST(GranulesOnHost, ForwardOverOuter) { run_forward(FragmentKind::outer, forward_specs(FragmentKind::outer)); }
TEST(GranulesOnHost, ForwardOverTf32) { run_forward(FragmentKind::tf32, forward_specs(FragmentKind::tf32)); }
TEST(GranulesOnHost, ForwardOverGfx11) { run_forward(FragmentKind::gfx11, forward_specs(FragmentKind::gfx11)); }
TEST(GranulesOnHost, ForwardOverGfx9) { run_forward(FragmentKind::gfx9, forward_specs(FragmentKind::gfx9)); }

/// Few queries of several heads share a tile, and waves the keys of a step; CTAs share its steps.
TEST(GranulesOnHost, FewQueries) {
  std::vector<CaseSpec> specs = forward_specs(FragmentKind::host);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].q_rows = std::vector<std::int64_t>{1, 5, 16, 30}[i % 4];
    specs[i].kv_rows = 700;
  }
  run_forward(FragmentKind::host, specs);
}

/// All granules of keys have 64 rows: kernels of 128 keys a step fall out.
TEST(GranulesOnHost, StepsDivideGranules) {
  CaseSpec spec = forward_spec(kMods[0], "whole", FragmentKind::host, 0);
  ASSERT_EQ(spec.granule, 64);
  AttentionCase narrow(spec);
  EXPECT_NE(run_on_host(narrow, {.fragments = FragmentKind::host}).find(" 128x64 "), std::string::npos);
  spec.granule = 128;
  AttentionCase wide(spec);
  EXPECT_NE(run_on_host(wide, {.fragments = FragmentKind::host}).find(" 128x128 "), std::string::npos);
}

void run_backward(unsigned number, BackwardList list, FragmentKind fragments) {
  if (!is_drawn(number, 3)) GTEST_SKIP() << "not drawn";
  const std::size_t drawn = drawn_case(number, list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!takes_all() && i != drawn) continue;
    set_types(list[i].spec, fragments);
    run_backward_on_host_and_judge(
        list[i].spec, list[i].backward,
        {.fragments = fragments, .candidate = drawn_case(1000 * (number + 1) + i, 6), .seed = 1 + number});
  }
}

TEST(GranulesOnHost, Backward) { run_backward(0, in_granules(), FragmentKind::host); }
TEST(GranulesOnHost, BackwardOverMma) { run_backward(1, in_granules(), FragmentKind::mma); }
TEST(GranulesOnHost, BackwardOverFma) { run_backward(2, in_granules(), FragmentKind::fma); }
TEST(GranulesOnHost, BackwardOverDmma) { run_backward(0, in_granules(), FragmentKind::dmma); }
TEST(GranulesOnHost, BackwardOverOuter) { run_backward(0, in_granules(), FragmentKind::outer); }
TEST(GranulesOnHost, BackwardOverGfx12) { run_backward(1, in_granules(), FragmentKind::gfx12); }
TEST(GranulesOnHost, BackwardOverGfx9) { run_backward(2, in_granules(), FragmentKind::gfx9); }
TEST(GranulesOnHost, CapturesBackward) { run_backward(1, captured_in_granules(), FragmentKind::host); }
TEST(GranulesOnHost, CapturesBackwardOfF64) {
  BackwardList list = captured_in_granules();
  list.resize(4);
  run_backward(2, list, FragmentKind::fma);
}

}  // namespace
}  // namespace heddle::test
