// Which keys decode_mma reads, as far as planning knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/portable/shared/forward_mma_config.h"
#include "plan/mods/kernel_mods.h"
#include "problem/problem.h"
#include "shared/key_runs.h"

namespace heddle::plan {

/// The keys that the mask leaves each sequence, all heads together. Bounds that rest on captures, or on params that
/// `bindings` lack, count as none. Where only the device knows at which positions queries stand, they count as the last
/// ones.
std::vector<shared::KeyRuns> decode_mma_runs(const problem::AttentionProblem& problem, const KernelMods& mods,
                                             const Bindings& bindings);

/// Sums over all sequences, as long as they may be. Shared keys are known if the host knows the groups.
struct DecodeKeys {
  std::int64_t all, read;     // keys, as if each sequence read its own
  std::int64_t units;         // of those that are read, at least one of a sequence
  std::int64_t shared_units;  // of these: of tiles of several sequences
  std::int64_t again;         // of these: that another tile reads, too, so that the L2 cache has them
};
DecodeKeys decode_mma_keys(const problem::AttentionProblem& problem, const KernelMods& mods, const Bindings& bindings,
                           const shared::ForwardMmaConfig& config);

/// The heads of a tile for which a kernel asks the mask which blocks it leaves (ForwardMmaConfig::tested_heads), where
/// that may leave some out and no list of blocks says which: with lengths that only the device knows. Tiles of rows of
/// several sequences, those whose warpgroups share a block, and chunks, whose one kernel would spill, read all within
/// the bounds.
int decode_mma_tested_heads(const KernelMods& mods, const shared::ForwardMmaConfig& config);

/// The mask's form for explain(): "computed for each pair; keys are read where q_idx - kv_idx < 128".
std::string decode_mma_mask_form(const KernelMods& mods, const shared::ForwardMmaConfig& config);

}  // namespace heddle::plan
