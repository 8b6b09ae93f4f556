#include "plan/tiles/key_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>

#include "expr/node.h"
#include "mask/shape.h"
#include "plan/tiles/packed_heads.h"

namespace heddle::plan {
namespace {

constexpr int kAttends = (1 << kMostWarpgroups) - 1;  // of a step's flags, kStepAttends for each warpgroup
static_assert(shared::kStepAttends == 1 && shared::kStepPartial == 1 << kMostWarpgroups);

using mask::block_count;
using shared::kWarpgroupRows;

/// Sequences with the same key walk the same rows.
using RowsKey = std::array<std::int64_t, 7>;
RowsKey rows_key(const Sequence& sequence, std::int64_t batch, const BlockMask* block_mask) {
  if (block_mask == nullptr) return {0, sequence.q_len, sequence.kv_len};
  const Expr& mask = block_mask->mask();
  const bool by_token = !mask.empty() && mask.node()->uses.intersects({expr::Leaf::q_token, expr::Leaf::kv_token});
  return {batch,
          sequence.q_len,
          sequence.kv_len,
          sequence.q_start,
          sequence.kv_start,
          by_token ? sequence.q_begin : 0,
          by_token ? sequence.kv_begin : 0};
}

}  // namespace

KeyRows::KeyRows(const problem::AttentionProblem& problem, const shared::TileShape& tile, const TileClocks& clocks,
                 const BlockMask* block_mask)
    : tile_(tile), clocks_(clocks), group_(problem.group()), head_tiles_(head_tiles(problem, tile)) {
  // If many tiles have an idle warpgroup, loads of keys and values limit the speed. The measured costs are of tiles
  // without: there such steps are few.
  if (has_few_queries(problem)) least_step_ = clocks_.loads;
  const bool own_rows = block_mask != nullptr && !block_mask->shared_by_batch();
  const bool by_head = block_mask != nullptr && !block_mask->shared_by_heads();
  if (tile.packs()) {
    heads_ = by_head ? problem.kv_heads * head_tiles_ : head_tiles_;  // the last of a group may have fewer heads
  } else if (by_head) {
    heads_ = problem.q_heads;
  }
  std::map<RowsKey, std::int64_t> known;
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(batch)];
    const auto [rows, added] =
        known.emplace(rows_key(sequence, own_rows ? batch : 0, block_mask), std::ssize(row_of_tile_));
    sequences_.push_back({rows->second, block_count(sequence.q_len, tile.queries())});
    if (!added) continue;
    kv_len_ = sequence.kv_len;
    kv_blocks_ = block_count(kv_len_, tile.kv_block);
    for (std::int64_t head = 0; head < heads_; ++head) {
      if (tile.packs()) {
        add_packed_tiles(block_mask, batch, head, sequence.q_len);
      } else {
        add_tiles(block_mask, batch, head, sequence.q_len);
      }
    }
  }
  rank_rows();
}

void KeyRows::add_tiles(const BlockMask* block_mask, std::int64_t batch, std::int64_t head, std::int64_t q_len) {
  const Run whole = {0, static_cast<std::int32_t>(kv_blocks_), RunKind::full};
  const std::int64_t scale = block_mask != nullptr ? block_mask->block().kv / tile_.kv_block : 1;
  // Queries that one row of the block mask serves; without a block mask, all.
  const std::int64_t q_block = block_mask != nullptr ? block_mask->block().q : std::max<std::int64_t>(1, q_len);
  std::array<std::int64_t, kMostWarpgroups> last{};
  std::array<std::vector<Run>, kMostWarpgroups> rooms;
  int last_live = 0;
  for (std::int64_t tile = 0; tile < block_count(q_len, tile_.rows()); ++tile) {
    const std::int64_t first_query = tile * tile_.rows();
    const auto live =
        static_cast<int>(std::min<std::int64_t>(tile_.warpgroups, block_count(q_len - first_query, tile_.unit_rows)));
    std::array<std::int64_t, kMostWarpgroups> mask_rows{};
    std::array<std::span<const Run>, kMostWarpgroups> runs;
    for (std::size_t w = 0; w < static_cast<std::size_t>(live); ++w) {
      mask_rows[w] = (first_query + static_cast<std::int64_t>(w) * tile_.unit_rows) / q_block;
      runs[w] = block_mask != nullptr ? block_mask->row(batch, head, mask_rows[w]).side_by_side(rooms[w])
                                      : std::span(&whole, kv_blocks_ > 0 ? 1U : 0U);
    }
    if (tile_.stores_mask || live != last_live || mask_rows != last) {
      add_row(std::span(runs).first(static_cast<std::size_t>(live)), live, scale);
      if (tile_.stores_mask) store_mask(batch, head, first_query);
    }
    last = mask_rows, last_live = live;
    row_of_tile_.push_back(rows_.size() - 1);
  }
}

