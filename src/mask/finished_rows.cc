// Questions to finished rows: access, comparison, statistics.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "heddle/error.h"
#include "mask/access.h"
#include "mask/groups.h"
#include "mask/shape.h"

namespace heddle {
namespace {

using State = BlockMaskAccess::State;

const Sequence& sequence_at(const State& state, std::int64_t sequence) {
  if (sequence < 0 || sequence >= std::ssize(state.shape.sequences)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the block mask has no sequence {}; it covers {}", sequence, state.shape.sequences.size()));
  }
  return state.shape.sequences[static_cast<std::size_t>(sequence)];
}

}  // namespace

std::int64_t BlockMask::q_blocks(std::int64_t sequence) const {
  return mask::block_count(sequence_at(state_, sequence).q_len, state_.block.q);
}

std::int64_t BlockMask::kv_blocks(std::int64_t sequence) const {
  return mask::block_count(sequence_at(state_, sequence).kv_len, state_.block.kv);
}

RowRuns BlockMask::row(std::int64_t sequence, std::int64_t head, std::int64_t q_block) const {
  const bool of_any_head = state_.shape.heads == 1 && state_.shared_by_heads;
  const bool there = sequence >= 0 && sequence < std::ssize(state_.shape.sequences) && head >= 0 &&
                     (head < state_.shape.heads || of_any_head) && q_block >= 0 && q_block < q_blocks(sequence);
  if (!there) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the block mask has no row {} of sequence {}, head {}; it covers {} sequences and {} heads",
                            q_block, sequence, head, state_.shape.sequences.size(), state_.shape.heads));
  }
  return mask::stored_runs(state_, mask::stored_index(state_, sequence, head, q_block));
}

BlockMask::Statistics BlockMask::statistics() const {
  struct Counts {
    std::int64_t full = 0, partial = 0;
  };
  Statistics result;
  std::vector<Counts> of_row(state_.run_offset.size() - 1);
  for (std::size_t i = 0; i < of_row.size(); ++i) {
    for (const Run& run : mask::stored_runs(state_, static_cast<std::int32_t>(i))) {
      (run.kind == RunKind::full ? of_row[i].full : of_row[i].partial) += run.end - run.begin;
      ++result.runs;
    }
  }
  mask::for_groups(state_, [&](std::int64_t sequence, std::int64_t sharers) {
    const std::int64_t times = sharers * (state_.shared_by_heads ? state_.shape.heads : 1);
    for (std::int64_t head = 0; head < mask::stored_heads(state_); ++head) {
      const std::int64_t rows = q_blocks(sequence);
      result.blocks += times * rows * kv_blocks(sequence);
      for (std::int64_t r = 0; r < rows; ++r) {
        const Counts& counts = of_row[static_cast<std::size_t>(mask::stored_index(state_, sequence, head, r))];
        result.full += times * counts.full;
        result.partial += times * counts.partial;
      }
    }
  });
  const auto bytes_of = [](const auto& values) { return static_cast<std::int64_t>(values.size() * sizeof(values[0])); };
  result.empty = result.blocks - result.full - result.partial;
  result.different_rows = std::ssize(of_row);
  result.bytes = bytes_of(state_.runs) + bytes_of(state_.run_offset) + bytes_of(state_.row_index) +
                 bytes_of(state_.sequence_row) + bytes_of(state_.window_offset) + bytes_of(state_.window_contents);
  if (!state_.window_offset.empty()) result.bytes += bytes_of(state_.windows.runs) + bytes_of(state_.windows.offset);
  result.evaluated_tiles = state_.evaluated_tiles;
  result.range_queries = state_.range_queries;
  result.classified_rows = state_.classified_rows;
  return result;
}

bool BlockMask::operator==(const BlockMask& other) const {
  if (!(shape() == other.shape()) || !(block() == other.block())) return false;
  // Which matrices share their rows is no part of what a mask says; each pair of stored rows is compared once.
  std::set<std::pair<mask::Group, mask::Group>> compared;
  std::vector<std::int32_t> equal_to(state_.run_offset.size() - 1, -1);  // by stored row: one of the other's
  const auto same_row = [&](std::int64_t sequence, std::int64_t head, std::int64_t q_block) {
    const std::int32_t own = mask::stored_index(state_, sequence, head, q_block);
    const std::int32_t others = mask::stored_index(other.state_, sequence, head, q_block);
    std::int32_t& known = equal_to[static_cast<std::size_t>(own)];
    if (known == others) return true;
    if (mask::stored_runs(state_, own) != mask::stored_runs(other.state_, others)) return false;
    known = others;
    return true;
  };
  const std::int64_t heads =
      state_.shared_by_heads && other.state_.shared_by_heads ? std::min<std::int64_t>(shape().heads, 1) : shape().heads;
  for (std::size_t b = 0; b < shape().sequences.size(); ++b) {
    if (!compared.insert({mask::group_of(state_, b), mask::group_of(other.state_, b)}).second) continue;
    const auto sequence = static_cast<std::int64_t>(b);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < q_blocks(sequence); ++r) {
        if (!same_row(sequence, h, r)) return false;
      }
    }
  }
  return true;
}

}  // namespace heddle
