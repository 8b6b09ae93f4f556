// The tiles of one launch, and the order in which its CTAs draw them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/caps.h"
#include "heddle/block_mask.h"
#include "plan/tiles/key_rows.h"
#include "problem/problem.h"
#include "shared/stored_mask.h"
#include "shared/tile_shape.h"
#include "shared/tile_walk.h"

namespace heddle::plan {

/// The order in which the CTAs of a GPU draw tiles. Heads come in sections. A section's keys and values stay in L2,
/// beside the queries and the loads of the next section. In each section the longest tiles come first. The shortest
/// tiles of all come at the end. Measured (bench_forward_sm90_variants): sections of 4 to 32 MB are within 2 % of each
/// other; on causal masks the last share gains 2 to 10 % over none, and half of it 1 % less.
struct TileOrder {
  std::int64_t section_bytes = 16'000'000;
  std::optional<double>
      last_share{};           // of all work, in the tiles that come last; none: kLastShare, or what ends sooner
  bool batch_inside = false;  // the same tile of all sequences, then the next: they read the same of a streamed capture
};
inline constexpr double kLastShare = 0.12;

/// The lists that a launch uploads, in the order of TileOrder.
struct TileSchedule {
  std::vector<shared::WorkItem> items;
  std::vector<shared::KvRun> runs;
  std::vector<int> mask_words_at;      // stored masks: of each item, StoredRun::words_at of its tile
  StoredBlocks stored;                 // and what is to be found before the first run
  std::vector<shared::RowFill> fills;  // queries that attend nothing, and rows past the end of a padded sequence
  int unattending_fills = 0;           // how many fills are the former, which come first
  int grid = 0;  // CTAs to launch; 0 where there is nothing to compute; fewer than items: these are drawn
  // By the cost model, if all CTAs were of one speed:
  std::vector<std::uint16_t> ctas;  // who draws each item
  double longest = 0;               // clocks of the most loaded CTA
  std::int64_t elements = 0;        // pairs of a query and a key that are multiplied, those past the ends not counted
};

/// Tiles of `rows` queries of one head, those that attend nothing counted.
std::int64_t count_tiles(const problem::AttentionProblem& problem, std::int64_t rows);
/// Tiles of that shape, likewise.
std::int64_t count_tiles(const problem::AttentionProblem& problem, const shared::TileShape& tile);

/// `block_mask` null: everything attends. Its blocks are multiples of a warpgroup's 64 queries and of the tile's keys.
/// Tiles share runs where the mask does. With lengths on the device: all tiles of the longest sequences, those without
/// a step too, and no fills.
TileSchedule schedule_tiles(const problem::AttentionProblem& problem, const shared::TileShape& tile,
                            const TileClocks& clocks, const BlockMask* block_mask, const device::GpuCaps& caps,
                            const TileOrder& order);

}  // namespace heddle::plan
