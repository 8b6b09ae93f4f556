#include "plan/tiles/backward_schedule.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "mask/shape.h"
#include "plan/tiles/key_rows.h"

namespace heddle::plan {
namespace {

using mask::block_count;
using problem::AttentionProblem;

// Q, dO and dQ's sums of the heads of a bundle stay in L2.
constexpr std::int64_t kBundleBytes = 20'000'000;
// The least tiles of the last bundle, so that a run does not end with a long tile.
constexpr std::size_t kTilesOfLastBundle = 256;

// Tiles walk this many blocks of all heads of a group, then the blocks before them, from the last ones down. So tiles
// that begin at other queries walk the same blocks at a time, and these stay in L2. Long sequences have more blocks
// together, so that lists stay short.
constexpr int kBlocksOfGroup = 8, kMostPartsOfGroup = 16;

/// Keys in the place of queries.
AttentionProblem turned(const AttentionProblem& problem) {
  AttentionProblem other = problem;
  std::swap(other.q_rows, other.kv_rows);
  for (Sequence& sequence : other.sequences) {
    std::swap(sequence.q_begin, sequence.kv_begin);
    std::swap(sequence.q_len, sequence.kv_len);
    std::swap(sequence.q_start, sequence.kv_start);
  }
  return other;
}

/// The runs of tiles over all query heads of a group, stored once where tiles share them.
class GroupRuns {
 public:
  struct Range {
    int first = 0, count = 0, steps = 0;
  };

  GroupRuns(std::vector<shared::KvRun> of_heads, std::int64_t group)
      : of_heads_(std::move(of_heads)), group_(static_cast<int>(group)) {}

  /// Adds the runs of a tile whose group's heads have these rows, from head `head` on.
  Range add(const std::vector<const KeyRow*>& rows, int head) {
    const std::pair key(rows, head);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    Range range{.first = static_cast<int>(runs_.size())};
    int end = 0;
    for (int g = 0; g < group_; ++g) {
      const KeyRow& row = *rows[static_cast<std::size_t>(g)];
      for (int r = row.first_run; r < row.first_run + row.runs; ++r) {
        end = std::max(end, of_heads_[static_cast<std::size_t>(r)].end);
      }
      range.steps += row.steps;
    }
    const int part = std::max(kBlocksOfGroup, (end + kMostPartsOfGroup - 1) / kMostPartsOfGroup);
    const int blocks = group_ > 1 ? part : std::max(end, 1);
    for (int first = (end + blocks - 1) / blocks * blocks - blocks; first >= 0; first -= blocks) {
      for (int g = 0; g < group_; ++g) add_runs(*rows[static_cast<std::size_t>(g)], head + g, first, first + blocks);
    }
    range.count = static_cast<int>(runs_.size()) - range.first;
    known_.emplace(key, range);
    return range;
  }
  std::vector<shared::QueryRun> take() { return std::move(runs_); }

 private:
  /// A head's runs within blocks [begin, end).
  void add_runs(const KeyRow& row, int head, int begin, int end) {
    constexpr int kOfStep = shared::kStepRagged - 1;  // attends, partial
    for (int r = row.first_run; r < row.first_run + row.runs; ++r) {
      const shared::KvRun& run = of_heads_[static_cast<std::size_t>(r)];
      const int first = std::max(run.begin, begin), last = std::min(run.end, end);
      if (first < last) runs_.push_back({first, last, run.flags & kOfStep, head});
    }
  }

  std::vector<shared::KvRun> of_heads_;
  int group_;
  std::map<std::pair<std::vector<const KeyRow*>, int>, Range> known_;
  std::vector<shared::QueryRun> runs_;
};

std::int64_t longest_queries(const AttentionProblem& problem) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.q_len);
  return longest;
}

void add_blocks(const AttentionProblem& problem, BackwardSchedule& schedule) {
  for (int batch = 0; batch < static_cast<int>(problem.batch); ++batch) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(batch)];
    const std::int64_t rows = problem.packed ? sequence.q_len : problem.q_rows;
    schedule.first_blocks.push_back(static_cast<int>(schedule.blocks.size()));
    for (std::int64_t row = 0; row < rows; row += shared::kBlockRows) {
      schedule.blocks.push_back(
          {.batch = problem.packed ? 0 : batch,
           .row = static_cast<int>(sequence.q_begin + row),
           .live = static_cast<int>(std::clamp<std::int64_t>(sequence.q_len - row, 0, shared::kBlockRows)),
           .stored = static_cast<int>(std::min<std::int64_t>(rows - row, shared::kBlockRows))});
    }
  }
}

