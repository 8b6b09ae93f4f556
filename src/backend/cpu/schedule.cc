#include "backend/cpu/schedule.h"

#include <algorithm>

#include "plan/families/cpu_forward.h"

namespace heddle::cpu {
namespace {

// Loading, finishing and storing a row costs about as much as so many of its scores.
constexpr std::int64_t kRowCost = 64;

}  // namespace

Schedule::Schedule(const problem::AttentionProblem& problem, std::int64_t k_batch, std::int64_t v_batch,
                   std::int64_t tile_rows, std::int64_t pack_bytes, const BlockMask* block_mask)
    : problem_(problem),
      block_mask_(block_mask),
      k_shared_(!problem.packed && k_batch == 1),
      v_shared_(!problem.packed && v_batch == 1),
      tile_rows_(tile_rows),
      block_keys_(block_mask != nullptr ? block_mask->block().kv : plan::kChunk) {
  for (const Sequence& sequence : problem.sequences) {
    longest_keys_ = std::max(longest_keys_, sequence.kv_len);
    // A mask without its rows is a partial run over everything.
    whole_.push_back({0, static_cast<std::int32_t>(plan::round_up(sequence.kv_len, block_keys_) / block_keys_),
                      problem.mask_mod.empty() ? RunKind::full : RunKind::partial});
  }
  // Sequences inside heads, so that broadcast keys serve all of their sequences in one wave.
  for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
    for (std::int64_t i = 0; i < problem.batch; ++i) {
      if (problem.sequences[static_cast<std::size_t>(i)].q_len > 0) pairs_.push_back({i, head});
    }
  }
  split_into_waves(pack_bytes);
}

std::int64_t Schedule::k_extent(const Pair& pair) const {
  return k_shared_ ? longest_keys_ : problem_.sequences[static_cast<std::size_t>(pair.sequence)].kv_len;
}
std::int64_t Schedule::v_extent(const Pair& pair) const {
  return v_shared_ ? longest_keys_ : problem_.sequences[static_cast<std::size_t>(pair.sequence)].kv_len;
}

// Pairs stand by head, so a shared unit can only be the one that was added last.
void Schedule::add_units(const Pair& pair, Wave& wave, std::int64_t& bytes) const {
  const auto add = [&](std::vector<PackedUnit>& units, std::int64_t owner, std::int64_t keys, std::int64_t size) {
    if (!units.empty() && units.back().sequence == owner && units.back().kv_head == pair.kv_head) return;
    units.push_back({owner, pair.kv_head, keys, bytes});
    bytes += size;
  };
  const std::int64_t k = k_extent(pair), v = v_extent(pair);
  add(wave.k_units, k_owner(pair), k, plan::cpu_forward_packed_k_bytes(problem_, k));
  add(wave.v_units, v_owner(pair), v, plan::cpu_forward_packed_v_bytes(problem_, v));
}

void Schedule::split_into_waves(std::int64_t pack_bytes) {
  wave_begin_.push_back(0);
  Wave units;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    add_units(pairs_[i], units, bytes);
    if (bytes > pack_bytes) {
      wave_begin_.push_back(static_cast<std::int64_t>(i));
      units = {};
      bytes = 0;
      add_units(pairs_[i], units, bytes);
    }
  }
  if (!pairs_.empty()) wave_begin_.push_back(std::ssize(pairs_));
}

Wave Schedule::wave(std::int64_t index) const {
  Wave wave;
  std::int64_t bytes = 0;
  for (std::int64_t i = wave_begin_[static_cast<std::size_t>(index)];
       i < wave_begin_[static_cast<std::size_t>(index) + 1]; ++i) {
    const Pair& pair = pairs_[static_cast<std::size_t>(i)];
    add_units(pair, wave, bytes);
    add_tiles(pair, wave);
  }
  std::ranges::stable_sort(wave.tiles, std::greater<>(), &TileTask::cost);
  return wave;
}

std::span<const Run> Schedule::runs(const TileTask& tile) const {
  if (block_mask_ != nullptr) return block_mask_->row(tile.sequence, tile.head, tile.q_block);
  return {&whole_[static_cast<std::size_t>(tile.sequence)], 1};
}

void Schedule::add_tiles(const Pair& pair, Wave& wave) const {
  const Sequence& sequence = problem_.sequences[static_cast<std::size_t>(pair.sequence)];
  const std::int64_t block_rows = block_mask_ != nullptr ? block_mask_->block().q : sequence.q_len;
  const std::int64_t group = problem_.group();
  for (std::int64_t head = pair.kv_head * group; head < (pair.kv_head + 1) * group; ++head) {
    for (std::int64_t first = 0; first < sequence.q_len; first += block_rows) {
      TileTask tile{.sequence = pair.sequence,
                    .head = head,
                    .q_block = first / block_rows,
                    .q_first = first,
                    .rows = 0,
                    .cost = 0,
                    .k_unit = static_cast<std::int32_t>(std::ssize(wave.k_units) - 1),
                    .v_unit = static_cast<std::int32_t>(std::ssize(wave.v_units) - 1)};
      std::int64_t keys = 0;
      for (const Run& run : runs(tile)) {
        const std::int64_t begin = run.begin * block_keys_, end = std::min(run.end * block_keys_, sequence.kv_len);
        keys += std::max<std::int64_t>(0, end - begin);
      }
      // Tiles of one size, as few as there must be, in whole groups of the micro-kernel's rows.
      const std::int64_t end = std::min(first + block_rows, sequence.q_len);
      const std::int64_t tiles = plan::round_up(end - first, tile_rows_) / tile_rows_;
      const std::int64_t rows =
          std::min(tile_rows_, plan::round_up(plan::round_up(end - first, tiles) / tiles, plan::kRowGroup));
      for (; tile.q_first < end; tile.q_first += rows) {
        tile.rows = std::min(rows, end - tile.q_first);
        tile.cost = tile.rows * (keys + kRowCost);
        wave.tiles.push_back(tile);
      }
    }
  }
}

}  // namespace heddle::cpu
