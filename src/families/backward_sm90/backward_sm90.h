// The Hopper backward family: which problems it takes, its configuration and plan, what its workspace holds, and the
// sources of its kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/jit/source.h"
#include "families/backward_sm90/d_q_ring.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/config_fields.h"
#include "plan/mods/backward_mods.h"
#include "plan/plan.h"
#include "plan/setting.h"
#include "plan/tiles/backward_schedule.h"
#include "shared/backward_lists.h"

namespace heddle::plan {

/// Empty if the family takes the problem; else a sentence that names the given value and the accepted ones. Any strides
/// are taken.
std::string backward_sm90_refuses(const Request& request, const device::CudaCaps& caps);

/// The mods that the family's kernels compute. Gradients of captures and params are summed by rows of the tensors, so
/// places are left to mods beside them.
BackwardMods backward_sm90_mods(const problem::AttentionProblem& problem);
/// The mods of one kernel: only some look up places.
BackwardMods backward_sm90_mods(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

/// The configuration that computes a problem, but for the types of gradients and how they are stored.
shared::BackwardSm90Config backward_sm90_config(const problem::AttentionProblem& problem, const BackwardMods& mods);

/// Configurations for the same work in which a warpgroup of its own computes dQ, the fastest first: each next one takes
/// fewer registers. Empty where there is none.
std::vector<shared::BackwardSm90Config> with_d_q_apart(shared::BackwardSm90Config config);

/// Adds what these tensors decide.
shared::BackwardSm90Config with_gradients(shared::BackwardSm90Config config, const BackwardTensors& tensors);

/// The fields that are not at their default, and the shared memory of a CTA, in bytes.
std::vector<Setting> backward_sm90_settings(const shared::BackwardSm90Config& config);

std::vector<Choice> backward_sm90(const Request& request, const device::CudaCaps& caps, const RowsOf& rows_of);

/// Offsets in bytes in a run's workspace.
struct BackwardSm90Workspace {
  std::int64_t rows;      // block_bytes() of each block and head
  std::int64_t d_q;       // dQ's sums, in f32: of each block and head, or a ring's units
  std::int64_t sinks;     // a float of each block and head
  std::int64_t drawn;     // how many tiles were drawn
  std::int64_t turns;     // ordered: an integer of each part of dQ's sums
  std::int64_t counters;  // ring: of each section, how many parts were added, and how many units converted
  std::int64_t lists;     // lengths on the device: what backward_lists_memory() says
  std::int64_t bytes;     // memory of gradients of captures, or tile_shares_memory(), then copies stand behind
};
BackwardSm90Workspace backward_sm90_workspace(const problem::AttentionProblem& problem,
                                              const shared::BackwardSm90Config& config);

shared::BackwardListsMemory backward_lists_memory(const problem::AttentionProblem& problem,
                                                  const shared::BackwardSm90Config& config);

/// The list of tiles, and what they have to do with dQ's ring.
struct BackwardSm90Schedule : BackwardSchedule {
  std::vector<shared::DqTurn> turns;
  int share_places = 0;  // of tiles that CTAs share
};
/// `block_mask` null: everything attends. Its blocks are multiples of 64 queries and 64 keys. `multiprocessors`:
/// between which tiles are shared, if config.shares. `shape`: of dQ's ring, where there is one.
BackwardSm90Schedule backward_sm90_schedule(const problem::AttentionProblem& problem,
                                            const shared::BackwardSm90Config& config, const BlockMask* block_mask,
                                            int multiprocessors, const DqRingShape& shape);
BackwardSm90Schedule backward_sm90_schedule(const problem::AttentionProblem& problem,
                                            const shared::BackwardSm90Config& config, const BlockMask* block_mask,
                                            int multiprocessors);
std::int64_t count_tiles(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

}  // namespace heddle::plan

namespace heddle::backward_sm90 {

/// `layout` has the params and captures of all mods.
jit::Source main_source(const shared::BackwardSm90Config& config, const plan::BackwardMods& mods,
                        const device_text::ModLayout& layout);

/// The kernels before and behind it: backward_rows(), backward_d_q() and backward_sinks().
jit::Source rows_source(const shared::BackwardSm90Config& config);

/// kConfig, in namespace heddle.
std::string config_text(const shared::BackwardSm90Config& config);
std::string name_of(const shared::BackwardSm90Config& config, std::string_view kernel);
/// kConfig, the products and the mods' functions: all but the kernel.
jit::Source source_before_kernel(const shared::BackwardSm90Config& config, const plan::BackwardMods& mods,
                                 const device_text::ModLayout& layout, std::string_view kernel);

/// The kernels of a plan: compiled, their lists on the device, ready to launch. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments);

}  // namespace heddle::backward_sm90

#define HEDDLE_CONFIG BackwardSm90Config
#define HEDDLE_CONFIG_FIELDS "families/backward_sm90/shared/backward_sm90_config.def"
#include "plan/config_fields.inc"
