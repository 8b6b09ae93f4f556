// The key of a plan in the cache: every word of the arguments that a plan may depend on. It lacks the values of the
// mask's params and the content of its captures, which each plan's block mask is asked about.
#pragma once

#include <cstdint>
#include <vector>

#include "heddle/attention.h"
#include "heddle/backward.h"

namespace heddle::engine {

using PlanKey = std::vector<std::uint64_t>;

/// Writes the key into `key`, whose memory is used again. Shapes, strides, dtypes and devices of all tensors, on a GPU
/// also how far 16 bytes divide their addresses; mods by their nodes, which whoever keeps the key must keep alive;
/// the content of lengths and starts on the CPU; scale, normalizer, backend, the family that HEDDLE_FAMILY asks for,
/// threads, tuning, maxima, the caller's block mask.
void write_key(const AttentionTensors& tensors, const AttentionOptions& options, PlanKey& key);
/// A backward's key also has its own tensors, and which gradients are there.
void write_key(const BackwardTensors& tensors, const AttentionOptions& options, PlanKey& key);

}  // namespace heddle::engine
