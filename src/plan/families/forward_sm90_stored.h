// Whether the Hopper forward keeps a mask's bits in the device's memory (shared/stored_mask.h) or finds them in each
// run.
#pragma once

#include <cstdint>
#include <string>

#include "plan/families/forward_sm90_mods.h"
#include "plan/families/forward_sm90_rows.h"
#include "plan/plan.h"
#include "problem/problem.h"
#include "shared/forward_sm90.h"

namespace heddle::plan {

/// What a plan's bits may take unless HEDDLE_MASK_BYTES says otherwise: about what a bit for each of two heads' 32768 x
/// 32768 pairs takes.
inline constexpr std::int64_t kMostMaskBytes = 256 << 20;
std::int64_t most_mask_bytes();

/// The mask is one whose bits are worth storing: it reads or works out something of queries or keys.
bool masks_by_values(const ForwardSm90Mods& mods);
/// Why the bits of such a mask cannot be stored; empty where they can. `callers`: the caller's block mask, or null.
std::string refuses_storing(const problem::AttentionProblem& problem, const BlockMask* callers);
/// The same for bits that take so many bytes.
std::string refuses_bytes(std::int64_t bytes);

/// The same, but asks for blocks of each size once: candidates are planned again where bits take too many bytes.
RowsOf remembering(const RowsOf& rows_of);

/// Plan::mask of a kernel: what is stored, or, with `reason` where there is one, why nothing is. Empty where the mask
/// is none of those.
std::string describe_stored_mask(const shared::ForwardSm90Config& config, const ForwardSm90Mods& mods,
                                 const StoredBlocks& stored, const std::string& reason);

}  // namespace heddle::plan