std::int64_t elements_of(const AttentionProblem& problem, const KeyRow& row, std::int64_t keys_left) {
  std::int64_t elements = 0;
  for (std::size_t w = 0; w < row.keys.size(); ++w) {
    const std::int64_t first = static_cast<std::int64_t>(w) * shared::kWarpgroupRows;
    elements += row.keys[w] * std::clamp<std::int64_t>(keys_left - first, 0, shared::kWarpgroupRows);
  }
  return elements * (problem.batch > 0 ? 1 : 0);
}

/// The runs of tiles that add to dQ in the order of their keys: cut where the number of tiles before differs. For each
/// head of keys, tiles are given in that order. Equal lists of runs are stored once.
class RankedRuns {
 public:
  RankedRuns(const std::vector<shared::QueryRun>& runs, std::int64_t group, std::int64_t blocks)
      : given_(runs), group_(static_cast<int>(group)), blocks_(static_cast<std::size_t>(blocks)) {}

  void add(shared::BackwardItem& item) {
    if (item.kv_tile == 0) before_.assign(static_cast<std::size_t>(group_) * blocks_, 0);
    std::vector<shared::QueryRun> runs;
    std::vector<int> ranks, key;
    for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
      const shared::QueryRun& run = given_[static_cast<std::size_t>(r)];
      int* const before = before_.data() + static_cast<std::size_t>(run.head % group_) * blocks_;
      for (int block = run.begin; block < run.end; ++block) {
        const int rank = before[block]++;
        if (block == run.begin || rank != ranks.back()) {
          runs.push_back({block, block, run.flags, run.head});
          ranks.push_back(rank);
        }
        runs.back().end = block + 1;
      }
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      key.insert(key.end(), {runs[i].begin, runs[i].end, runs[i].flags, runs[i].head, ranks[i]});
    }
    const auto [known, is_new] = known_.emplace(std::move(key), static_cast<int>(runs_.size()));
    item.first_run = known->second;
    item.runs = static_cast<int>(runs.size());
    if (!is_new) return;
    runs_.insert(runs_.end(), runs.begin(), runs.end());
    ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  }
  void take(BackwardSchedule& schedule) {
    schedule.runs = std::move(runs_);
    schedule.ranks = std::move(ranks_);
  }

 private:
  std::vector<shared::QueryRun> given_;
  int group_;
  std::size_t blocks_;
  std::vector<int> before_;  // [query heads of the group][blocks]
  std::map<std::vector<int>, int> known_;
  std::vector<shared::QueryRun> runs_;
  std::vector<int> ranks_;
};

/// How many heads of keys make a bundle that stays in L2.
std::int64_t heads_of_bundle(const AttentionProblem& problem) {
  const std::int64_t bytes = problem.q_rows * problem.group() *
                             ((problem.qk_dim + problem.v_dim) * size_of(problem.q_dtype) + 4 * problem.qk_dim);
  return std::max<std::int64_t>(1, kBundleBytes / std::max<std::int64_t>(1, bytes));
}

/// How many heads of keys make the last bundle.
std::size_t heads_of_last_bundle(const std::vector<std::size_t>& end_of_head) {
  std::size_t heads = 1;
  while (heads < end_of_head.size() &&
         end_of_head.back() - end_of_head[end_of_head.size() - heads - 1] < kTilesOfLastBundle) {
    ++heads;
  }
  return heads;
}

/// Heads in bundles, the last `last` of them in one; of each the longest tiles first, or the first keys.
void order(BackwardSchedule& schedule, const std::vector<std::size_t>& end_of_head, std::size_t heads, std::size_t last,
           bool by_keys) {
  const std::size_t before_last = end_of_head.size() - std::min(last, end_of_head.size());
  std::size_t begin = 0;
  for (std::size_t head = 0, next = 0; head < end_of_head.size(); head = next) {
    next = head < before_last ? std::min(head + heads, before_last) : end_of_head.size();
    const std::size_t end = end_of_head[next - 1];
    std::stable_sort(schedule.items.begin() + static_cast<std::ptrdiff_t>(begin),
                     schedule.items.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](const auto& x, const auto& y) { return by_keys ? x.kv_tile < y.kv_tile : x.steps > y.steps; });
    begin = end;
  }
}

}  // namespace

