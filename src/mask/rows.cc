// What is asked of finished rows: access, comparison, statistics, columns.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "heddle/error.h"
#include "mask/access.h"
#include "mask/shape.h"

namespace heddle {
namespace {

using State = BlockMaskAccess::State;

/// Sequences with equal groups share their rows. A sequence without queries has no row, so its first row alone would
/// not tell it from the next.
using Group = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
Group group_of(const State& state, std::size_t b) {
  return {state.sequence_row[b], state.shape.sequences[b].q_len, state.shape.sequences[b].kv_len};
}

std::int64_t stored_heads(const State& state) { return state.shared_by_heads ? 1 : state.shape.heads; }

/// Calls f(sequence, sharers) once for each group: its first sequence, and how many it has.
template <class F>
void for_groups(const State& state, F&& f) {
  std::map<Group, std::int64_t> sharers;
  for (std::size_t b = 0; b < state.shape.sequences.size(); ++b) ++sharers[group_of(state, b)];
  for (std::size_t b = 0; b < state.shape.sequences.size(); ++b) {
    const auto found = sharers.find(group_of(state, b));
    if (found == sharers.end()) continue;
    f(static_cast<std::int64_t>(b), found->second);
    sharers.erase(found);
  }
}

const Sequence& sequence_at(const State& state, std::int64_t sequence) {
  if (sequence < 0 || sequence >= std::ssize(state.shape.sequences)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the block mask has no sequence {}; it covers {}", sequence, state.shape.sequences.size()));
  }
  return state.shape.sequences[static_cast<std::size_t>(sequence)];
}

/// BlockMask::row for one that is there.
std::span<const Run> stored_row(const State& state, std::int64_t sequence, std::int64_t head, std::int64_t q_block) {
  const auto s = static_cast<std::size_t>(sequence);
  const std::int64_t q_blocks = mask::block_count(state.shape.sequences[s].q_len, state.block.q);
  const auto row =
      static_cast<std::size_t>(state.sequence_row[s] + (state.shared_by_heads ? 0 : head * q_blocks) + q_block);
  return std::span(state.runs)
      .subspan(static_cast<std::size_t>(state.row_offset[row]),
               static_cast<std::size_t>(state.row_offset[row + 1] - state.row_offset[row]));
}

/// The runs of the columns of one score matrix. Between one row and the next only the columns whose kind changes cost
/// anything.
class Columns {
 public:
  explicit Columns(std::int64_t columns) : open_(static_cast<std::size_t>(columns)) {}

  void add_row(std::int32_t row, std::span<const Run> above, std::span<const Run> here) {
    auto x = above.begin(), y = here.begin();
    std::int32_t at = 0;
    while (x != above.end() || y != here.end()) {
      const Class old_class = class_at(x, above.end(), at), new_class = class_at(y, here.end(), at);
      const std::int32_t next = std::min(next_change(x, above.end(), at), next_change(y, here.end(), at));
      if (old_class != new_class) change(at, next, row, old_class, new_class);
      at = next;
      if (x != above.end() && x->end <= at) ++x;
      if (y != here.end() && y->end <= at) ++y;
    }
  }

  /// Appends the columns' runs, sorted, after a last add_row with nothing in it.
  void finish(std::vector<std::int64_t>& offset, std::vector<Run>& runs) const {
    std::vector<std::int64_t> next(open_.size() + 1, 0);
    for (const auto& [column, run] : closed_) ++next[static_cast<std::size_t>(column) + 1];
    for (std::size_t c = 0; c < open_.size(); ++c) next[c + 1] += next[c];
    const std::size_t first = runs.size();
    for (std::size_t c = 0; c < open_.size(); ++c) offset.push_back(static_cast<std::int64_t>(first) + next[c + 1]);
    runs.resize(first + closed_.size());
    for (const auto& [column, run] : closed_) {
      runs[first + static_cast<std::size_t>(next[static_cast<std::size_t>(column)]++)] = run;
    }
  }

 private:
  enum class Class : std::uint8_t { empty, partial, full };
  using Cursor = std::span<const Run>::iterator;

  static Class class_at(Cursor run, Cursor end, std::int32_t column) {
    if (run == end || column < run->begin) return Class::empty;
    return run->kind == RunKind::full ? Class::full : Class::partial;
  }
  static std::int32_t next_change(Cursor run, Cursor end, std::int32_t column) {
    if (run == end) return std::numeric_limits<std::int32_t>::max();
    return column < run->begin ? run->begin : run->end;
  }

  void change(std::int32_t begin, std::int32_t end, std::int32_t row, Class old_class, Class new_class) {
    for (std::int32_t column = begin; column < end; ++column) {
      std::int32_t& since = open_[static_cast<std::size_t>(column)];
      if (old_class != Class::empty) {
        closed_.push_back({column, {since, row, old_class == Class::full ? RunKind::full : RunKind::partial}});
      }
      if (new_class != Class::empty) since = row;
    }
  }

