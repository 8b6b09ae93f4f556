#include "families/cpu/cpu_forward_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "families/cpu/cpu_forward_plans.h"

namespace heddle::cpu {
namespace {

// Costs in scores: to load, finish and store a row; to pack a key and its value in place.
constexpr std::int64_t kRowCost = 64;
constexpr std::int64_t kInPlaceCost = 8;
/// AMX multiplies this many rows at a time.
constexpr std::int64_t kBrickRows = 16;

}  // namespace

Schedule::Schedule(const problem::AttentionProblem& problem, std::int64_t k_batch, std::int64_t v_batch,
                   std::int64_t tile_rows, std::int64_t pair_bytes, const BlockMask* block_mask, bool bricks)
    : problem_(problem),
      block_mask_(block_mask),
      k_shared_(!problem.packed && k_batch == 1),
      v_shared_(!problem.packed && v_batch == 1),
      bricks_(bricks),
      tile_rows_(tile_rows),
      block_keys_(block_mask != nullptr ? block_mask->block().kv : plan::kChunk) {
  for (const Sequence& sequence : problem.sequences) {
    if (!plan::cpu_forward_in_place(problem, sequence, tile_rows, bricks)) {
      longest_keys_ = std::max(longest_keys_, sequence.kv_len);
    }
    // A mask without its rows is a partial run over everything.
    whole_.push_back({0, static_cast<std::int32_t>(plan::round_up(sequence.kv_len, block_keys_) / block_keys_),
                      problem.mask_mod.empty() ? RunKind::full : RunKind::partial});
  }
  // Sequences inside heads, so that broadcast keys serve all of their sequences in one wave.
  for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
    for (std::int64_t i = 0; i < problem.batch; ++i) {
      if (sequence(i).q_len == 0) continue;
      pairs_.push_back({i, head, plan::cpu_forward_in_place(problem, sequence(i), tile_rows, bricks)});
    }
  }
  split_into_waves(pair_bytes);
}

// Returns the bytes in use with the pair's units. Pairs stand by head, so a shared unit can only be the one that was
// added last.
std::int64_t Schedule::add_units(const Pair& pair, Wave& wave, std::int64_t bytes) const {
  if (pair.in_place) {
    const std::int64_t size = plan::cpu_forward_partials(problem_, sequence(pair.sequence)).bytes;
    if (size > 0) wave.partials.push_back({pair.sequence, bytes, 0});
    return bytes + size;
  }
  const auto add = [&](std::vector<PackedUnit>& units, bool shared, auto size_of_keys) {
    const std::int64_t owner = shared ? 0 : pair.sequence;
    const std::int64_t keys = shared ? longest_keys_ : sequence(pair.sequence).kv_len;
    if (!units.empty() && units.back().sequence == owner && units.back().kv_head == pair.kv_head) return;
    units.push_back({owner, pair.kv_head, keys, bytes});
    bytes += size_of_keys(problem_, keys, bricks_);
  };
  add(wave.k_units, k_shared_, plan::cpu_forward_packed_k_bytes);
  add(wave.v_units, v_shared_, plan::cpu_forward_packed_v_bytes);
  return bytes;
}

void Schedule::split_into_waves(std::int64_t pair_bytes) {
  wave_begin_.push_back(0);
  Wave units;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    bytes = add_units(pairs_[i], units, bytes);
    if (bytes > pair_bytes) {
      wave_begin_.push_back(static_cast<std::int64_t>(i));
      units = {};
      bytes = add_units(pairs_[i], units, 0);
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
    bytes = add_units(pair, wave, bytes);
    add_tiles(pair, wave);
  }
  wave.bytes = bytes;
  std::ranges::stable_sort(wave.tiles, std::greater<>(), &TileTask::cost);
  return wave;
}

RowRuns Schedule::runs(const TileTask& tile) const {
  if (block_mask_ != nullptr) return block_mask_->row(tile.sequence, tile.head, tile.q_block);
  return std::span(&whole_[static_cast<std::size_t>(tile.sequence)], 1);
}

std::string Schedule::in_place_text() const {
  std::int64_t tiles = 0, pieces = 0, most = 0;
  for (std::int64_t i = 0; i < waves(); ++i) {
    for (const TileTask& tile : wave(i).tiles) {
      if (tile.k_unit >= 0) continue;
      tiles += tile.piece == 0 ? 1 : 0;
      ++pieces;
      most = std::max(most, keys_within(tile, tile.key_begin, tile.key_end));
    }
  }
  if (tiles == 0) return {};
  return fmt::format("keys and values of {} tiles, in {} pieces of at most {} keys", tiles, pieces, most);
}

