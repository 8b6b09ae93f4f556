// The kernels of backward_sm90 in emulated CTAs, against the reference by the criterion of check.h: masks, mods,
// sequences, groups, head dims, types, and orders of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "heddle/check.h"
#include "kernels/cuda/backward_specs.h"
#include "kernels/cuda/emulated_backward.h"

namespace heddle::test {
namespace {

void judge(const CaseSpec& spec, const BackwardSpec& backward_spec, const EmulatedRun& run = {}) {
  AttentionCase attention_case(spec);
  BackwardCase backward_case(attention_case, backward_spec);
  SCOPED_TRACE(backward_case.text());
  backward_case.run_forward();
  for (const Gradient& gradient : backward_case.gradients()) {
    const auto memory = gradient.memory.memory();
    std::memset(memory.data(), 0xff, memory.size());
  }
  run_emulated_backward(backward_case.tensors(), attention_case.options(), run);
  for (const Gradient& gradient : backward_case.gradients()) {
    EXPECT_TRUE(gradient.memory.gaps_untouched()) << gradient.name;
  }
  const GradientReport report = check_backward(backward_case.tensors(), attention_case.options());
  EXPECT_TRUE(report.passed) << report.text();
}

void judge_all(const BackwardList& list) {
  for (const BackwardSpecs& each : list) judge(each.spec, each.backward);
}

TEST(BackwardEmulated, OneTile) { judge_all(one_tile()); }
TEST(BackwardEmulated, RaggedEnds) { judge_all(ragged_ends()); }
TEST(BackwardEmulated, Masks) { judge_all(masked()); }
TEST(BackwardEmulated, Groups) { judge_all(grouped()); }
TEST(BackwardEmulated, Scores) { judge_all(scored()); }
TEST(BackwardEmulated, Weights) { judge_all(weighted()); }
TEST(BackwardEmulated, Normalizers) { judge_all(normalized()); }
TEST(BackwardEmulated, Sequences) { judge_all(sequences()); }
TEST(BackwardEmulated, Sinks) { judge_all(sunk()); }
TEST(BackwardEmulated, HeadDimsTypesAndLayouts) { judge_all(dims_types_and_layouts()); }

// Orders of threads, copies and products that differ.
TEST(BackwardEmulated, AnyOrder) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    judge(backward_spec(330, 300, 64), rows_wanted(), {.seed = seed});
    judge(backward_spec(330, 300, 64), rows_wanted(), {.seed = seed, .d_q_columns = 32});
    judge(backward_spec(330, 300, 128), rows_wanted(), {.seed = seed});
  }
}

}  // namespace
}  // namespace heddle::test