  std::vector<std::int32_t> open_;                    // by column: the row at which its present run began
  std::vector<std::pair<std::int32_t, Run>> closed_;  // by column, in the order of their ends
};

}  // namespace

std::int64_t BlockMask::q_blocks(std::int64_t sequence) const {
  return mask::block_count(sequence_at(state_, sequence).q_len, state_.block.q);
}

std::int64_t BlockMask::kv_blocks(std::int64_t sequence) const {
  return mask::block_count(sequence_at(state_, sequence).kv_len, state_.block.kv);
}

std::span<const Run> BlockMask::row(std::int64_t sequence, std::int64_t head, std::int64_t q_block) const {
  const bool there = sequence >= 0 && sequence < std::ssize(state_.shape.sequences) && head >= 0 &&
                     head < state_.shape.heads && q_block >= 0 && q_block < q_blocks(sequence);
  if (!there) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the block mask has no row {} of sequence {}, head {}; it covers {} sequences and {} heads",
                            q_block, sequence, head, state_.shape.sequences.size(), state_.shape.heads));
  }
  return stored_row(state_, sequence, head, q_block);
}

BlockMask BlockMask::transposed() const {
  BlockMask result;
  State& columns = result.state_;
  columns = state_;
  columns.transposed = !state_.transposed;
  columns.block = {state_.block.kv, state_.block.q};
  for (Sequence& sequence : columns.shape.sequences) {
    std::swap(sequence.q_begin, sequence.kv_begin);
    std::swap(sequence.q_len, sequence.kv_len);
  }
  columns.row_offset.assign(1, 0);
  columns.runs.clear();

  std::map<Group, std::int64_t> first_row;
  for_groups(state_, [&](std::int64_t sequence, std::int64_t) {
    first_row[group_of(state_, static_cast<std::size_t>(sequence))] = std::ssize(columns.row_offset) - 1;
    for (std::int64_t head = 0; head < stored_heads(state_); ++head) {
      Columns of_matrix(kv_blocks(sequence));
      std::span<const Run> above;
      const std::int64_t rows = q_blocks(sequence);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::span<const Run> here = stored_row(state_, sequence, head, r);
        of_matrix.add_row(static_cast<std::int32_t>(r), above, here);
        above = here;
      }
      of_matrix.add_row(static_cast<std::int32_t>(rows), above, {});
      of_matrix.finish(columns.row_offset, columns.runs);
    }
  });
  for (std::size_t b = 0; b < columns.sequence_row.size(); ++b) {
    columns.sequence_row[b] = first_row[group_of(state_, b)];
  }
  return result;
}

BlockMask::Statistics BlockMask::statistics() const {
  Statistics result;
  for_groups(state_, [&](std::int64_t sequence, std::int64_t sharers) {
    const std::int64_t times = sharers * (state_.shared_by_heads ? state_.shape.heads : 1);
    for (std::int64_t head = 0; head < stored_heads(state_); ++head) {
      const std::int64_t rows = q_blocks(sequence);
      result.blocks += times * rows * kv_blocks(sequence);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (const Run& run : stored_row(state_, sequence, head, r)) {
          (run.kind == RunKind::full ? result.full : result.partial) += times * (run.end - run.begin);
        }
      }
    }
  });
  result.empty = result.blocks - result.full - result.partial;
  result.runs = std::ssize(state_.runs);
  result.bytes =
      static_cast<std::int64_t>(state_.runs.size() * sizeof(Run) + state_.row_offset.size() * sizeof(std::int64_t) +
                                state_.sequence_row.size() * sizeof(std::int64_t));
  result.evaluated_tiles = state_.evaluated_tiles;
  result.range_queries = state_.range_queries;
  return result;
}

bool BlockMask::operator==(const BlockMask& other) const {
  if (!(shape() == other.shape()) || !(block() == other.block())) return false;
  // Which matrices share their rows is no part of what a mask says; each pair of stored rows is compared once.
  std::set<std::pair<Group, Group>> compared;
  const std::int64_t heads =
      state_.shared_by_heads && other.state_.shared_by_heads ? std::min<std::int64_t>(shape().heads, 1) : shape().heads;
  for (std::size_t b = 0; b < shape().sequences.size(); ++b) {
    if (!compared.insert({group_of(state_, b), group_of(other.state_, b)}).second) continue;
    const auto sequence = static_cast<std::int64_t>(b);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < q_blocks(sequence); ++r) {
        if (!std::ranges::equal(stored_row(state_, sequence, h, r), stored_row(other.state_, sequence, h, r))) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace heddle
