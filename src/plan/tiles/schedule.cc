// Makes the lists of a plan's tiles. The mask's rows become runs of each tile's key blocks, with their cost (KeyRows).
// The tiles of each section of heads are ordered, the longest first, one section after the other. The shortest tiles of
// all move to the end.
#include "plan/tiles/schedule.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "mask/shape.h"
#include "plan/tiles/deal.h"
#include "plan/tiles/last_tiles.h"
#include "plan/tiles/packed_heads.h"

namespace heddle::plan {
namespace {

using mask::block_count;

static_assert(shared::kItemQTile == offsetof(shared::WorkItem, q_tile) &&
              shared::kItemHead == offsetof(shared::WorkItem, head) &&
              shared::kItemBatch == offsetof(shared::WorkItem, batch) &&
              shared::kItemKvHead == offsetof(shared::WorkItem, kv_head) &&
              shared::kItemSteps == offsetof(shared::WorkItem, steps) &&
              shared::kItemFirstRun == offsetof(shared::WorkItem, first_run) &&
              shared::kItemBefore == offsetof(shared::WorkItem, before) &&
              shared::kItemRunBegin == offsetof(shared::WorkItem, run) + offsetof(shared::KvRun, begin) &&
              shared::kItemRunEnd == offsetof(shared::WorkItem, run) + offsetof(shared::KvRun, end) &&
              shared::kItemRunFlags == offsetof(shared::WorkItem, run) + offsetof(shared::KvRun, flags) &&
              shared::kItemRunLastFlags == offsetof(shared::WorkItem, run) + offsetof(shared::KvRun, last_flags) &&
              shared::kOriginHead == offsetof(shared::TileOrigin, head) &&
              shared::kOriginBatch == offsetof(shared::TileOrigin, batch) &&
              shared::kOriginItem == offsetof(shared::TileOrigin, item) &&
              shared::kSequenceQBegin == offsetof(shared::SequenceSpan, q_begin) &&
              shared::kSequenceQLen == offsetof(shared::SequenceSpan, q_len) &&
              shared::kSequenceKvLen == offsetof(shared::SequenceSpan, kv_len) &&
              shared::kSequenceQStart == offsetof(shared::SequenceSpan, q_start) &&
              shared::kSequenceKvBegin == offsetof(shared::SequenceSpan, kv_begin) &&
              shared::kSequenceKvEnd == offsetof(shared::SequenceSpan, kv_end) &&
              shared::kSequenceKvBefore == offsetof(shared::SequenceSpan, kv_before) &&
              shared::kSequenceQEnd == offsetof(shared::SequenceSpan, q_end));

struct HeadOfBatch {
  int head, kv_head, batch;
};

/// Query heads in the order of the keys that they read, so that neighbours share them; a section is a stretch of this
/// list. Of the heads that a tile packs, `packed` at most, the list has the first. batch_inside: each head's sequences
/// follow each other.
std::vector<HeadOfBatch> heads_by_keys(const problem::AttentionProblem& problem, int packed, bool batch_inside) {
  std::vector<HeadOfBatch> heads;
  heads.reserve(static_cast<std::size_t>(problem.batch * problem.q_heads / packed));
  const auto add = [&](std::int64_t head, std::int64_t kv_head, std::int64_t batch) {
    heads.push_back({static_cast<int>(head), static_cast<int>(kv_head), static_cast<int>(batch)});
  };
  const auto add_group = [&](std::int64_t kv_head, std::int64_t batch) {
    for (std::int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); head += packed) {
      add(head, kv_head, batch);
    }
  };
  if (batch_inside) {
    for (std::int64_t head = 0; head < problem.q_heads; ++head) {
      for (std::int64_t batch = 0; batch < problem.batch && head % problem.group() % packed == 0; ++batch) {
        add(head, head / problem.group(), batch);
      }
    }
  } else if (problem.shared_kv) {
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      for (std::int64_t batch = 0; batch < problem.batch; ++batch) add_group(kv_head, batch);
    }
  } else {
    for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
      for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) add_group(kv_head, batch);
    }
  }
  return heads;
}