std::int64_t count_tiles_of(const AttentionProblem& problem, TileRows of, const shared::TileShape& tile) {
  const bool of_keys = of == TileRows::keys;
  const std::int64_t padded = of_keys ? problem.kv_rows : problem.q_rows;
  std::int64_t tiles = 0;
  for (const Sequence& sequence : problem.sequences) {
    const std::int64_t own = of_keys ? sequence.kv_len : sequence.q_len;
    tiles += block_count(problem.packed ? own : padded, tile.rows());
  }
  return tiles * (of_keys ? problem.kv_heads : problem.q_heads);
}

std::int64_t count_row_blocks(const AttentionProblem& problem) {
  if (problem.device_lengths && problem.packed) return problem.q_rows / shared::kBlockRows + problem.batch;
  std::int64_t blocks = 0;
  for (const Sequence& sequence : problem.sequences) {
    blocks += block_count(problem.packed ? sequence.q_len : problem.q_rows, shared::kBlockRows);
  }
  return blocks;
}

std::vector<shared::RowBlock> row_blocks(const AttentionProblem& problem) {
  BackwardSchedule schedule;
  if (problem.batch > 0 && problem.q_heads > 0) add_blocks(problem, schedule);
  if (problem.device_lengths) schedule.blocks.assign(static_cast<std::size_t>(count_row_blocks(problem)), {});
  return schedule.blocks;
}

BackwardSchedule backward_schedule(const AttentionProblem& problem, TileRows of, const shared::TileShape& shape,
                                   bool ordered, const BlockMask* block_mask, const Bundles& bundles) {
  BackwardSchedule schedule;
  if (problem.batch == 0 || problem.kv_heads == 0 || problem.q_heads == 0) return schedule;
  add_blocks(problem, schedule);
  if (problem.device_lengths) schedule.blocks.assign(static_cast<std::size_t>(count_row_blocks(problem)), {});

  // From here on "q" are a tile's rows.
  const bool of_keys = of == TileRows::keys;
  const AttentionProblem seen = of_keys ? turned(problem) : problem;
  const std::int64_t heads = of_keys ? problem.kv_heads : problem.q_heads, group = of_keys ? problem.group() : 1;
  std::optional<BlockMask> columns;
  if (block_mask != nullptr && of_keys) columns = block_mask->transposed();
  KeyRows rows(seen, shape, TileClocks{1, 1, 0, 0}, columns ? &*columns : block_mask);
  GroupRuns runs(rows.take_runs(), group);
  std::vector<std::size_t> end_of_head;
  for (int batch = 0; batch < static_cast<int>(problem.batch); ++batch) {
    const Sequence& sequence = seen.sequences[static_cast<std::size_t>(batch)];
    const std::int64_t tiles = block_count(seen.packed ? sequence.q_len : seen.q_rows, shape.rows());
    for (int tile_head = 0; tile_head < static_cast<int>(heads); ++tile_head) {
      const int head = tile_head * static_cast<int>(group);
      for (int tile = 0; tile < static_cast<int>(tiles); ++tile) {
        GroupRuns::Range range;
        if (tile < rows.q_tiles(batch)) {
          std::vector<const KeyRow*> of_group;
          for (int g = 0; g < static_cast<int>(group); ++g) {
            of_group.push_back(&rows.of(batch, head + g, tile));
            schedule.elements +=
                elements_of(problem, *of_group.back(), sequence.q_len - std::int64_t{tile} * shape.rows());
          }
          range = runs.add(of_group, head);
        }
        schedule.items.push_back({.kv_tile = tile,
                                  .kv_head = tile_head,
                                  .batch = batch,
                                  .first_run = range.first,
                                  .runs = range.count,
                                  .steps = range.steps,
                                  .first_block = schedule.first_blocks[static_cast<std::size_t>(batch)],
                                  .share = 0});
        schedule.steps += range.steps;
        schedule.longest = std::max<std::int64_t>(schedule.longest, range.steps);
      }
      end_of_head.push_back(schedule.items.size());
    }
  }
  schedule.runs = runs.take();
  if (ordered) {
    RankedRuns ranked(schedule.runs, problem.group(), block_count(longest_queries(problem), shared::kBlockRows));
    for (shared::BackwardItem& item : schedule.items) ranked.add(item);
    ranked.take(schedule);
  }
  const std::int64_t heads_together = bundles.heads > 0 ? bundles.heads : heads_of_bundle(problem);
  const std::size_t last = bundles.heads > 0 ? static_cast<std::size_t>(bundles.last)
                           : ordered         ? 0
                                             : heads_of_last_bundle(end_of_head);
  order(schedule, end_of_head, static_cast<std::size_t>(heads_together), last, ordered);
  return schedule;
}

}  // namespace heddle::plan