/// Adds tile `head_tile` of the heads. Each key head takes head_tiles_ tiles.
void KeyRows::add_packed_tiles(const BlockMask* block_mask, std::int64_t batch, std::int64_t head_tile,
                               std::int64_t q_len) {
  const std::int64_t kv_head = head_tile / head_tiles_, in_group = head_tile % head_tiles_ * tile_.heads();
  const std::int64_t first = kv_head * group_ + in_group, end = std::min(first + tile_.heads(), (kv_head + 1) * group_);
  const auto live = static_cast<std::size_t>(block_count(end - first, tile_.warpgroup_heads()));
  const Run whole = {0, static_cast<std::int32_t>(kv_blocks_), RunKind::full};
  const std::int64_t scale = block_mask != nullptr ? block_mask->block().kv / tile_.kv_block : 1;
  const std::int64_t q_block = block_mask != nullptr ? block_mask->block().q : std::max<std::int64_t>(1, q_len);
  std::vector<std::vector<Run>> rooms(static_cast<std::size_t>(end - first));  // by head
  std::int64_t last = -1;
  for (std::int64_t tile = 0; tile < block_count(q_len, tile_.queries()); ++tile) {
    const std::int64_t mask_row = tile * tile_.queries() / q_block;
    if (mask_row != last) {
      std::array<std::vector<Run>, kMostWarpgroups> merged;
      std::array<std::span<const Run>, kMostWarpgroups> runs;
      for (std::size_t w = 0; w < live; ++w) {
        std::vector<std::span<const Run>> of_heads;
        const std::int64_t first_of_w = first + static_cast<std::int64_t>(w) * tile_.warpgroup_heads();
        for (std::int64_t head = first_of_w; head < std::min(first_of_w + tile_.warpgroup_heads(), end); ++head) {
          std::vector<Run>& room = rooms[static_cast<std::size_t>(head - first)];
          of_heads.push_back(block_mask != nullptr ? block_mask->row(batch, head, mask_row).side_by_side(room)
                                                   : std::span(&whole, kv_blocks_ > 0 ? 1U : 0U));
        }
        merged[w] = merged_runs(of_heads);
        runs[w] = merged[w];
      }
      add_row(std::span(runs).first(live), static_cast<int>(live), scale);
    }
    last = mask_row;
    row_of_tile_.push_back(rows_.size() - 1);
  }
}

// `scale`: key blocks of the tile in one of the mask.
void KeyRows::add_row(WarpgroupRuns warpgroups, int live, std::int64_t scale) {
  rows_.push_back({.first_run = static_cast<int>(runs_.size())});
  add_runs(warpgroups, scale);
  KeyRow& row = rows_.back();
  int attending = 0;
  for (int r = row.first_run; r < row.first_run + row.runs; ++r) attending |= runs_[static_cast<std::size_t>(r)].flags;
  row.unfilled = ((1 << live) - 1) & ~attending;
  if (row.steps > 0) row.clocks += static_cast<std::int64_t>(clocks_.tile);
  tell_what_follows();
}

/// The runs of key blocks counted from the last one.
std::vector<Run> KeyRows::mirror(std::span<const Run> runs, std::int64_t scale) const {
  std::vector<Run> mirrored;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const std::int64_t end = std::min(run->end * scale, kv_blocks_);
    mirrored.push_back({static_cast<std::int32_t>(kv_blocks_ - end),
                        static_cast<std::int32_t>(kv_blocks_ - run->begin * scale), run->kind});
  }
  return mirrored;
}

/// Walks the runs of all warpgroups side by side; between two ends of runs nothing changes.
void KeyRows::add_runs(WarpgroupRuns warpgroups, std::int64_t scale) {
  std::array<std::vector<Run>, kMostWarpgroups> mirrored;
  std::array<WarpgroupRuns::value_type, kMostWarpgroups> turned;
  if (tile_.descending) {
    for (std::size_t w = 0; w < warpgroups.size(); ++w) {
      mirrored[w] = mirror(warpgroups[w], scale);
      turned[w] = mirrored[w];
    }
    warpgroups = std::span(turned).first(warpgroups.size());
    scale = 1;
  }
  std::array<std::size_t, kMostWarpgroups> next{};
  for (std::int64_t at = 0; at < kv_blocks_;) {
    std::int64_t end = kv_blocks_;
    int flags = 0;
    for (std::size_t w = 0; w < warpgroups.size(); ++w) {
      while (next[w] < warpgroups[w].size() && warpgroups[w][next[w]].end * scale <= at) ++next[w];
      if (next[w] == warpgroups[w].size()) continue;
      const Run& run = warpgroups[w][next[w]];
      if (run.begin * scale > at) {
        end = std::min(end, run.begin * scale);
        continue;
      }
      end = std::min(end, run.end * scale);
      flags |= shared::kStepAttends << w;
      if (run.kind == RunKind::partial) flags |= shared::kStepPartial << w;
    }
    if (flags != 0) add_run(at, end, flags);
    at = end;
  }
}

