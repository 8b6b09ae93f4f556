// The columns of a block mask. They cost the differences between neighbouring rows, not the area; columns that repeat
// are found among the different rows and followed over all rows once. Rows that differ in very many columns are turned
// by windows instead (window_columns.h).
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "mask/access.h"
#include "mask/groups.h"
#include "mask/row_store.h"
#include "mask/shape.h"
#include "mask/window_columns.h"

namespace heddle {
namespace mask {
namespace {

using State = BlockMaskAccess::State;

enum class Kind : std::uint8_t { empty, partial, full };

/// Differences a column of the matrix from which on rows are turned by windows.
constexpr std::int64_t kManyDifferences = 32;

using Cursor = std::span<const Run>::iterator;

Kind kind_at(Cursor run, Cursor end, std::int32_t column) {
  if (run == end || column < run->begin) return Kind::empty;
  return run->kind == RunKind::full ? Kind::full : Kind::partial;
}

std::int32_t next_change(Cursor run, Cursor end, std::int32_t column) {
  if (run == end) return std::numeric_limits<std::int32_t>::max();
  return column < run->begin ? run->begin : run->end;
}

/// Calls f(begin, end, kind above, kind here) for each stretch of columns in which the rows differ.
template <class F>
void for_changes(std::span<const Run> above, std::span<const Run> here, F&& f) {
  auto x = above.begin(), y = here.begin();
  std::int32_t at = 0;
  while (x != above.end() || y != here.end()) {
    const Kind before = kind_at(x, above.end(), at), after = kind_at(y, here.end(), at);
    const std::int32_t next = std::min(next_change(x, above.end(), at), next_change(y, here.end(), at));
    if (before != after) f(at, next, before, after);
    at = next;
    if (x != above.end() && x->end <= at) ++x;
    if (y != here.end() && y->end <= at) ++y;
  }
}

/// The columns of rows, as runs of rows.
class Columns {
 public:
  /// Row r is different[row_of[r]]. Gives up where neighbouring rows have more than `most` differences in all.
  Columns(std::span<const RowRuns> different, std::span<const std::int32_t> row_of, std::int64_t columns,
          std::int64_t most)
      : most_(most), since_(static_cast<std::size_t>(columns)) {
    std::span<const Run> above;
    std::array<std::vector<Run>, 2> rooms;
    for (std::size_t r = 0; r < row_of.size(); ++r) {
      if (r > 0 && row_of[r] == row_of[r - 1]) continue;
      const std::span<const Run> here = different[static_cast<std::size_t>(row_of[r])].side_by_side(rooms[0]);
      change(static_cast<std::int32_t>(r), above, here);
      if (gave_up()) return;
      above = here;
      std::swap(rooms[0], rooms[1]);
    }
    change(static_cast<std::int32_t>(row_of.size()), above, {});
    sort();
  }

  /// If so, there are no columns.
  bool gave_up() const { return std::ssize(closed_) > most_; }

  std::span<const Run> operator[](std::int64_t column) const {
    const auto c = static_cast<std::size_t>(column);
    return std::span(runs_).subspan(offset_[c], offset_[c + 1] - offset_[c]);
  }

 private:
  void change(std::int32_t row, std::span<const Run> above, std::span<const Run> here) {
    for_changes(above, here, [&](std::int32_t begin, std::int32_t end, Kind before, Kind after) {
      for (std::int32_t column = begin; column < end; ++column) {
        std::int32_t& since = since_[static_cast<std::size_t>(column)];
        if (before != Kind::empty) {
          closed_.push_back({column, {since, row, before == Kind::full ? RunKind::full : RunKind::partial}});
        }
        if (after != Kind::empty) since = row;
      }
    });
  }

  void sort() {
    offset_.assign(since_.size() + 1, 0);
    for (const auto& [column, run] : closed_) ++offset_[static_cast<std::size_t>(column) + 1];
    for (std::size_t c = 0; c < since_.size(); ++c) offset_[c + 1] += offset_[c];
    std::vector<std::size_t> next(offset_.begin(), offset_.end() - 1);
    runs_.resize(closed_.size());
    for (const auto& [column, run] : closed_) runs_[next[static_cast<std::size_t>(column)]++] = run;
    closed_ = {};
  }

