// Tiles dealt to CTAs. Three steps: the mask's rows become runs of the tile's key blocks, each with its cost; the tiles
// of one section of heads after the other are put in order, the longest first; they are dealt in this order.
#include <algorithm>
#include <limits>
#include <span>

#include "plan/deal.h"
#include "plan/families/forward_sm90.h"
#include "plan/families/forward_sm90_costs.h"

namespace heddle::plan {
namespace {

// The keys and values of a section: in L2 together with the queries and what the next section loads. Measured: 16 MB
// is better than 32 by up to 8 %; 64 lose 10 % at short sequences, whose last tiles are then unequal.
constexpr std::int64_t kSectionBytes = 16'000'000;
constexpr std::int64_t kElementBytes = 2;

std::int64_t block_count(std::int64_t length, std::int64_t block) { return (length + block - 1) / block; }

/// The blocks of keys that a row of queries sees.
struct KeyRow {
  int first_run = 0, runs = 0, steps = 0;
  std::int64_t clocks = 0;  // of a tile that walks it
  int rank = 0;             // by clocks, the most first; equal ones share it
};

/// Every row of the mask, once: what the mask shares between heads and sequences is shared here.
class KeyRows {
 public:
  KeyRows(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config,
          const BlockMask* block_mask)
      : kv_blocks_(block_count(problem.kv_rows, config.kv_block)),
        clocks_(forward_sm90_clocks(config)),
        row_of_tile_(static_cast<std::size_t>(block_count(problem.q_rows, config.rows())), 0) {
    if (block_mask == nullptr) {
      const Run whole = {0, static_cast<std::int32_t>(kv_blocks_), RunKind::full};
      add_row({&whole, kv_blocks_ > 0 ? 1U : 0U}, 1);
    } else {
      const BlockSize block = block_mask->block();
      const std::int64_t q_blocks = block_mask->q_blocks(0);
      const std::int64_t heads = block_mask->shared_by_heads() ? 1 : problem.q_heads;
      const std::int64_t sequences = block_mask->shared_by_batch() ? 1 : problem.batch;
      for (std::int64_t b = 0; b < sequences; ++b) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t q = 0; q < q_blocks; ++q) add_row(block_mask->row(b, h, q), block.kv / config.kv_block);
        }
      }
      batch_stride_ = sequences == 1 ? 0 : heads * q_blocks;
      head_stride_ = heads == 1 ? 0 : q_blocks;
      for (std::size_t tile = 0; tile < row_of_tile_.size(); ++tile) {
        row_of_tile_[tile] = static_cast<std::int64_t>(tile) * config.rows() / block.q;
      }
    }
    rank_rows();
  }

  const KeyRow& of(std::int64_t batch, std::int64_t head, std::int64_t q_tile) const {
    const std::int64_t row = row_of_tile_[static_cast<std::size_t>(q_tile)];
    return rows_[static_cast<std::size_t>(batch * batch_stride_ + head * head_stride_ + row)];
  }
  int ranks() const { return ranks_; }
  std::vector<shared::KvRun> take_runs() { return std::move(runs_); }

 private:
  // `scale`: key blocks of the tile in one of the mask.
  void add_row(std::span<const Run> mask_runs, std::int64_t scale) {
    rows_.push_back({.first_run = static_cast<int>(runs_.size())});
    for (const Run& run : mask_runs) {
      const std::int64_t begin = run.begin * scale, end = std::min(run.end * scale, kv_blocks_);
      add_run(begin, end, run.kind == RunKind::partial);
    }
  }

  void add_run(std::int64_t begin, std::int64_t end, bool partial) {
    if (begin == end) return;
    KeyRow& row = rows_.back();
    row.steps += static_cast<int>(end - begin);
    row.clocks += static_cast<std::int64_t>(static_cast<double>(end - begin) *
                                            (partial ? clocks_.partial_step : clocks_.full_step));
    if (row.runs > 0 && runs_.back().end == begin && (runs_.back().partial != 0) == partial) {
      runs_.back().end = static_cast<int>(end);
      return;
    }
    runs_.push_back({static_cast<int>(begin), static_cast<int>(end), partial ? 1 : 0});
    ++row.runs;
  }

  void rank_rows() {
    std::vector<std::int64_t> distinct;
    for (KeyRow& row : rows_) {
      if (row.steps > 0) row.clocks += static_cast<std::int64_t>(clocks_.tile);
      distinct.push_back(row.clocks);
    }
    std::ranges::sort(distinct, std::greater<>());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    ranks_ = static_cast<int>(distinct.size());
    for (KeyRow& row : rows_) {
      row.rank = static_cast<int>(std::ranges::lower_bound(distinct, row.clocks, std::greater<>()) - distinct.begin());
    }
  }

  std::int64_t kv_blocks_;
  ForwardSm90Clocks clocks_;
  std::vector<std::int64_t> row_of_tile_;  // of the first head and sequence
  std::int64_t batch_stride_ = 0, head_stride_ = 0;
  std::vector<KeyRow> rows_;
  std::vector<shared::KvRun> runs_;
  int ranks_ = 0;
};

struct HeadOfBatch {
  int head, kv_head, batch;
};