void KeyRows::add_run(std::int64_t begin, std::int64_t end, int flags) {
  const int attends = flags & kAttends, partial = flags / shared::kStepPartial;
  KeyRow& row = rows_.back();
  const auto share = [&](int bits) {
    return static_cast<double>(std::popcount(static_cast<unsigned>(bits))) / tile_.warpgroups;
  };
  row.steps += static_cast<int>(end - begin);
  const std::int64_t first = tile_.descending ? kv_blocks_ - end : begin, last = first + end - begin;
  const std::int64_t keys = std::min(last * tile_.kv_block, kv_len_) - first * tile_.kv_block;
  for (std::size_t w = 0; w < kMostWarpgroups; ++w) {
    if (attends >> w & 1) row.keys[w] += keys;
  }
  row.clocks += static_cast<std::int64_t>(static_cast<double>(end - begin) *
                                          (std::max(share(attends) * clocks_.full_step, least_step_) +
                                           share(partial) * (clocks_.partial_step - clocks_.full_step)));
  if (row.runs > 0 && runs_.back().end == begin && runs_.back().flags == flags) {
    runs_.back().end = static_cast<int>(end);
    return;
  }
  runs_.push_back({static_cast<int>(begin), static_cast<int>(end), flags, flags});
  ++row.runs;
}

/// Gives words to the last row's partial blocks. Room is reserved for every block between the first and the last of
/// them, so a block's number alone gives the place of its words.
void KeyRows::store_mask(std::int64_t batch, std::int64_t head, std::int64_t q_first) {
  KeyRow& row = rows_.back();
  const std::size_t first_stored = stored_.runs.size();
  std::int64_t least = kv_blocks_, end = 0;
  for (int r = row.first_run; r < row.first_run + row.runs; ++r) {
    const shared::KvRun& run = runs_[static_cast<std::size_t>(r)];
    const int partial = run.flags / shared::kStepPartial & kAttends;
    if (partial == 0) continue;
    const std::int64_t blocks = run.end - run.begin, block = tile_.descending ? kv_blocks_ - run.end : run.begin;
    least = std::min(least, block);
    end = std::max(end, block + blocks);
    stored_.partial += blocks;
    stored_.runs.push_back({.batch = static_cast<int>(batch),
                            .head = static_cast<int>(head),
                            .q_first = static_cast<int>(q_first),
                            .block = static_cast<int>(block),
                            .blocks = static_cast<int>(blocks),
                            .words_at = 0,
                            .warpgroups = partial});
  }
  if (end == 0) return;
  row.mask_words_at = static_cast<int>(stored_.room - least);
  for (shared::StoredRun& run : std::span(stored_.runs).subspan(first_stored)) run.words_at = row.mask_words_at;
  stored_.room += end - least;
}

/// Each step of the last row says whether all attend the next.
void KeyRows::tell_what_follows() {
  KeyRow& row = rows_.back();
  const auto runs = std::span(runs_).subspan(static_cast<std::size_t>(row.first_run));  // the last row's
  bool next_uneven = false;  // after the row's last step comes another tile
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const bool uneven = (run->flags & kAttends) != everyone();
    if (next_uneven) run->last_flags |= shared::kStepNextUneven;
    if (uneven) run->flags |= shared::kStepNextUneven;
    next_uneven = uneven;
  }
  row.uneven = next_uneven;
}

void KeyRows::rank_rows() {
  std::vector<std::int64_t> distinct;
  distinct.reserve(rows_.size());
  for (const KeyRow& row : rows_) distinct.push_back(row.clocks);
  std::ranges::sort(distinct, std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  ranks_ = static_cast<int>(distinct.size());
  for (KeyRow& row : rows_) {
    row.rank = static_cast<int>(std::ranges::lower_bound(distinct, row.clocks, std::greater<>()) - distinct.begin());
  }
}

}  // namespace heddle::plan
