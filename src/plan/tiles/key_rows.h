// The rows of key blocks that tiles walk: a tile walks every block that one of its warpgroups attends.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "heddle/block_mask.h"
#include "problem/problem.h"
#include "shared/stored_mask.h"
#include "shared/tile_shape.h"
#include "shared/tile_walk.h"

namespace heddle::plan {

inline constexpr int kMostWarpgroups = 3;

/// Costs of the parts of a tile's work, in clocks of its multiprocessor.
struct TileClocks {
  double full_step, partial_step, tile;
  double loads;  // of a step's keys and values through L2, and asking for them in pages, whoever attends them
};

/// The words of a stored mask: which blocks of which tiles they are of.
struct StoredBlocks {
  std::vector<shared::StoredRun> runs;
  std::int64_t partial = 0;  // blocks that have words, by tiles
  std::int64_t room = 0;     // blocks that there is room for: of each tile, also those between its first and its last
};

/// The key blocks of a tile.
struct KeyRow {
  int first_run = 0, runs = 0, steps = 0;
  bool uneven = false;                               // its first step is not attended by all warpgroups
  int unfilled = 0;                                  // bit w: warpgroup w has queries, none of which attends anything
  std::int64_t clocks = 0;                           // of a tile that walks it
  int rank = 0;                                      // by clocks, the most first; equal ones share it
  int mask_words_at = 0;                             // stored masks: StoredRun::words_at
  std::array<std::int64_t, kMostWarpgroups> keys{};  // that the queries of each warpgroup attend, partial blocks whole
};

/// Every row, once: tiles, heads and sequences of equal lengths that share rows of the mask share rows here. (A stored
/// mask's tiles share none: their rows of the block mask may be alike, but their bits differ.)
class KeyRows {
 public:
  /// `block_mask` null: everything attends. Else its blocks are multiples of unit_rows queries and kv_block keys. A row
  /// of the mask serves all packed tiles with queries in it.
  KeyRows(const problem::AttentionProblem& problem, const shared::TileShape& tile, const TileClocks& clocks,
          const BlockMask* block_mask);

  /// Packed: `head` is the tile's first.
  const KeyRow& of(std::int64_t batch, std::int64_t head, std::int64_t q_tile) const {
    const Tiles& own = sequences_[static_cast<std::size_t>(batch)];
    if (tile_.packs()) head = head / group_ * head_tiles_ + head % group_ / tile_.heads();
    return rows_[row_of_tile_[static_cast<std::size_t>(own.first + head % heads_ * own.of_head + q_tile)]];
  }
  /// Tiles of one head of a sequence.
  std::int64_t q_tiles(std::int64_t batch) const { return sequences_[static_cast<std::size_t>(batch)].of_head; }
  int ranks() const { return ranks_; }
  std::vector<shared::KvRun> take_runs() { return std::move(runs_); }
  StoredBlocks take_stored() { return std::move(stored_); }

 private:
  using WarpgroupRuns = std::span<const std::span<const Run>>;
  /// A sequence's tiles in row_of_tile_.
  struct Tiles {
    std::int64_t first, of_head;
  };

  void add_tiles(const BlockMask* block_mask, std::int64_t batch, std::int64_t head, std::int64_t q_len);
  void add_packed_tiles(const BlockMask* block_mask, std::int64_t batch, std::int64_t head_tile, std::int64_t q_len);
  void add_row(WarpgroupRuns warpgroups, int live, std::int64_t scale);
  void add_runs(WarpgroupRuns warpgroups, std::int64_t scale);
  std::vector<Run> mirror(std::span<const Run> runs, std::int64_t scale) const;
  void add_run(std::int64_t begin, std::int64_t end, int flags);
  void store_mask(std::int64_t batch, std::int64_t head, std::int64_t q_first);
  void tell_what_follows();
  void rank_rows();
  int everyone() const { return (1 << tile_.warpgroups) - 1; }

  shared::TileShape tile_;
  TileClocks clocks_;
  double least_step_ = 0;                    // clocks
  std::int64_t group_ = 1, head_tiles_ = 1;  // of a head of keys: query heads, and tiles that they take
  std::int64_t heads_ = 1;                   // that do not share their rows; packed: tiles of heads
  std::int64_t kv_len_ = 0, kv_blocks_ = 0;  // of the sequence whose rows are added
  std::vector<Tiles> sequences_;
  std::vector<std::size_t> row_of_tile_;  // [sequences][heads][tiles]
  std::vector<KeyRow> rows_;
  std::vector<shared::KvRun> runs_;
  StoredBlocks stored_;
  int ranks_ = 0;
};

}  // namespace heddle::plan