/// Keys before each key head, in the order of heads_by_keys(), and at the end all keys. batch_inside: a head's
/// sequences count as one.
std::vector<std::int64_t> keys_before(const problem::AttentionProblem& problem, bool batch_inside) {
  std::vector<std::int64_t> keys = {0};
  const auto add = [&](std::int64_t length) { keys.push_back(keys.back() + length); };
  if (problem.shared_kv) {
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) add(problem.kv_rows);
  } else if (batch_inside) {
    std::int64_t all = 0;
    for (const Sequence& sequence : problem.sequences) all += sequence.kv_len;
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) add(all);
  } else {
    for (const Sequence& sequence : problem.sequences) {
      for (std::int64_t head = 0; head < problem.kv_heads; ++head) add(sequence.kv_len);
    }
  }
  return keys;
}

/// The ends of sections in heads_by_keys(), which has `head_tiles` for a head of keys. Sections are as few as fit into
/// the budget and about equal in bytes: a small last one would have too few tiles to even out the CTAs' loads.
std::vector<std::size_t> section_ends(const problem::AttentionProblem& problem, std::int64_t head_tiles,
                                      const device::GpuCaps& caps, const TileOrder& order) {
  const std::int64_t budget =
      caps.l2_bytes > 0 ? std::min(order.section_bytes, caps.l2_bytes / 3) : order.section_bytes;
  const std::vector<std::int64_t> keys = keys_before(problem, order.batch_inside);
  const std::int64_t kv_heads = std::ssize(keys) - 1, all = keys.back();
  const std::int64_t head_bytes =
      std::max<std::int64_t>(1, all / kv_heads * (problem.qk_dim + problem.v_dim) * size_of(problem.k_dtype));
  const std::int64_t fitting = std::max<std::int64_t>(1, budget / head_bytes);
  const std::int64_t sections = block_count(kv_heads, fitting);
  const std::int64_t heads = problem.batch * problem.kv_heads * head_tiles / kv_heads;  // that read the same keys
  std::vector<std::size_t> ends;
  for (std::int64_t i = 1; i <= sections; ++i) {
    const auto end = std::ranges::upper_bound(keys, all * i / sections) - keys.begin() - 1;
    ends.push_back(static_cast<std::size_t>((i < sections ? end : kv_heads) * heads));
  }
  return ends;
}

struct Tile {
  int q_tile, head, kv_head, batch;
  const KeyRow* row;
};

/// Orders the tiles of some heads by their rows' ranks; equal ones stay in the order of heads. Tiles without a step are
/// left out, and their queries go to `fills`, unless only the device knows which rows exist.
class SectionSorter {
 public:
  SectionSorter(const problem::AttentionProblem& problem, const shared::TileShape& shape, const KeyRows& rows,
                bool batch_inside)
      : problem_(problem), shape_(shape), rows_(rows), batch_inside_(batch_inside) {}

  void append(std::span<const HeadOfBatch> section, std::vector<Tile>& sorted, std::vector<shared::RowFill>& fills) {
    first_.assign(static_cast<std::size_t>(rows_.ranks()) + 1, 0);
    for_tiles(section, [&](const Tile& tile) {
      if (is_listed(tile)) ++first_[static_cast<std::size_t>(tile.row->rank) + 1];
    });
    for (std::size_t rank = 1; rank < first_.size(); ++rank) first_[rank] += first_[rank - 1];
    const std::size_t base = sorted.size();
    sorted.resize(base + first_.back());
    for_tiles(section, [&](const Tile& tile) {
      if (is_listed(tile)) sorted[base + first_[static_cast<std::size_t>(tile.row->rank)]++] = tile;
      for (int w = 0; w < shape_.warpgroups && !problem_.device_lengths; ++w) {
        if (tile.row->unfilled >> w & 1) add_fills(tile, w, fills);
      }
    });
  }

 private:
  bool is_listed(const Tile& tile) const { return tile.row->steps > 0 || problem_.device_lengths; }

  /// A warpgroup's queries, of each of its heads.
  void add_fills(const Tile& tile, int warpgroup, std::vector<shared::RowFill>& fills) const {
    const Sequence& sequence = problem_.sequences[static_cast<std::size_t>(tile.batch)];
    const int rows = shape_.warpgroup_queries();
    const int first = tile.q_tile * shape_.queries() + (shape_.packs() ? 0 : warpgroup * rows);
    const int head = tile.head + (shape_.packs() ? warpgroup * shape_.warpgroup_heads() : 0);
    const int end = (tile.kv_head + 1) * static_cast<int>(problem_.group());
    for (int of_head = head; of_head < std::min(head + shape_.warpgroup_heads(), end); ++of_head) {
      fills.push_back({.row = static_cast<int>(sequence.q_begin) + first,
                       .rows = static_cast<int>(std::min<std::int64_t>(rows, sequence.q_len - first)),
                       .head = of_head,
                       .batch = tile.batch});
    }
  }

