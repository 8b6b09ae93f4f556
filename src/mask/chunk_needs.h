// The cost of each chunk of queries, and the chunks of keys that it reads: placements are weighed by both.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "heddle/partition.h"

namespace heddle::mask {

[[noreturn]] void refuse_partition(const std::string& sentence);
/// Throws invalid_argument for a rank that is not there.
void check_rank(std::int64_t rank, std::int64_t ranks);

/// Whether these ranks stand on several hosts, with more than one on each. Throws invalid_argument for a ranks_per_host
/// that does not divide them.
bool has_several_hosts(std::int64_t ranks, std::int64_t ranks_per_host);

/// Throws invalid_argument, by the name `what`, unless the mask is not transposed and its sequences are equal, padded
/// and from 0 on.
void check_uniform(const char* what, const BlockMask& mask);

/// How many different score matrices the mask lists: its heads and sequences, or 1 where they share their rows.
std::int64_t different_heads(const BlockMask& mask);
std::int64_t different_sequences(const BlockMask& mask);

/// Sets of chunks as words of 64 bits.
using Bits = std::vector<std::uint64_t>;
inline bool has(const std::uint64_t* bits, std::int64_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }
inline void set(std::uint64_t* bits, std::int64_t i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }
inline void clear(std::uint64_t* bits, std::int64_t i) { bits[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }

/// Sets [begin, end), a word at a time.
void set_range(std::uint64_t* bits, std::int64_t begin, std::int64_t end);

/// Which chunks of keys each chunk of queries reads: has(of(c), k) if a block of row c reads a key of chunk k.
class ChunkNeeds {
 public:
  ChunkNeeds(const BlockMask& mask, std::int64_t chunk);
  std::int64_t queries() const { return queries_; }
  std::int64_t keys() const { return keys_; }
  /// Words of a set of chunks of keys.
  std::int64_t words() const { return words_; }
  const std::uint64_t* of(std::int64_t q_chunk) const { return bits_.data() + q_chunk * words_; }
  /// Whether the last rows of the chunk read no key before the chunk: what follows may be another document.
  bool ends_alone(std::int64_t q_chunk) const { return ends_alone_[static_cast<std::size_t>(q_chunk)] != 0; }

 private:
  std::int64_t queries_, keys_, words_;
  Bits bits_;
  std::vector<std::uint8_t> ends_alone_;
};

}  // namespace heddle::mask
