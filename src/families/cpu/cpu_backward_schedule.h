// The order of a backward's launch as plain data: what is packed when, and which tasks follow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "families/cpu/cpu_backward_split.h"
#include "heddle/block_mask.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::cpu {

/// One kv head of sequences that share the storage of their keys or values; or of one sequence.
struct KeyGroup {
  std::int64_t kv_head;
  std::vector<std::int64_t> sequences;
  std::int64_t keys;  // of the longest
};

/// Tiles of keys [first_tile, end_tile) of the groups of one unit.
struct KeyTask {
  std::int64_t unit;  // of the wave
  std::int64_t piece, first_tile, end_tile;
  std::int64_t cost;  // score elements
};

/// One sequence and query head, packed.
struct QueryUnit {
  std::int64_t sequence, head;
  std::int64_t offset;  // bytes in the wave's part of the workspace
};

struct BackwardWave {
  std::vector<std::vector<KeyGroup>> units;
  std::vector<QueryUnit> queries;
  std::int64_t largest_unit = 0;            // bytes of the queries of one unit
  std::vector<std::vector<KeyTask>> lanes;  // the longest first
};

/// Queries of one row of the block mask.
struct QueryTile {
  std::int64_t q_block, q_first, rows;
};

class BackwardSchedule {
 public:
  /// block_mask: null when everything attends.
  BackwardSchedule(const problem::AttentionProblem& problem, const plan::CpuBackwardSplit& split,
                   const BlockMask* block_mask);

  std::int64_t waves() const { return std::ssize(wave_begin_) - 1; }
  BackwardWave wave(std::int64_t index) const;

  std::span<const QueryTile> tiles(std::int64_t sequence) const { return tiles_[static_cast<std::size_t>(sequence)]; }
  /// The runs of a row of the block mask, in blocks of block_keys() keys.
  RowRuns runs(std::int64_t sequence, std::int64_t head, std::int64_t q_block) const;
  std::int64_t block_keys() const { return block_keys_; }
  /// Where a sequence and query head stand in a wave's queries.
  const QueryUnit& query_unit(const BackwardWave& wave, std::int64_t sequence, std::int64_t head) const;

 private:
  using Unit = std::vector<KeyGroup>;
  const Sequence& sequence(std::int64_t index) const { return problem_.sequences[static_cast<std::size_t>(index)]; }
  void add_units();
  void add_tiles();
  void split_into_waves(std::int64_t bytes);
  std::int64_t query_bytes(const Unit& unit) const;
  std::vector<std::int64_t> costs(const Unit& unit) const;
  void add_tasks(const Unit& unit, std::int64_t index, std::vector<KeyTask>& tasks) const;

  const problem::AttentionProblem& problem_;
  const plan::CpuBackwardSplit& split_;
  const BlockMask* block_mask_;
  std::int64_t block_keys_;
  std::vector<Run> whole_;  // of each sequence, where there is no block mask
  std::vector<Unit> units_;
  std::vector<std::vector<QueryTile>> tiles_;  // of each sequence
  std::vector<std::int64_t> wave_begin_;       // in units_; one more entry than waves
};

}  // namespace heddle::cpu
