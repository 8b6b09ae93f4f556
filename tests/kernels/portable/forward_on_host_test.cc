// The portable forward on the host, against the reference by the one criterion: first its own text over fragments that
// are plain loops, then over each architecture's fragments, whose instructions the host computes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/deck.h"
#include "kernels/portable/host_kernel.h"

namespace heddle::test {
namespace {

using shared::FragmentKind;

CaseSpec plain(std::uint64_t seed, DType dtype = DType::bf16) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  spec.q_rows = 150;
  spec.kv_rows = 170;
  return spec;
}

TEST(ForwardOnHost, Plain) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    AttentionCase c(plain(1, dtype));
    run_on_host_and_judge(c, {});
  }
}

TEST(ForwardOnHost, PlainOverMma) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const int candidate : {0, 1, 2}) {
      AttentionCase c(plain(1, dtype));
      run_on_host_and_judge(c, {.fragments = FragmentKind::mma, .candidate = candidate});
    }
  }
}

}  // namespace
}  // namespace heddle::test
