#include "families/cpu/cpu_backward_schedule.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "families/cpu/cpu_backward_plans.h"

namespace heddle::cpu {

BackwardSchedule::BackwardSchedule(const problem::AttentionProblem& problem, const plan::CpuBackwardSplit& split,
                                   const BlockMask* block_mask)
    : problem_(problem),
      split_(split),
      block_mask_(block_mask),
      block_keys_(block_mask != nullptr ? block_mask->block().kv : plan::kBackwardKeys) {
  for (const Sequence& sequence : problem.sequences) {
    // A mask without its rows is a partial run over everything.
    whole_.push_back({0, static_cast<std::int32_t>(plan::round_up(sequence.kv_len, block_keys_) / block_keys_),
                      problem.mask_mod.empty() ? RunKind::full : RunKind::partial});
  }
  add_units();
  add_tiles();
  split_into_waves(plan::cpu_backward_wave_bytes(problem, split));
}

void BackwardSchedule::add_units() {
  const std::int64_t sequences = plan::cpu_backward_unit_sequences(problem_, split_);
  const std::int64_t heads = plan::cpu_backward_unit_heads(problem_, split_);
  for (std::int64_t head = 0; head < problem_.kv_heads; head += heads) {
    for (std::int64_t first = 0; first < problem_.batch; first += sequences) {
      Unit unit;
      for (std::int64_t h = head; h < head + heads; ++h) {
        for (std::int64_t b = first; b < first + sequences; ++b) {
          if (!split_.kv_broadcasts || b == first) unit.push_back({h, {}, 0});
          unit.back().sequences.push_back(b);
          unit.back().keys = std::max(unit.back().keys, sequence(b).kv_len);
        }
      }
      units_.push_back(std::move(unit));
    }
  }
}

// Tiles of one size in a row of the block mask, as few as there must be, in whole groups of the micro-kernel's rows.
void BackwardSchedule::add_tiles() {
  const std::int64_t group = split_.bricks() ? plan::kUnitRows : plan::kRowGroup;
  for (const Sequence& queries : problem_.sequences) {
    std::vector<QueryTile>& tiles = tiles_.emplace_back();
    const std::int64_t block_rows = block_mask_ != nullptr ? block_mask_->block().q : queries.q_len;
    for (std::int64_t first = 0; first < queries.q_len; first += block_rows) {
      const std::int64_t end = std::min(first + block_rows, queries.q_len);
      const std::int64_t count = plan::round_up(end - first, split_.tile_rows) / split_.tile_rows;
      const std::int64_t rows =
          std::min(split_.tile_rows, plan::round_up(plan::round_up(end - first, count) / count, group));
      for (std::int64_t q_first = first; q_first < end; q_first += rows) {
        tiles.push_back({first / block_rows, q_first, std::min(rows, end - q_first)});
      }
    }
  }
}

std::int64_t BackwardSchedule::query_bytes(const Unit& unit) const {
  std::int64_t bytes = 0;
  for (const KeyGroup& group : unit) {
    for (const std::int64_t index : group.sequences) {
      bytes += plan::cpu_backward_queries(problem_, split_, sequence(index).q_len).bytes * problem_.group();
    }
  }
  return bytes;
}

void BackwardSchedule::split_into_waves(std::int64_t bytes) {
  wave_begin_.push_back(0);
  std::int64_t in_use = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const std::int64_t own = query_bytes(units_[i]);
    if (in_use + own > bytes) {
      wave_begin_.push_back(static_cast<std::int64_t>(i));
      in_use = 0;
    }
    in_use += own;
  }
  if (!units_.empty()) wave_begin_.push_back(std::ssize(units_));
}

RowRuns BackwardSchedule::runs(std::int64_t sequence, std::int64_t head, std::int64_t q_block) const {
  if (block_mask_ != nullptr) return block_mask_->row(sequence, head, q_block);
  return std::span(&whole_[static_cast<std::size_t>(sequence)], 1);
}

