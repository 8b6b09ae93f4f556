// Decides whether a plan stores a mask's bits in the device's memory (shared/stored_mask.h), or its runs find them.
#pragma once

#include <cstdint>
#include <string>

#include "plan/mods/kernel_mods.h"
#include "problem/problem.h"
#include "shared/tile_shape.h"

namespace heddle::plan {

/// Byte limit for a plan's bits: one bit for each of 32768 x 32768 pairs of two heads. HEDDLE_MASK_BYTES overrides it.
inline constexpr std::int64_t kMostMaskBytes = 256 << 20;
std::int64_t most_mask_bytes();

/// The mask is one whose bits are worth storing: it reads or works out something of queries or keys.
bool masks_by_values(const KernelMods& mods);
/// Why the bits of such a mask cannot be stored; empty where they can. `callers`: the caller's block mask, or null.
std::string refuses_storing(const problem::AttentionProblem& problem, const BlockMask* callers);
/// Why bits that take `bytes` bytes cannot be stored; empty if they can.
std::string refuses_bytes(std::int64_t bytes);

/// ModForms::mask of a kernel: how its runs find what the mask excludes, and why so. `reason`: why nothing is stored,
/// where the planner knows it.
std::string describe_mask(const KernelMods& mods, shared::MaskForm form, const shared::TileShape& tile,
                          std::int64_t partial_blocks, std::int64_t stored_bytes, const std::string& reason);

}  // namespace heddle::plan
