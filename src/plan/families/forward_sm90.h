// The Hopper forward family: which problems it takes, its candidates, their cost, and the order of its tiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/families/forward_sm90_mods.h"
#include "plan/families/forward_sm90_rows.h"
#include "plan/plan.h"
#include "shared/forward_sm90.h"

namespace heddle::plan {

/// Empty when the family takes the problem; else the reason, a sentence that names what
/// is not taken and what is: device, dtype, head dims, mods, sequences. Any strides are taken.
std::string forward_sm90_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                 const device::CudaCaps& caps);

/// The candidates for a problem with tensors of these strides, with the predicted time of each, best first (those that
/// may spill last, and after them those that weigh or mask each element where others only drop or store the mask); what
/// does not fit the caller's blocks stands in `rejected` of each, and what is predicted slower in those before it, by
/// how much. Throws Error(unsupported) with the reasons when the caller's block mask fits no kernel.
std::vector<Choice> forward_sm90(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                 const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of);

/// Registers that a consumer thread is expected to need: its share of the scores, of their 16-bit copy and of o, what
/// every kernel needs beside them, and the mods. More than the config gives may spill (bench_forward_sm90_registers
/// holds it against the compiler).
int forward_sm90_registers(const shared::ForwardSm90Config& config, const ForwardSm90Mods& mods);

/// The lists that a launch uploads. The tiles stand in the order in which CTAs draw them: heads in sections whose keys
/// and values fit L2 together, in each the longest tiles first; and at the end of all the shortest, with which the CTAs
/// come out even.
struct TileSchedule {
  std::vector<shared::WorkItem> items;
  std::vector<shared::KvRun> runs;
  std::vector<int> mask_places;        // stored masks: of each item, StoredRun::place of its tile
  StoredBlocks stored;                 // and what is to be found before the first run
  std::vector<shared::RowFill> fills;  // queries that attend nothing, and rows past the end of a padded sequence
  int unattending_fills = 0;           // the former are the first so many
  int grid = 0;  // CTAs to launch; 0 where there is nothing to compute; fewer than items: these are drawn
  // By the cost model, if all CTAs were of one speed:
  std::vector<std::uint16_t> ctas;  // who draws each item
  double longest = 0;               // clocks of the most loaded CTA
  std::int64_t elements = 0;        // pairs of a query and a key that are multiplied, those past the ends not counted
};
/// Tiles of so many queries of one head, those that attend nothing counted; and a kernel's own.
std::int64_t forward_sm90_tiles(const problem::AttentionProblem& problem, std::int64_t rows);
std::int64_t forward_sm90_tiles(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config);
/// `block_mask` null: everything attends. Its blocks are multiples of a warpgroup's 64 queries and of the tile's keys.
/// Tiles share runs where the mask does. With lengths on the device: all tiles of the longest sequences, those without
/// a step too, and no fills.
TileSchedule forward_sm90_schedule(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config,
                                   const BlockMask* block_mask, const device::CudaCaps& caps,
                                   const TileOrder& order = {});

/// Seconds of one launch by the cost model (forward_sm90_costs.h has its numbers).
double forward_sm90_seconds(const TileSchedule& schedule);

}  // namespace heddle::plan
