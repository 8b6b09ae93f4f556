#include "plan/tiles/packed_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "mask/shape.h"

namespace heddle::plan {
namespace {

using mask::block_count;
using shared::kWarpgroupRows;

constexpr int kWarpRows = 16;  // a warp's rows are of one head

}  // namespace

bool has_few_queries(const problem::AttentionProblem& problem) {
  if (problem.group() < 2 || problem.batch_invariant) return false;
  std::int64_t longest = 0, queries = 0, rows = 0;
  for (const Sequence& sequence : problem.sequences) {
    longest = std::max(longest, sequence.q_len);
    queries += sequence.q_len;
    rows += block_count(sequence.q_len, kWarpgroupRows) * kWarpgroupRows;
  }
  return queries > 0 && (longest <= kWarpgroupRows || 2 * queries < rows);
}

std::vector<int> packed_queries(const problem::AttentionProblem& problem) {
  std::vector<int> all;
  if (!has_few_queries(problem)) return all;
  for (int queries = kWarpRows; queries <= kWarpgroupRows; queries *= 2) {
    // A size is skipped if one warpgroup holds all heads of the group at twice that size.
    if (kWarpgroupRows / (2 * queries) < problem.group()) all.push_back(queries);
  }
  return all;
}

std::int64_t head_tiles(const problem::AttentionProblem& problem, const shared::TileShape& tile) {
  return block_count(problem.group(), tile.heads());
}

std::vector<Run> merged_runs(std::span<const std::span<const Run>> rows) {
  constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
  std::vector<Run> merged;
  std::vector<std::size_t> next(rows.size(), 0);
  // Between two ends of runs nothing changes.
  for (std::int32_t at = 0;;) {
    std::int32_t end = kNever;
    bool attended = false, full = true;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      while (next[i] < rows[i].size() && rows[i][next[i]].end <= at) ++next[i];
      const bool inside = next[i] < rows[i].size() && rows[i][next[i]].begin <= at;
      if (next[i] < rows[i].size()) end = std::min(end, inside ? rows[i][next[i]].end : rows[i][next[i]].begin);
      attended = attended || inside;
      full = full && inside && rows[i][next[i]].kind == RunKind::full;
    }
    if (end == kNever) return merged;
    const RunKind kind = full ? RunKind::full : RunKind::partial;
    if (attended && !merged.empty() && merged.back().end == at && merged.back().kind == kind) {
      merged.back().end = end;
    } else if (attended) {
      merged.push_back({at, end, kind});
    }
    at = end;
  }
}

std::string describe_packed(const shared::TileShape& tile) {
  return fmt::format("{} queries of {} heads", tile.queries(), tile.heads());
}

}  // namespace heddle::plan
