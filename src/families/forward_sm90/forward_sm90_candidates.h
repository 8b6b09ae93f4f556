// Makes, from a kernel of the table, the configuration that computes a problem: its mods, its access to tensors, its
// packed heads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/block_mask.h"
#include "plan/access/tensor_access.h"
#include "plan/config_fields.h"
#include "plan/mods/kernel_mods.h"
#include "plan/setting.h"
#include "problem/problem.h"

namespace heddle::plan {

/// `streams`: the capture that the mods could stream comes in tiles. `packed`: queries of each of several heads, or 0.
shared::ForwardSm90Config config_for(const ForwardSm90Kernel& kernel, const problem::AttentionProblem& problem,
                                     const KernelMods& mods, const TensorAccess& access, bool streams, int packed);

/// A kernel's configuration for these mods. A kernel that packs heads stores no mask.
shared::ForwardSm90Config config_with(shared::ForwardSm90Config config, const KernelMods& mods);

/// A kernel's configuration that reaches tensors in this way.
shared::ForwardSm90Config config_with(shared::ForwardSm90Config config, const TensorAccess& access);

/// The configuration with room for a streamed capture's tiles, in shared memory that other buffers give up; nothing
/// where no room is left.
std::optional<shared::ForwardSm90Config> with_streamed_tiles(shared::ForwardSm90Config config, DType dtype);

/// Makes room for numbers of keys and a table, in shared memory that other buffers give up. Unchanged if no room is
/// left.
shared::ForwardSm90Config with_room_for_key_numbers(shared::ForwardSm90Config config);

/// Empty if kernels compute the mods' numbers of keys for this problem, once for each key of a block. Else the reason
/// why not, a sentence.
std::string refuses_key_numbers(const problem::AttentionProblem& problem, const KernelMods& mods);

/// Empty if the configuration computes the problem: a warpgroup's queries and the tile's keys divide the blocks of
/// the caller's mask (null: there is none), a step has bits for the number of any block of keys, shared memory has room
/// for the mods' tables, its heads can be packed. Else the first of these that fails, a sentence.
std::string misfit(const shared::ForwardSm90Config& config, const problem::AttentionProblem& problem,
                   const BlockMask* callers);

/// Registers that a consumer thread is expected to need: its share of the scores, of their 16-bit copy and of o, the
/// needs of every kernel, and the mods. A kernel with fewer may spill (bench_forward_sm90_registers compares this with
/// the compiler).
int forward_sm90_registers(const shared::ForwardSm90Config& config, const KernelMods& mods);

/// The fields that are not at their default, and the shared memory of a CTA, in bytes.
std::vector<Setting> forward_sm90_settings(const shared::ForwardSm90Config& config);

/// Says what such a kernel makes of the weight_mod, and why: "dropped: ...". Empty without one.
std::string describe_weight(const shared::ForwardSm90Config& config, const KernelMods& mods);

}  // namespace heddle::plan

#define HEDDLE_CONFIG ForwardSm90Config
#define HEDDLE_CONFIG_FIELDS "families/forward_sm90/shared/forward_sm90_config.def"
#include "plan/config_fields.inc"
