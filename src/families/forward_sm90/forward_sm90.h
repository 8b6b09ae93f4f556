// The Hopper forward family, for problems that sm90_refuses() lets pass: from a kernel of the table
// (forward_sm90_costs.h) to the configuration that computes a problem, the plans, and the source of a kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/jit/source.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/block_mask.h"
#include "plan/access/tensor_access.h"
#include "plan/config_fields.h"
#include "plan/mods/kernel_mods.h"
#include "plan/plan.h"
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

/// Empty if each block of its keys lies in one granule of places; else why not.
std::string misfit(const shared::ForwardSm90Config& config, const Places& places);

/// Registers that a consumer thread is expected to need: its share of the scores, of their 16-bit copy and of o, the
/// needs of every kernel, and the mods. A kernel with fewer may spill (bench_forward_sm90_registers compares this with
/// the compiler).
int forward_sm90_registers(const shared::ForwardSm90Config& config, const KernelMods& mods);

/// The fields that are not at their default, and the shared memory of a CTA, in bytes.
std::vector<Setting> forward_sm90_settings(const shared::ForwardSm90Config& config);

/// Says what such a kernel makes of the weight_mod, and why: "dropped: ...". Empty without one.
std::string describe_weight(const shared::ForwardSm90Config& config, const KernelMods& mods);

/// Candidates for tensors of these strides, best first. Order: 1. kernels that drop by bits, read a stored mask or take
/// numbers of the keys, before those that compute these for each element; 2. kernels that are not expected to spill; 3.
/// predicted time. `rejected` of each lists the kernels that do not fit the caller's blocks, and by how much the later
/// ones are predicted slower. Throws Error(unsupported) with the reasons if the caller's block mask fits no kernel.
std::vector<Choice> forward_sm90(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                 const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of);

/// The tiles of such a kernel, at its own costs: schedule_tiles().
TileSchedule forward_sm90_schedule(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config,
                                   const BlockMask* block_mask, const device::CudaCaps& caps,
                                   const TileOrder& order = {});

}  // namespace heddle::plan

namespace heddle::forward_sm90 {

/// `config` says which of the mods there are, and in which form the scores (plan::config_with). `layout` is that of all
/// of them. The kernel's function is called "forward_sm90".
jit::Source source(const shared::ForwardSm90Config& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout);

/// The kernel of a plan: compiled, its lists on the device, ready to launch. Throws jit::Rejected when the compiler
/// makes it badly, Error(compile), Error(unsupported) without NVRTC, Error(out_of_memory).
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments);

}  // namespace heddle::forward_sm90

#define HEDDLE_CONFIG ForwardSm90Config
#define HEDDLE_CONFIG_FIELDS "families/forward_sm90/shared/forward_sm90_config.def"
#include "plan/config_fields.inc"