// The pair's queries, one row of the block mask after the other; tiles of one size in a row, as few as there must be,
// in whole groups of the micro-kernel's rows.
void Schedule::add_tiles(const Pair& pair, Wave& wave) const {
  const Sequence& queries = sequence(pair.sequence);
  const std::int64_t block_rows = block_mask_ != nullptr ? block_mask_->block().q : queries.q_len;
  for (std::int64_t first = 0; first < queries.q_len; first += block_rows) {
    const std::int64_t end = std::min(first + block_rows, queries.q_len);
    const std::int64_t tiles = plan::round_up(end - first, tile_rows_) / tile_rows_;
    const std::int64_t rows = std::min(
        tile_rows_, plan::round_up(plan::round_up(end - first, tiles) / tiles, bricks_ ? kBrickRows : plan::kRowGroup));
    for (std::int64_t q_first = first; q_first < end; q_first += rows) {
      TileTask tile{};
      tile.sequence = pair.sequence;
      tile.q_block = first / block_rows;
      tile.q_first = q_first;
      tile.rows = std::min(rows, end - q_first);
      add_heads(pair, tile, wave);
    }
  }
}

// The tile for all heads of the group. Heads that see the same blocks stand in one tile while they fit.
void Schedule::add_heads(const Pair& pair, TileTask tile, Wave& wave) const {
  const std::int64_t group = problem_.group(), end = (pair.kv_head + 1) * group;
  const auto same_runs = [&](std::int64_t head) {
    TileTask other = tile;
    other.head = head;
    return runs(tile) == runs(other);
  };
  for (tile.head = pair.kv_head * group; tile.head < end; tile.head += tile.heads) {
    tile.heads = 1;
    while (tile.head + tile.heads < end && (tile.heads + 1) * tile.rows <= tile_rows_ &&
           same_runs(tile.head + tile.heads)) {
      ++tile.heads;
    }
    add_pieces(pair, tile, wave);
  }
}

void Schedule::add_pieces(const Pair& pair, TileTask tile, Wave& wave) const {
  tile.k_unit = pair.in_place ? -1 : static_cast<std::int32_t>(std::ssize(wave.k_units) - 1);
  tile.v_unit = pair.in_place ? -1 : static_cast<std::int32_t>(std::ssize(wave.v_units) - 1);
  tile.partials = tile.merge = -1;
  tile.pieces = 1;
  const std::int64_t keys = sequence(pair.sequence).kv_len;
  if (pair.in_place) {
    const std::int64_t attending = keys_within(tile, 0, keys),
                       piece = plan::cpu_forward_piece_keys(problem_, attending);
    tile.pieces = static_cast<std::int32_t>(std::max<std::int64_t>(1, plan::round_up(attending, piece) / piece));
    if (tile.pieces > 1) return cut_keys(tile, piece, wave);
  }
  add_piece(tile, 0, keys, wave);
}

// Cuts a tile's keys where `piece` of those in its runs lie behind the last cut. Keys in no run belong to some piece.
void Schedule::cut_keys(TileTask tile, std::int64_t piece, Wave& wave) const {
  PartialUnit& unit = wave.partials.back();
  tile.partials = static_cast<std::int32_t>(std::ssize(wave.partials) - 1);
  tile.partial_row = unit.rows;
  unit.rows += tile.heads * tile.rows;
  tile.merge = static_cast<std::int32_t>(std::ssize(wave.merges));
  wave.merges.push_back(tile);
  const std::int64_t keys = sequence(tile.sequence).kv_len;
  std::int64_t first = 0, room = piece;  // of the piece that begins at `first`
  for (const Run& run : runs(tile)) {
    std::int64_t key = run.begin * block_keys_;
    const std::int64_t end = std::min(run.end * block_keys_, keys);
    for (; end - key > room; ++tile.piece, room = piece) {
      key += room;
      add_piece(tile, first, key, wave);
      first = key;
    }
    room -= std::max<std::int64_t>(0, end - key);
  }
  add_piece(tile, first, keys, wave);
}

void Schedule::add_piece(TileTask tile, std::int64_t key_begin, std::int64_t key_end, Wave& wave) const {
  tile.key_begin = key_begin;
  tile.key_end = key_end;
  const std::int64_t rows = tile.rows * tile.heads, keys = keys_within(tile, key_begin, key_end);
  tile.cost = rows * (keys + kRowCost) + (tile.k_unit < 0 ? keys * kInPlaceCost : 0);
  wave.tiles.push_back(tile);
}

std::int64_t Schedule::keys_within(const TileTask& tile, std::int64_t begin, std::int64_t end) const {
  std::int64_t keys = 0;
  for (const Run& run : runs(tile)) {
    keys += std::max<std::int64_t>(
        0, std::min(run.end * block_keys_, end) - std::max<std::int64_t>(run.begin * block_keys_, begin));
  }
  return keys;
}

}  // namespace heddle::cpu
