// The kernels of backward_sm90 in emulated CTAs, against the reference by the criterion of check.h: masks, mods,
// sequences, groups, head dims, types, and orders of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "engine/backward_case.h"
#include "heddle/check.h"
#include "heddle/error.h"
#include "kernels/cuda/emulated_backward.h"

namespace heddle::test {
namespace {

CaseSpec spec_of(std::int64_t q_rows, std::int64_t kv_rows, std::int64_t dim) {
  CaseSpec spec;
  spec.seed = 3;
  spec.batch = 1;
  spec.kv_heads = 1;
  spec.group = 1;
  spec.q_rows = q_rows;
  spec.kv_rows = kv_rows;
  spec.qk_dim = spec.v_dim = dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  return spec;
}

BackwardSpec rows_wanted(const std::string& wanted = "qkv") {
  BackwardSpec spec;
  spec.wanted = wanted;
  return spec;
}

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

TEST(BackwardEmulated, OneTile) {
  judge(spec_of(64, 128, 128), rows_wanted());
  judge(spec_of(64, 128, 64), rows_wanted());
}

}  // namespace
}  // namespace heddle::test
