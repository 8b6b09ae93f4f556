#include "heddle/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "mask/chunk_needs.h"
#include "mask/row_ranges.h"
#include "mask/shape.h"

namespace heddle {
namespace {

void check_sizes(std::int64_t length, std::int64_t ranks, std::int64_t chunk) {
  if (length < 0) mask::refuse_partition(fmt::format("length is {}; 0 and more are accepted", length));
  if (ranks < 1 || ranks > Partition::kMostRanks) {
    mask::refuse_partition(fmt::format("ranks is {}; 1 to {} are accepted", ranks, Partition::kMostRanks));
  }
  if (chunk < 1) mask::refuse_partition(fmt::format("chunk is {}; 1 and more are accepted", chunk));
  if (mask::block_count(length, chunk) > Partition::kMostChunks) {
    mask::refuse_partition(fmt::format("{} rows in chunks of {} are {} chunks; up to {} are accepted", length, chunk,
                                       mask::block_count(length, chunk), Partition::kMostChunks));
  }
}

char letter_of(std::int64_t rank) {
  return rank < 10 ? static_cast<char>('0' + rank) : rank < 36 ? static_cast<char>('a' + rank - 10) : '*';
}

}  // namespace

std::string_view name(Placing placing) {
  constexpr std::string_view kNames[] = {"contiguous", "zigzag", "documents", "heap"};
  return kNames[static_cast<std::size_t>(placing)];
}

Partition Partition::contiguous(std::int64_t length, std::int64_t ranks, std::int64_t chunk) {
  check_sizes(length, ranks, chunk);
  const std::int64_t chunks = mask::block_count(length, chunk);
  Partition made{.length = length, .chunk = chunk, .placement = {}};
  for (std::int64_t rank = 0, first = 0; rank < ranks; ++rank) {
    const std::int64_t end = first + chunks / ranks + (rank < chunks % ranks ? 1 : 0);
    made.placement.emplace_back();
    mask::append(made.placement.back(), {first * chunk, std::min(length, end * chunk)});
    first = end;
  }
  return made;
}

void Partition::validate() const {
  check_sizes(length, ranks(), chunk);
  std::vector<RowRange> all;
  for (std::int64_t rank = 0; rank < ranks(); ++rank) {
    std::int64_t before = -1;
    for (const RowRange& range : placement[static_cast<std::size_t>(rank)]) {
      if (range.begin <= before || range.begin >= range.end || range.begin % chunk != 0) {
        mask::refuse_partition(
            fmt::format("rank {} holds rows {} to {}; ascending ranges that do not touch, each from a multiple of "
                        "the chunk ({}), are accepted",
                        rank, range.begin, range.end, chunk));
      }
      before = range.end;
      all.push_back(range);
    }
  }
  std::ranges::sort(all, {}, &RowRange::begin);
  std::int64_t next = 0;
  for (const RowRange& range : all) {
    if (range.begin != next)
      mask::refuse_partition(fmt::format("row {} stands in two ranges or in none", std::min(next, range.begin)));
    next = range.end;
  }
  if (next != length)
    mask::refuse_partition(fmt::format("the ranges end at row {}, and the sequence at {}", next, length));
}

std::int64_t Partition::rows(std::int64_t rank) const {
  mask::check_rank(rank, ranks());
  return mask::count(placement[static_cast<std::size_t>(rank)]);
}

std::vector<std::int64_t> Partition::positions(std::int64_t rank) const {
  std::vector<std::int64_t> rows_of_rank(static_cast<std::size_t>(rows(rank)));
  auto next = rows_of_rank.begin();
  for (const RowRange& range : placement[static_cast<std::size_t>(rank)]) {
    std::iota(next, next + (range.end - range.begin), range.begin);
    next += range.end - range.begin;
  }
  return rows_of_rank;
}

std::uint64_t Partition::hash() const {
  std::uint64_t made = base::hash_combine(static_cast<std::uint64_t>(length), static_cast<std::uint64_t>(chunk));
  for (const std::vector<RowRange>& ranges : placement) made = mask::hash_of(made, ranges);
  return made;
}

std::string Partition::text() const {
  const std::int64_t chunks = mask::block_count(length, chunk);
  const std::int64_t width = std::max<std::int64_t>(1, mask::block_count(chunks, 128)) * chunk;
  std::string line(static_cast<std::size_t>(mask::block_count(length, width)), ' ');
  for (std::int64_t rank = 0; rank < ranks(); ++rank) {
    for (const RowRange& range : placement[static_cast<std::size_t>(rank)]) {
      for (std::int64_t at = range.begin / width; at * width < range.end; ++at) {
        char& cell = line[static_cast<std::size_t>(at)];
        cell = cell == ' ' || cell == letter_of(rank) ? letter_of(rank) : '*';
      }
    }
  }
  return line;
}

}  // namespace heddle