  std::int64_t most_;
  std::vector<std::int32_t> since_;                   // by column: the row at which its present run began
  std::vector<std::pair<std::int32_t, Run>> closed_;  // by column, in the order of their ends
  std::vector<std::size_t> offset_;                   // by column, in runs_
  std::vector<Run> runs_;
};

/// The row without the columns that are not among `kept`, which increase.
std::vector<Run> reduced(const RowRuns& row, std::span<const std::int32_t> kept) {
  std::vector<Run> runs;
  const auto index_of = [&](std::int32_t column) {
    return static_cast<std::int32_t>(std::ranges::lower_bound(kept, column) - kept.begin());
  };
  for (const Run& run : row) {
    const std::int32_t begin = index_of(run.begin), end = index_of(run.end);
    if (begin == end) continue;
    if (!runs.empty() && runs.back().end == begin && runs.back().kind == run.kind) {
      runs.back().end = end;
    } else {
      runs.push_back({begin, end, run.kind});
    }
  }
  return runs;
}

/// Appends the columns of score matrices to a store.
class Transposition {
 public:
  Transposition(const State& state, RowStore& to)
      : state_(state), to_(to), local_(state.run_offset.size() - 1, std::int32_t{-1}) {}

  void add(std::int64_t sequence, std::int64_t head, std::int64_t rows, std::int64_t columns) {
    check_row_count(0, 1, columns);
    find_different(sequence, head, rows);
    std::vector<std::int32_t> all(different_.size());
    std::iota(all.begin(), all.end(), 0);
    const Columns of_different(different_, all, columns, kManyDifferences * columns);
    if (of_different.gave_up()) {
      add_by_windows(columns);
    } else if (std::ssize(different_) == rows) {
      for (std::int64_t c = 0; c < columns; ++c) to_.add(of_different[c]);
    } else {
      add_repeated(of_different, columns);
    }
  }

 private:
  /// The different rows of a matrix, in order of their first one, and which of them each row is.
  void find_different(std::int64_t sequence, std::int64_t head, std::int64_t rows) {
    stored_.clear();
    row_of_.clear();
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int32_t index = stored_index(state_, sequence, head, r);
      std::int32_t& local = local_[static_cast<std::size_t>(index)];
      if (local < 0) {
        local = static_cast<std::int32_t>(stored_.size());
        stored_.push_back(index);
      }
      row_of_.push_back(local);
    }
    different_.clear();
    for (const std::int32_t index : stored_) {
      different_.push_back(stored_runs(state_, index));
      local_[static_cast<std::size_t>(index)] = -1;
    }
  }

  /// Columns that are equal in all different rows are equal; the first one of each kind is followed over all rows.
  void add_repeated(const Columns& of_different, std::int64_t columns) {
    RowStore kinds;
    std::vector<std::int32_t> first;  // by kind
    for (std::int64_t c = 0; c < columns; ++c) {
      kinds.add(of_different[c]);
      if (kinds.index(c) == std::ssize(first)) first.push_back(static_cast<std::int32_t>(c));
    }
    std::vector<std::vector<Run>> rows;
    for (const RowRuns& row : different_) rows.push_back(reduced(row, first));
    std::vector<RowRuns> different;
    for (const std::vector<Run>& row : rows) different.emplace_back(std::span(row));
    const Columns of_kinds(different, row_of_, std::ssize(first), kManyDifferences * columns);
    if (of_kinds.gave_up()) return add_by_windows(columns);
    const std::int64_t before = to_.rows();
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int32_t kind = kinds.index(c), earlier = first[static_cast<std::size_t>(kind)];
      if (earlier == c) {
        to_.add(of_kinds[kind]);
      } else {
        to_.repeat(before + earlier);
      }
    }
  }

  void add_by_windows(std::int64_t columns) { WindowColumns(state_, stored_, row_of_, columns).add_to(to_); }

  const State& state_;
  RowStore& to_;
  std::vector<std::int32_t> local_;  // by stored row: its place in different_, or -1
  std::vector<std::int32_t> row_of_;
  std::vector<std::int32_t> stored_;  // the different rows
  std::vector<RowRuns> different_;
};

}  // namespace
}  // namespace mask

BlockMask BlockMask::transposed() const {
  BlockMask result;
  State& columns = result.state_;
  columns = state_;
  columns.revision = next_revision();
  columns.transposed = !state_.transposed;
  columns.block = {state_.block.kv, state_.block.q};
  for (Sequence& sequence : columns.shape.sequences) {
    std::swap(sequence.q_begin, sequence.kv_begin);
    std::swap(sequence.q_len, sequence.kv_len);
  }

  mask::RowStore store;
  mask::Transposition transposition(state_, store);
  std::map<mask::Group, std::int64_t> first_row;
  mask::for_groups(state_, [&](std::int64_t sequence, std::int64_t) {
    first_row[mask::group_of(state_, static_cast<std::size_t>(sequence))] = store.rows();
    for (std::int64_t head = 0; head < mask::stored_heads(state_); ++head) {
      transposition.add(sequence, head, q_blocks(sequence), kv_blocks(sequence));
    }
  });
  for (std::size_t b = 0; b < state_.sequence_row.size(); ++b) {
    columns.sequence_row[b] = first_row[mask::group_of(state_, b)];
  }
  store.move_to(columns);
  return result;
}

}  // namespace heddle