  /// Visits each head tile after tile; if a head's sequences share reads, a tile of all sequences, then the next tile.
  template <class F>
  void for_tiles(std::span<const HeadOfBatch> section, F&& f) const {
    const std::size_t together = batch_inside_ ? static_cast<std::size_t>(problem_.batch) : 1;
    for (std::size_t first = 0; first < section.size(); first += together) {
      const auto sequences = section.subspan(first, together);
      std::int64_t q_tiles = 0;
      for (const HeadOfBatch& at : sequences) q_tiles = std::max(q_tiles, rows_.q_tiles(at.batch));
      for (int q_tile = 0; q_tile < q_tiles; ++q_tile) {
        for (const HeadOfBatch& at : sequences) {
          if (q_tile >= rows_.q_tiles(at.batch)) continue;
          f(Tile{q_tile, at.head, at.kv_head, at.batch, &rows_.of(at.batch, at.head, q_tile)});
        }
      }
    }
  }

  const problem::AttentionProblem& problem_;
  const shared::TileShape& shape_;
  const KeyRows& rows_;
  bool batch_inside_;
  std::vector<std::size_t> first_;
};

/// Rows past the end of a padded sequence.
void fill_padding(const problem::AttentionProblem& problem, std::vector<shared::RowFill>& fills) {
  if (problem.packed || problem.device_lengths) return;
  const int rows = static_cast<int>(problem.q_rows);
  for (int batch = 0; batch < static_cast<int>(problem.batch); ++batch) {
    const int end = static_cast<int>(problem.sequences[static_cast<std::size_t>(batch)].q_len);
    for (int head = 0; head < static_cast<int>(problem.q_heads); ++head) {
      for (int row = end; row < rows; row += shared::kWarpgroupRows) {
        fills.push_back({row, std::min(shared::kWarpgroupRows, rows - row), head, batch});
      }
    }
  }
}

/// Pairs of a query and a key that are multiplied, those past the ends not counted.
std::int64_t attended_elements(const std::vector<Tile>& tiles, const problem::AttentionProblem& problem,
                               const shared::TileShape& shape) {
  std::int64_t elements = 0;
  const std::int64_t most = shape.warpgroup_queries();
  for (const Tile& tile : tiles) {
    const std::int64_t length = problem.sequences[static_cast<std::size_t>(tile.batch)].q_len;
    const std::int64_t heads_left = (tile.kv_head + 1) * problem.group() - tile.head,
                       most_heads = shape.warpgroup_heads();
    for (int w = 0; w < shape.warpgroups; ++w) {
      const std::int64_t first = std::int64_t{tile.q_tile} * shape.queries() + (shape.packs() ? 0 : w * most);
      const std::int64_t heads = shape.packs() ? std::min<std::int64_t>(most_heads, heads_left - w * most_heads) : 1;
      const std::int64_t queries = std::min(most, length - first);
      if (queries > 0 && heads > 0) elements += queries * heads * tile.row->keys[static_cast<std::size_t>(w)];
    }
  }
  return elements;
}

/// Moves the shortest tiles, those of ranks from `first_short` on, to the end, the longest of them first. They read few
/// keys, so it costs little that these are no longer in L2.
void put_short_ones_last(std::vector<Tile>& tiles, int first_short) {
  const auto first_short_tile =
      std::stable_partition(tiles.begin(), tiles.end(), [&](const Tile& tile) { return tile.row->rank < first_short; });
  std::stable_sort(first_short_tile, tiles.end(),
                   [](const Tile& x, const Tile& y) { return x.row->rank < y.row->rank; });
}

/// The first rank of those that come last.
int first_short_rank(const problem::AttentionProblem& problem, const std::vector<Tile>& tiles, int ranks, int workers,
                     const device::GpuCaps& caps, const TileOrder& order) {
  std::vector<TileCost> costs;
  costs.reserve(tiles.size());
  for (const Tile& tile : tiles) costs.push_back({tile.row->clocks, tile.row->rank});
  if (order.last_share) return first_rank_of_share(costs, ranks, *order.last_share);
  // Tiles of many heads are drawn at a time there. That is free if the keys of all stay in L2.
  const double bytes = static_cast<double>(keys_before(problem, order.batch_inside).back()) *
                       static_cast<double>((problem.qk_dim + problem.v_dim) * size_of(problem.k_dtype));
  return best_first_rank(costs, ranks, workers, kLastShare,
                         bytes <= 0.5 * static_cast<double>(caps.l2_bytes) ? 0.5 : 0.25);
}

