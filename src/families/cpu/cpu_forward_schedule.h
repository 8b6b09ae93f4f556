// The order of a launch as plain data: which keys and values are packed when, and which tiles of queries follow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "heddle/block_mask.h"
#include "problem/problem.h"

namespace heddle::cpu {

/// Keys or values of one kv head that are packed once: for one sequence, or for all if the batch broadcasts.
struct PackedUnit {
  std::int64_t sequence, kv_head;
  std::int64_t keys;    // of the longest sequence that reads them
  std::int64_t offset;  // bytes in the workspace
};

/// A tile of queries: rows [q_first, q_first + rows) of one sequence, for `heads` heads from `head` on, and the keys
/// that it sees.
struct TileTask {
  std::int64_t sequence, head, heads;
  std::int64_t q_block;  // row of the block mask
  std::int64_t q_first, rows;
  std::int64_t key_begin, key_end;
  std::int64_t cost;  // score elements, with the other work in the same unit
  // Indices in the wave. k_unit, v_unit: the packed unit; -1 if the tile reads in place. partials: the unit of its
  // pieces; -1 if it has one piece.
  std::int32_t k_unit, v_unit, partials;
  std::int32_t piece, pieces;  // of its keys
  std::int32_t merge;          // its entry in the wave's merges; -1 if it has one piece
  std::int64_t partial_row;    // of the tile's first row among those of a piece
};

/// The partial results of a pair whose keys may be split.
struct PartialUnit {
  std::int64_t sequence;
  std::int64_t offset;  // bytes in the workspace
  std::int64_t rows;    // of a piece, that tiles have taken so far
};

/// The units that are in the workspace at one time, and the tiles that need only these; the longest tile first.
struct Wave {
  std::vector<PackedUnit> k_units, v_units;
  std::int64_t bytes = 0;  // of all units
  std::vector<PartialUnit> partials;
  std::vector<TileTask> tiles;
  std::vector<TileTask> merges;  // the split tiles, each once
};

class Schedule {
 public:
  /// k_batch, v_batch: the tensors' own, 1 where they broadcast. tile_rows: the most that a tile may have; a tile never
  /// crosses a row of the block mask. block_mask: null when everything attends. bricks: how keys and values are packed.
  Schedule(const problem::AttentionProblem& problem, std::int64_t k_batch, std::int64_t v_batch, std::int64_t tile_rows,
           std::int64_t pack_bytes, const BlockMask* block_mask, bool bricks = false);

  std::int64_t waves() const { return std::ssize(wave_begin_) - 1; }
  Wave wave(std::int64_t index) const;

  /// The runs of a tile's row of the block mask, in blocks of block_keys() keys.
  RowRuns runs(const TileTask& tile) const;
  std::int64_t block_keys() const { return block_keys_; }

  /// How many tiles read their keys in place, and into how many pieces these are cut; empty if no tile does.
  std::string in_place_text() const;

 private:
  struct Pair {
    std::int64_t sequence, kv_head;
    bool in_place;
  };
  const Sequence& sequence(std::int64_t index) const { return problem_.sequences[static_cast<std::size_t>(index)]; }
  std::int64_t add_units(const Pair& pair, Wave& wave, std::int64_t bytes) const;
  void split_into_waves(std::int64_t pair_bytes);
  void add_tiles(const Pair& pair, Wave& wave) const;
  void add_heads(const Pair& pair, TileTask tile, Wave& wave) const;
  void add_pieces(const Pair& pair, TileTask tile, Wave& wave) const;
  void cut_keys(TileTask tile, std::int64_t piece, Wave& wave) const;
  void add_piece(TileTask tile, std::int64_t key_begin, std::int64_t key_end, Wave& wave) const;
  /// Keys of [begin, end) that lie in the tile's runs.
  std::int64_t keys_within(const TileTask& tile, std::int64_t begin, std::int64_t end) const;

  const problem::AttentionProblem& problem_;
  const BlockMask* block_mask_;
  bool k_shared_, v_shared_, bricks_;
  std::int64_t tile_rows_, block_keys_;
  std::int64_t longest_keys_ = 0;  // of the sequences whose keys are packed
  std::vector<Run> whole_;         // of each sequence, where there is no block mask
  std::vector<Pair> pairs_;
  std::vector<std::int64_t> wave_begin_;  // in pairs_; one more entry than waves
};

}  // namespace heddle::cpu
