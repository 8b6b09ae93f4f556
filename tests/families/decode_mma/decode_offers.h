// Answers of decode_mma to a call: why it refuses, or its plans.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "families/decode_mma/decode_calls.h"
#include "families/decode_mma/decode_mma.h"

namespace heddle::test::decode {

/// Why the family refuses a call; empty if it does not.
inline std::string refusal(const HopperCall& call, std::string_view gpu = "h200") {
  return plan::decode_mma_refuses(call.problem(), call.tensors(), call.all_options(), caps_of(gpu));
}

/// Its plans, best first.
inline std::vector<plan::Choice> offered(const HopperCall& call, std::string_view gpu = "h200") {
  return plan::decode_mma(call.problem(), call.tensors(), call.all_options(), caps_of(gpu),
                          [&](BlockSize block) { return call.rows_of(block); });
}
inline shared::ForwardMmaConfig first_of(const HopperCall& call, std::string_view gpu = "h200") {
  return offered(call, gpu).front().plan.part<shared::ForwardMmaConfig>();
}

/// The first one of a problem that no call above makes.
inline shared::ForwardMmaConfig first_of(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, std::string_view gpu = "h200") {
  const auto no_rows = [](BlockSize) { return nullptr; };
  return plan::decode_mma(problem, tensors, options, caps_of(gpu), no_rows)
      .front()
      .plan.part<shared::ForwardMmaConfig>();
}

/// Keys and values of 8 bits.
inline HopperCall bytes(DType q = DType::bf16, DType kv = DType::e4m3, std::int64_t keys = 8192) {
  HopperCall call = few(1, keys);
  call.dtype = q;
  call.kv_dtype = kv;
  return call;
}

}  // namespace heddle::test::decode