/// Query heads in the order of the keys that they read, so that neighbours share them; a section is so many in a row.
std::vector<HeadOfBatch> heads_by_keys(const problem::AttentionProblem& problem) {
  std::vector<HeadOfBatch> heads;
  heads.reserve(static_cast<std::size_t>(problem.batch * problem.q_heads));
  const auto add_group = [&](std::int64_t kv_head, std::int64_t batch) {
    for (std::int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head) {
      heads.push_back({static_cast<int>(head), static_cast<int>(kv_head), static_cast<int>(batch)});
    }
  };
  if (problem.shared_kv) {
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

/// Where sections end, in heads_by_keys(). Each has as many heads of keys as fit, but all about as many: a last one of
/// few heads would have too few tiles to even out the CTAs' loads.
std::vector<std::size_t> section_ends(const problem::AttentionProblem& problem, const device::CudaCaps& caps) {
  const std::int64_t budget = caps.l2_bytes > 0 ? std::min(kSectionBytes, caps.l2_bytes / 3) : kSectionBytes;
  const std::int64_t head_bytes =
      std::max<std::int64_t>(1, problem.kv_rows * (problem.qk_dim + problem.v_dim) * kElementBytes);
  const std::int64_t fitting = std::max<std::int64_t>(1, budget / head_bytes);
  const std::int64_t kv_heads = problem.kv_heads * (problem.shared_kv ? 1 : problem.batch);
  const std::int64_t sections = block_count(kv_heads, fitting);
  const std::int64_t heads = problem.batch * problem.q_heads / kv_heads;  // that read the same keys
  std::vector<std::size_t> ends;
  for (std::int64_t i = 1; i <= sections; ++i)
    ends.push_back(static_cast<std::size_t>(kv_heads * i / sections * heads));
  return ends;
}

struct Tile {
  int q_tile, head, kv_head, batch;
  const KeyRow* row;
};

/// The tiles of some heads in the order of their rows' ranks; equal ones stay by head. Those without a step are fills.
class SectionSorter {
 public:
  SectionSorter(const KeyRows& rows, std::int64_t q_tiles) : rows_(rows), q_tiles_(q_tiles) {}

  void append(std::span<const HeadOfBatch> section, std::vector<Tile>& sorted, std::vector<int>& fills) {
    first_.assign(static_cast<std::size_t>(rows_.ranks()) + 1, 0);
    for_tiles(section, [&](const Tile& tile) {
      if (tile.row->steps > 0) ++first_[static_cast<std::size_t>(tile.row->rank) + 1];
    });
    for (std::size_t rank = 1; rank < first_.size(); ++rank) first_[rank] += first_[rank - 1];
    const std::size_t base = sorted.size();
    sorted.resize(base + first_.back());
    for_tiles(section, [&](const Tile& tile) {
      if (tile.row->steps > 0) {
        sorted[base + first_[static_cast<std::size_t>(tile.row->rank)]++] = tile;
      } else {
        fills.insert(fills.end(), {tile.q_tile, tile.head, tile.batch});
      }
    });
  }

 private:
  template <class F>
  void for_tiles(std::span<const HeadOfBatch> section, F&& f) const {
    for (const HeadOfBatch& at : section) {
      for (int q_tile = 0; q_tile < q_tiles_; ++q_tile) {
        f(Tile{q_tile, at.head, at.kv_head, at.batch, &rows_.of(at.batch, at.head, q_tile)});
      }
    }
  }

  const KeyRows& rows_;
  std::int64_t q_tiles_;
  std::vector<std::size_t> first_;
};

void deal_tiles(const std::vector<Tile>& tiles, int grid, TileSchedule& schedule) {
  std::vector<std::int64_t> clocks;
  clocks.reserve(tiles.size());
  for (const Tile& tile : tiles) clocks.push_back(tile.row->clocks);
  const Deal dealt = deal(clocks, grid);
  schedule.longest = static_cast<double>(*std::ranges::max_element(dealt.loads));

  // A CTA's list keeps the order of the tiles.
  std::vector<int>& first = schedule.first_item;
  first.assign(static_cast<std::size_t>(grid) + 1, 0);
  for (const std::uint16_t cta : dealt.workers) ++first[cta + 1U];
  for (std::size_t cta = 1; cta < first.size(); ++cta) first[cta] += first[cta - 1];
  schedule.items.resize(tiles.size());
  std::vector<int> next = first;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const KeyRow& row = *tiles[i].row;
    schedule.items[static_cast<std::size_t>(next[dealt.workers[i]]++)] = {.q_tile = tiles[i].q_tile,
                                                                          .head = tiles[i].head,
                                                                          .batch = tiles[i].batch,
                                                                          .first_run = row.first_run,
                                                                          .runs = row.runs,
                                                                          .steps = row.steps,
                                                                          .kv_head = tiles[i].kv_head,
                                                                          .reserved = 0};
  }
}

}  // namespace

TileSchedule forward_sm90_schedule(const problem::AttentionProblem& problem, const shared::ForwardSm90Config& config,
                                   const BlockMask* block_mask, const device::CudaCaps& caps) {
  TileSchedule schedule;
  schedule.first_item = {0};
  if (problem.batch == 0 || problem.q_heads == 0 || problem.q_rows == 0) return schedule;

  KeyRows rows(problem, config, block_mask);
  const std::vector<HeadOfBatch> heads = heads_by_keys(problem);
  const std::int64_t q_tiles = block_count(problem.q_rows, config.rows());
  std::vector<Tile> tiles;
  tiles.reserve(heads.size() * static_cast<std::size_t>(q_tiles));
  SectionSorter sorter(rows, q_tiles);
  std::size_t begin = 0;
  for (const std::size_t end : section_ends(problem, caps)) {
    sorter.append(std::span(heads).subspan(begin, end - begin), tiles, schedule.fills);
    begin = end;
  }
  // Fills are spread over the CTAs too.
  const std::size_t work = std::max(tiles.size(), schedule.fills.size() / 3);
  const auto grid = static_cast<int>(std::min(work, static_cast<std::size_t>(std::max(1, caps.multiprocessors))));
  deal_tiles(tiles, grid, schedule);
  schedule.runs = rows.take_runs();
  return schedule;
}

}  // namespace heddle::plan