/// Predicts which worker draws which tile.
void predict(const std::vector<Tile>& tiles, TileSchedule& schedule) {
  std::vector<std::int64_t> clocks;
  clocks.reserve(tiles.size());
  for (const Tile& tile : tiles) clocks.push_back(tile.row->clocks);
  Deal drawn = deal(clocks, schedule.grid);
  schedule.longest = static_cast<double>(*std::ranges::max_element(drawn.loads));
  schedule.ctas = std::move(drawn.workers);
}

std::vector<shared::WorkItem> items_of(const std::vector<Tile>& tiles, const std::vector<shared::KvRun>& runs) {
  std::vector<shared::WorkItem> items;
  items.reserve(tiles.size());
  for (const Tile& tile : tiles) {
    const KeyRow& row = *tile.row;
    items.push_back({.q_tile = tile.q_tile,
                     .head = tile.head,
                     .batch = tile.batch,
                     .kv_head = tile.kv_head,
                     .steps = row.steps,
                     .first_run = row.first_run,
                     .runs = row.runs,
                     .before = row.uneven ? shared::kStepNextUneven : 0,
                     .run = row.steps > 0 ? runs[static_cast<std::size_t>(row.first_run)] : shared::KvRun{}});
  }
  return items;
}

}  // namespace

std::int64_t count_tiles(const problem::AttentionProblem& problem, std::int64_t rows) {
  std::int64_t tiles = 0;
  for (const Sequence& sequence : problem.sequences) tiles += block_count(sequence.q_len, rows);
  return tiles * problem.q_heads;
}

std::int64_t count_tiles(const problem::AttentionProblem& problem, const shared::TileShape& tile) {
  if (problem.q_heads == 0) return 0;
  return count_tiles(problem, tile.queries()) / problem.group() * head_tiles(problem, tile);
}

TileSchedule schedule_tiles(const problem::AttentionProblem& problem, const shared::TileShape& tile,
                            const TileClocks& clocks, const BlockMask* block_mask, const device::GpuCaps& caps,
                            const TileOrder& order) {
  TileSchedule schedule;
  if (problem.batch == 0 || problem.q_heads == 0 || problem.q_rows == 0) return schedule;

  KeyRows rows(problem, tile, clocks, block_mask);
  const std::vector<HeadOfBatch> heads = heads_by_keys(problem, tile.heads(), order.batch_inside);
  std::vector<Tile> tiles;
  tiles.reserve(static_cast<std::size_t>(count_tiles(problem, tile)));
  SectionSorter sorter(problem, tile, rows, order.batch_inside);
  std::size_t begin = 0;
  for (const std::size_t end : section_ends(problem, head_tiles(problem, tile), caps, order)) {
    sorter.append(std::span(heads).subspan(begin, end - begin), tiles, schedule.fills);
    begin = end;
  }
  schedule.unattending_fills = static_cast<int>(schedule.fills.size());
  fill_padding(problem, schedule.fills);
  // Fills are spread over the CTAs too, those that only the device knows by rows of a warpgroup.
  std::size_t fills = schedule.fills.size();
  if (problem.device_lengths) {
    fills = static_cast<std::size_t>(problem.q_heads * block_count(problem.q_rows, shared::kWarpgroupRows));
    if (!problem.packed) fills *= static_cast<std::size_t>(problem.batch);
  }
  const std::size_t work = std::max(tiles.size(), fills);
  schedule.grid = static_cast<int>(std::min(work, static_cast<std::size_t>(std::max(1, caps.multiprocessors))));
  put_short_ones_last(tiles, first_short_rank(problem, tiles, rows.ranks(), schedule.grid, caps, order));
  predict(tiles, schedule);
  schedule.elements = attended_elements(tiles, problem, tile);
  schedule.runs = rows.take_runs();
  schedule.items = items_of(tiles, schedule.runs);
  if (tile.stores_mask) {
    for (const Tile& each : tiles) schedule.mask_words_at.push_back(each.row->mask_words_at);
    schedule.stored = rows.take_stored();
  }
  return schedule;
}

}  // namespace heddle::plan
