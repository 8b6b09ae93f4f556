#include "mask/chunk_needs.h"

#include <fmt/format.h>

#include <algorithm>

#include "heddle/error.h"
#include "mask/shape.h"

namespace heddle {
namespace mask {
namespace {

const Sequence& sequence_of(const BlockMask& mask) { return mask.shape().sequences.front(); }

}  // namespace

void refuse_partition(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

void check_rank(std::int64_t rank, std::int64_t ranks) {
  if (rank < 0 || rank >= ranks) refuse_partition(fmt::format("rank is {}; 0 to {} are accepted", rank, ranks - 1));
}

bool has_several_hosts(std::int64_t ranks, std::int64_t ranks_per_host) {
  if (ranks_per_host < 0 || (ranks_per_host != 0 && ranks % ranks_per_host != 0)) {
    refuse_partition(fmt::format("ranks_per_host is {}, and there are {} ranks; 0 and their divisors are accepted",
                                 ranks_per_host, ranks));
  }
  return ranks_per_host > 1 && ranks_per_host < ranks;
}

void check_uniform(const char* what, const BlockMask& mask) {
  if (mask.is_transposed()) refuse_partition(fmt::format("{} is transposed; rows of queries are accepted", what));
  if (mask.shape().sequences.empty() || mask.shape().heads < 1) {
    refuse_partition(fmt::format("{} covers {} sequences and {} heads; at least one of each is accepted", what,
                                 mask.shape().sequences.size(), mask.shape().heads));
  }
  for (const Sequence& one : mask.shape().sequences) {
    if (one != sequence_of(mask) || one.q_begin != 0 || one.kv_begin != 0 || one.q_start != 0 || one.kv_start != 0) {
      refuse_partition(
          fmt::format("{} covers sequences of several lengths, packed ones, or indices that do not begin at 0; equal "
                      "sequences of a padded batch are accepted",
                      what));
    }
  }
}

std::int64_t different_heads(const BlockMask& mask) { return mask.shared_by_heads() ? 1 : mask.shape().heads; }

std::int64_t different_sequences(const BlockMask& mask) {
  return mask.shared_by_batch() ? 1 : std::ssize(mask.shape().sequences);
}

void set_range(std::uint64_t* bits, std::int64_t begin, std::int64_t end) {
  for (std::int64_t word = begin / 64; word * 64 < end; ++word) {
    const std::int64_t first = std::max<std::int64_t>(0, begin - word * 64),
                       last = std::min<std::int64_t>(64, end - word * 64);
    bits[word] |= (~std::uint64_t{0} >> (64 - (last - first))) << first;
  }
}

ChunkNeeds::ChunkNeeds(const BlockMask& mask, std::int64_t chunk)
    : queries_(block_count(sequence_of(mask).q_len, chunk)),
      keys_(block_count(sequence_of(mask).kv_len, chunk)),
      words_(block_count(keys_, 64)),
      bits_(static_cast<std::size_t>(queries_ * words_)),
      ends_alone_(static_cast<std::size_t>(queries_), 1) {
  const std::int64_t q_len = sequence_of(mask).q_len, kv_len = sequence_of(mask).kv_len;
  const BlockSize block = mask.block();
  for (std::int64_t sequence = 0; sequence < different_sequences(mask); ++sequence) {
    for (std::int64_t head = 0; head < different_heads(mask); ++head) {
      for (std::int64_t row = 0; row < mask.q_blocks(sequence); ++row) {
        const std::int64_t begin = row * block.q, end = std::min(q_len, begin + block.q);
        const RowRuns runs = mask.row(sequence, head, row);
        for (std::int64_t c = begin / chunk; c * chunk < end; ++c) {
          std::uint64_t* needed = bits_.data() + c * words_;
          for (const Run& run : runs) {
            const std::int64_t first = run.begin * block.kv, last = std::min(kv_len, run.end * block.kv) - 1;
            set_range(needed, first / chunk, last / chunk + 1);
          }
          const bool is_last = std::min(q_len, (c + 1) * chunk) <= end;
          if (is_last && !runs.empty() && runs.front().begin * block.kv < c * chunk) {
            ends_alone_[static_cast<std::size_t>(c)] = 0;
          }
        }
      }
    }
  }
}

}  // namespace mask

std::vector<ChunkCost> chunk_costs(const BlockMask& mask, std::int64_t chunk) {
  mask::check_uniform("mask", mask);
  const std::int64_t q_len = mask::sequence_of(mask).q_len, kv_len = mask::sequence_of(mask).kv_len;
  if (chunk < 1) mask::refuse_partition(fmt::format("chunk is {}; 1 and more are accepted", chunk));
  const BlockSize block = mask.block();
  const std::int64_t sequences = mask::different_sequences(mask), heads = mask::different_heads(mask);
  const double copies = static_cast<double>(std::ssize(mask.shape().sequences) * mask.shape().heads) /
                        static_cast<double>(sequences * heads);
  std::vector<ChunkCost> costs(static_cast<std::size_t>(mask::block_count(q_len, chunk)));
  for (std::int64_t c = 0; c < std::ssize(costs); ++c) {
    costs[static_cast<std::size_t>(c)].rows = std::min(q_len, (c + 1) * chunk) - c * chunk;
  }
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t row = 0; row < mask.q_blocks(sequence); ++row) {
        std::int64_t full = 0, partial = 0;  // keys
        for (const Run& run : mask.row(sequence, head, row)) {
          (run.kind == RunKind::full ? full : partial) += std::min(kv_len, run.end * block.kv) - run.begin * block.kv;
        }
        const std::int64_t begin = row * block.q, end = std::min(q_len, begin + block.q);
        for (std::int64_t c = begin / chunk; c * chunk < end; ++c) {
          const auto queries = static_cast<double>(std::min(end, (c + 1) * chunk) - std::max(begin, c * chunk));
          costs[static_cast<std::size_t>(c)].full += copies * queries * static_cast<double>(full);
          costs[static_cast<std::size_t>(c)].partial += copies * queries * static_cast<double>(partial);
        }
      }
    }
  }
  return costs;
}

double most_elements(const Partition& queries, const BlockMask& mask) {
  queries.validate();
  const std::vector<ChunkCost> costs = chunk_costs(mask, queries.chunk);
  const std::int64_t q_len = mask::sequence_of(mask).q_len;
  if (queries.length != q_len) {
    mask::refuse_partition(fmt::format(
        "the partition places {} queries, and the mask covers {}; equal numbers are accepted", queries.length, q_len));
  }
  double most = 0;
  for (const std::vector<RowRange>& ranges : queries.placement) {
    double elements = 0;
    for (const RowRange& range : ranges) {
      for (std::int64_t c = range.begin / queries.chunk; c * queries.chunk < range.end; ++c) {
        const ChunkCost& cost = costs[static_cast<std::size_t>(c)];
        elements += cost.full + cost.partial;
      }
    }
    most = std::max(most, elements);
  }
  const std::int64_t matrices = std::ssize(mask.shape().sequences) * mask.shape().heads;
  return matrices > 0 ? most / static_cast<double>(matrices) : 0;
}

}  // namespace heddle
