// The Hopper backward family: which problems it takes, its plan, and what its workspace holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "shared/backward_lists.h"
#include "shared/backward_sm90_config.h"

namespace heddle::plan {

/// Empty when the family takes the problem; else the reason, a sentence that names what is not taken and what is. Any
/// strides are taken.
std::string backward_sm90_refuses(const Request& request, const device::CudaCaps& caps);

std::vector<Choice> backward_sm90(const Request& request, const device::CudaCaps& caps, const RowsOf& rows_of);

/// Offsets in bytes in a run's workspace.
struct BackwardSm90Workspace {
  std::int64_t rows;   // block_bytes() of each block and head
  std::int64_t d_q;    // dQ's sums, in f32
  std::int64_t sinks;  // a float of each block and head
  std::int64_t drawn;  // how many tiles were drawn
  std::int64_t turns;  // ordered: an integer of each part of dQ's sums
  std::int64_t lists;  // lengths on the device: what backward_lists_memory() says
  std::int64_t bytes;  // memory of gradients of captures, then copies stand behind
};
BackwardSm90Workspace backward_sm90_workspace(const problem::AttentionProblem& problem,
                                              const shared::BackwardSm90Config& config);

shared::BackwardListsMemory backward_lists_memory(const problem::AttentionProblem& problem,
                                                  const shared::BackwardSm90Config& config);

/// Where dO's copy stands among a plan's copies.
inline constexpr std::size_t kCopiedDO = 3;

}  // namespace heddle::plan
