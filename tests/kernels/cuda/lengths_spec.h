// A case whose lengths are in a GPU's memory.
#pragma once

#include <cstdint>

#include "engine/attention_case.h"

namespace heddle::test {

inline CaseSpec spec_with_lengths(std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.batch = 4;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.q_rows = 300;
  spec.kv_rows = 333;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = seed % 3 == 0 ? DType::f16 : DType::bf16;
  spec.layout = Layout::bshd;
  spec.device_lengths = true;
  spec.threads = 1;
  return spec;
}

}  // namespace heddle::test
