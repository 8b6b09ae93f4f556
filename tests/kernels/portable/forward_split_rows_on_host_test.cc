// The portable forward on the host over queries and keys that stand in two tensors each, by each architecture's
// fragments, against the reference by the one criterion. A part of the counts is drawn, as in forward_on_host_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/split_specs.h"
#include "heddle/error.h"
#include "kernels/portable/host_kernel.h"
#include "kernels/portable/specs.h"
#include "sample.h"

namespace heddle::test {
namespace {

using shared::FragmentKind;

/// Any cases, and every other one of few queries, whose blocks come in rings.
void run_grid(FragmentKind fragments, int count, std::vector<DType> dtypes = {DType::bf16, DType::f16}) {
  const std::uint64_t seed = 30'000'000 + 100'000 * static_cast<std::uint64_t>(fragments);
  SplitSpecs<PortableSpecs> source(seed, PortableSpecs(seed, 60'000, dtypes));
  Deck<int> candidates({0, 0, 1, 2, 3}, seed + 1);
  for (int i = 0; i < cases_on_host(count);) {
    CaseSpec spec = source.draw();
    spec.rows = "built";
    spec.block = {};
    spec.allow_tf32 = fragments == FragmentKind::tf32;
    if (i % 2 == 1) spec.q_rows = std::min<std::int64_t>(spec.q_rows, 5);
    if (!fits(spec)) continue;
    ++i;
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    run_on_host_and_judge(c, {.fragments = fragments, .gpu = "a100", .candidate = candidates.deal()});
  }
}
TEST(ForwardSplitRowsOnHost, OverLoops) { run_grid(FragmentKind::host, 10, {DType::bf16, DType::f64, DType::f32}); }
TEST(ForwardSplitRowsOnHost, OverMma) { run_grid(FragmentKind::mma, 30); }
TEST(ForwardSplitRowsOnHost, OverFma) { run_grid(FragmentKind::fma, 10, {DType::f64, DType::f32}); }
TEST(ForwardSplitRowsOnHost, OverDmma) { run_grid(FragmentKind::dmma, 10, {DType::f64}); }
TEST(ForwardSplitRowsOnHost, OverOuter) { run_grid(FragmentKind::outer, 10, {DType::f32}); }
TEST(ForwardSplitRowsOnHost, OverTf32) { run_grid(FragmentKind::tf32, 10, {DType::f32}); }
TEST(ForwardSplitRowsOnHost, OverGfx9) { run_grid(FragmentKind::gfx9, 10); }
TEST(ForwardSplitRowsOnHost, OverGfx11) { run_grid(FragmentKind::gfx11, 10); }
TEST(ForwardSplitRowsOnHost, OverGfx12) { run_grid(FragmentKind::gfx12, 10); }

// More queries than decode_mma takes, against the cache of latent attention: slices of the values' columns.
TEST(ForwardSplitRowsOnHost, LatentAttention) {
  CaseSpec spec = latent_in_two_tensors(5);
  spec.group = 2;
  spec.q_rows = 70;
  spec.kv_rows = 100;
  spec.page_rows = 16;
  spec.mask = "causal_lower_right";
  AttentionCase c(spec);
  run_on_host_and_judge(c, {.fragments = FragmentKind::mma, .gpu = "h200"});
}

}  // namespace
}  // namespace heddle::test