// Score elements of each tile of keys.
std::vector<std::int64_t> BackwardSchedule::costs(const Unit& unit) const {
  std::int64_t longest = 0;
  for (const KeyGroup& group : unit) longest = std::max(longest, group.keys);
  const std::int64_t tile_keys = split_.tile_keys, count = plan::round_up(longest, tile_keys) / tile_keys;
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  const std::int64_t step = block_mask_ != nullptr && !block_mask_->shared_by_heads() ? 1 : problem_.group();
  for (const KeyGroup& group : unit) {
    for (const std::int64_t index : group.sequences) {
      const std::int64_t begin = group.kv_head * problem_.group();
      for (std::int64_t head = begin; head < begin + problem_.group(); head += step) {
        for (const QueryTile& tile : tiles(index)) {
          for (const Run& run : runs(index, head, tile.q_block)) {
            const std::int64_t first = run.begin * block_keys_;
            const std::int64_t end = std::min(run.end * block_keys_, sequence(index).kv_len);
            for (std::int64_t key = first; key < end;) {
              const std::int64_t at = key / tile_keys;
              const std::int64_t next = std::min(end, (at + 1) * tile_keys);
              all[static_cast<std::size_t>(at)] += (next - key) * tile.rows * step;
              key = next;
            }
          }
        }
      }
    }
  }
  return all;
}

// Pieces of about the same cost; a tile costs at least what packing its keys does.
void BackwardSchedule::add_tasks(const Unit& unit, std::int64_t index, std::vector<KeyTask>& tasks) const {
  const std::int64_t tile_cost = split_.tile_keys * 16;
  const std::vector<std::int64_t> cost = costs(unit);
  const std::int64_t tiles = std::ssize(cost);
  const std::int64_t total = std::accumulate(cost.begin(), cost.end(), tiles * tile_cost);
  std::int64_t begin = 0, before = 0, own = 0;
  for (std::int64_t piece = 0; piece < split_.pieces; ++piece) {
    std::int64_t end = begin;
    for (; end < tiles && (piece + 1 == split_.pieces || (before + own) * split_.pieces < total * (piece + 1)); ++end) {
      own += cost[static_cast<std::size_t>(end)] + tile_cost;
    }
    // A unit's only task may prepare and store its queries, without a key, too.
    if (end > begin || split_.pieces == 1) tasks.push_back({index, piece, begin, end, own});
    begin = end;
    before += std::exchange(own, 0);
  }
}

BackwardWave BackwardSchedule::wave(std::int64_t index) const {
  BackwardWave wave;
  std::vector<KeyTask> tasks;
  std::int64_t bytes = 0;
  for (std::int64_t i = wave_begin_[static_cast<std::size_t>(index)];
       i < wave_begin_[static_cast<std::size_t>(index) + 1]; ++i) {
    const Unit& unit = units_[static_cast<std::size_t>(i)];
    add_tasks(unit, std::ssize(wave.units), tasks);
    wave.units.push_back(unit);
    wave.largest_unit = std::max(wave.largest_unit, query_bytes(unit));
    for (const KeyGroup& group : unit) {
      for (const std::int64_t b : group.sequences) {
        for (std::int64_t g = 0; g < problem_.group(); ++g) {
          wave.queries.push_back({b, group.kv_head * problem_.group() + g, bytes});
          bytes += plan::cpu_backward_queries(problem_, split_, sequence(b).q_len).bytes;
        }
      }
    }
  }
  std::ranges::sort(wave.queries, {}, [](const QueryUnit& unit) { return std::pair(unit.sequence, unit.head); });
  std::ranges::stable_sort(tasks, std::greater<>(), &KeyTask::cost);
  const std::int64_t count = std::ssize(tasks);
  wave.lanes.resize(static_cast<std::size_t>(split_.lanes == 0 ? count : std::min(count, split_.lanes)));
  for (std::int64_t i = 0; i < count; ++i) {
    wave.lanes[static_cast<std::size_t>(i % std::ssize(wave.lanes))].push_back(tasks[static_cast<std::size_t>(i)]);
  }
  return wave;
}

const QueryUnit& BackwardSchedule::query_unit(const BackwardWave& wave, std::int64_t sequence,
                                              std::int64_t head) const {
  return *std::ranges::lower_bound(wave.queries, std::pair(sequence, head), {},
                                   [](const QueryUnit& unit) { return std::pair(unit.sequence, unit.head); });
}

}  // namespace heddle::cpu
