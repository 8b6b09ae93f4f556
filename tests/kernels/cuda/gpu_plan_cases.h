// Cases of plans on a GPU, and the fixture of their tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/gpu_case.h"

namespace heddle::test {

class GpuPlan : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = gpu_missing(); !reason.empty()) GTEST_SKIP() << reason;
    if (gpu_backend() != BackendChoice::cuda) GTEST_SKIP() << "of a GPU alone";
  }
};

inline CaseSpec spec_of_plan(std::uint64_t seed, const char* mask = "causal") {
  CaseSpec spec;
  spec.seed = seed;
  spec.batch = 2;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.q_rows = 300;
  spec.kv_rows = 333;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  spec.mask = mask;
  return spec;
}

/// More tiles than any GPU has multiprocessors: they are drawn, for which a run needs its workspace.
inline CaseSpec many_tiles(std::uint64_t seed) {
  CaseSpec spec = spec_of_plan(seed);
  spec.batch = 12;
  spec.group = 8;
  spec.q_rows = 130;
  spec.kv_rows = 140;
  return spec;
}

}  // namespace heddle::test
