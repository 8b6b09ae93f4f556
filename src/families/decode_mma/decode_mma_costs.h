// How long a run of decode_mma takes on Hopper.
#pragma once

#include <cstdint>

#include "backend/portable/shared/forward_mma_config.h"
#include "families/decode_mma/decode_mma_keys.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::plan {

/// A run takes `launch` seconds, and reads so many bytes of keys and values in a second.
struct DecodeMemoryTimes {
  double launch, bytes_per_second, paged_per_second;
};
/// Fitted to an H200's times (docs/notes/decode.md).
inline constexpr DecodeMemoryTimes kHopperTimes = {9e-6, 4.42e12, 4.35e12};

/// Bytes of keys and values of so many units, as long as sequences may be.
double decode_mma_bytes(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config,
                        std::int64_t units);

/// The prediction of a run on a Hopper chip of so many multiprocessors.
Prediction decode_mma_prediction(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config,
                                 const DecodeKeys& keys, int multiprocessors,
                                 const DecodeMemoryTimes& times = kHopperTimes);

}  // namespace heddle::plan
