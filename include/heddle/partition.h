// Context parallelism: which rank holds which rows of a sequence, and which rows of keys and values ranks exchange. All
// of it is plain data, which each rank computes from a block mask, equal on all ranks; nothing here communicates.
// Queries stay on their rank; a rank receives the rows of keys that the blocks of its queries list.
//
//   block masks ── make_partition ──► queries, keys: Partition ── ExchangePlan::build(…, mask) ──► rows by rank pairs
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "heddle/block_mask.h"

namespace heddle {

/// Rows [begin, end) of a whole sequence.
struct RowRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const RowRange&) const = default;
};

/// Which rank holds which rows of a sequence of `length` rows.
struct Partition {
  static constexpr std::int64_t kMostRanks = 1 << 16, kMostChunks = 1 << 20;  // more are refused

  std::int64_t length = 0;
  std::int64_t chunk = 1;                        // ranges begin at multiples of it
  std::vector<std::vector<RowRange>> placement;  // of each rank: ascending, no two touch, none is empty

  /// Each rank's rows are contiguous; ranks differ by at most one chunk. Ranks past the last chunk are empty. Throws
  /// invalid_argument for a negative length, a chunk below 1 and no ranks, and for more ranks or chunks than accepted.
  static Partition contiguous(std::int64_t length, std::int64_t ranks, std::int64_t chunk);
  /// Throws invalid_argument unless each row of the sequence stands in one range of one rank, in the order above.
  void validate() const;

  std::int64_t ranks() const { return static_cast<std::int64_t>(placement.size()); }
  /// The number of rows of a rank. Throws invalid_argument for a rank that is not there; so do positions() and
  /// ExchangePlan's functions.
  std::int64_t rows(std::int64_t rank) const;
  /// The row of the whole sequence for each local row of a rank, ascending.
  std::vector<std::int64_t> positions(std::int64_t rank) const;
  /// Equal for equal partitions, on every machine.
  std::uint64_t hash() const;
  /// A picture of one line: a character for each chunk (beyond 128, for several), 0 to 9 and a to z by the rank, '*'
  /// where ranks differ or have no character.
  std::string text() const;
  bool operator==(const Partition&) const = default;
};

/// How chunks are placed before swaps.
enum class Placing : std::uint8_t {
  contiguous,  // rank after rank
  zigzag,      // there and back again: 0 1 2 2 1 0 0 1 2 ...
  documents,   // chunks that no key joins to those before them begin a group; groups stay together if there is room
  heap,        // the largest chunk first, to the rank with the least to do
};
std::string_view name(Placing placing);

/// One of a model's masks, and for how many of its layers it counts.
struct WeightedMask {
  const BlockMask* mask = nullptr;
  double weight = 1;
};

/// The work of one chunk of queries under a mask, over all heads and sequences.
struct ChunkCost {
  double full = 0, partial = 0;  // elements of the score matrix in blocks of each kind
  std::int64_t rows = 0;         // of queries
};

/// In how many steps rows come from other hosts (ExchangePlan).
enum class HostSteps : std::uint8_t {
  automatic,  // in those of the less predicted time: takes_two_steps()
  one,        // each rank takes what it reads from its owner
  two,        // once to each host, then within it
};

/// Times are relative to one element of a full block of one query head.
struct PartitionOptions {
  std::int64_t chunk = 0;            // rows; 0: default_chunk()
  double partial_factor = 1;         // an element of a partial block
  double row_weight = 0;             // a row of queries, for each head and sequence of the mask
  double exchange_weight = 1000;     // a received row of keys and values, for each head and sequence of the mask
  double exposed = 0.25;             // share of the exchange that attention does not hide
  std::uint64_t seed = 0;            // of the swaps
  std::optional<Placing> only = {};  // takes this placing, without swaps
  /// Ranks h * n to (h + 1) * n - 1 stand on host h, which has n of them; n divides the ranks. 0: all stand on one.
  std::int64_t ranks_per_host = 0;
  double host_exchange_weight = 6000;  // a row that comes from another host, as exchange_weight
  HostSteps host_steps = HostSteps::automatic;
};

/// One rank's work and the rows that it receives, summed over the masks by their weights.
struct RankLoad {
  double attention = 0, exchange = 0;  // times
  double received = 0;                 // rows of keys and values that its queries read
  double crossing = 0;                 // rows that it takes from other hosts, for all ranks of its host
};

/// A placement that make_partition() weighed.
struct PartitionCandidate {
  Placing placing = Placing::contiguous;
  bool swapped = false;  // improved by swaps of two chunks
  double cost = 0;       // predicted time: the slowest rank's, and the exposed share of the exchange
  double balance = 1;    // mean attention / largest attention
  double mean_received = 0, most_received = 0;  // rows, as a share of all keys
  double mean_crossing = 0;                     // rows that come to a host from others, as a share of all keys
};

/// A placement of one sequence's queries and keys, and why it was taken.
struct MadePartition {
  Partition queries, keys;  // equal if there are as many keys as queries; else the keys are contiguous
  std::vector<RankLoad> loads;
  std::vector<PartitionCandidate> candidates;  // the taken one first, then by cost
  /// With several hosts: the candidates for placing chunks on hosts, the taken one first; `candidates` then placed each
  /// host's chunks on its ranks. Here a host counts as one rank, and its exchange is the rows from other hosts.
  std::vector<PartitionCandidate> host_candidates;
  std::int64_t ranks_per_host = 0;  // 0: one host, or one rank on each
  HostSteps host_steps = HostSteps::automatic;
  /// Picture, load and rows of each rank, and why the other candidates lost.
  std::string text() const;
};

/// The chunk of make_partition() if none is given: 1024 rows, which every tile divides. It is halved down to 128 as
/// long as there are fewer than four chunks for each rank, and below that while there are fewer chunks than ranks.
/// Throws invalid_argument for a negative length and no ranks.
std::int64_t default_chunk(std::int64_t rows, std::int64_t ranks);

/// Places the sequence that all masks cover, with the lowest predicted time: the largest over the ranks of attention
/// and exchange, plus the exposed exchange. Ranks differ by at most one chunk. The same arguments give the same result
/// on every machine. Chunks that are multiples of the mask's blocks of queries are counted exactly. All sequences of a
/// padded batch share the placement. Takes no threads.
///
/// With several hosts, chunks are placed on hosts first, by the time of a host's share of attention and of its rows
/// from other hosts, then on the ranks of each host.
///
/// Throws invalid_argument for no mask, masks of other lengths, packed sequences and sequences of several lengths,
/// transposed masks, weights and factors that are negative or not finite, a ranks_per_host that does not divide the
/// ranks, and what Partition::contiguous refuses.
MadePartition make_partition(std::span<const WeightedMask> masks, std::int64_t ranks,
                             const PartitionOptions& options = {});

/// The work of each chunk of queries. Throws invalid_argument as make_partition().
std::vector<ChunkCost> chunk_costs(const BlockMask& mask, std::int64_t chunk);

/// The most elements of the score matrix that a rank's queries have in listed blocks, of one head and sequence: the
/// mean over the mask's. Throws invalid_argument as make_partition(), and for a partition of another length than the
/// mask's.
double most_elements(const Partition& queries, const BlockMask& mask);

/// The rows of keys and values that ranks exchange for one mask: for each rank the union of the rows that its queries'
/// blocks list, less the rows that it holds.
///
/// With several hosts they travel in two steps, and each row crosses once to a host that reads it:
/// 1. From its owner to the rank of the same number on that host (`crossing`).
/// 2. Within the host, to all ranks that read it (`received`), beside the rows of the host's own ranks.
/// Gradients go the way back: added within the host first, so that they cross once too.
struct ExchangePlan {
  /// received[r][s]: rows that rank r receives from rank s, ascending, no two touch. received[r][r] is empty with one
  /// host. With several it is what r reads of the rows that crossed to it, and received[r][s] is empty for ranks s of
  /// other hosts.
  std::vector<std::vector<std::vector<RowRange>>> received;
  /// crossing[r][s]: rows that cross from rank s to rank r, of another host, for all ranks of r's host; likewise. Empty
  /// with one host.
  std::vector<std::vector<std::vector<RowRange>>> crossing;
  std::int64_t ranks_per_host = 0;  // 0: one host

  /// `ranks_per_host`: as PartitionOptions has it; 1 means the same as 0, because each row then crosses once to each
  /// reader anyway.
  ///
  /// Throws invalid_argument for partitions of other lengths than the mask's or of unlike ranks, for masks that
  /// make_partition() refuses, and for a ranks_per_host that does not divide the ranks.
  static ExchangePlan build(const Partition& queries, const Partition& keys, const BlockMask& mask,
                            std::int64_t ranks_per_host = 0);

  std::int64_t ranks() const { return static_cast<std::int64_t>(received.size()); }
  /// How many rows `receiver` gets from `sender`; from all ranks.
  std::int64_t rows(std::int64_t receiver, std::int64_t sender) const;
  std::int64_t rows(std::int64_t receiver) const;
  /// How many rows cross to `receiver` from `sender`; from all ranks. 0 with one host.
  std::int64_t crossing_rows(std::int64_t receiver, std::int64_t sender) const;
  std::int64_t crossing_rows(std::int64_t receiver) const;
  /// How many rows would cross to all ranks together if each rank received its rows from their owners.
  std::int64_t crossing_rows_if_direct() const;
  /// The row of the whole sequence for each row that a rank receives: rank by rank, each ascending.
  std::vector<std::int64_t> received_positions(std::int64_t rank) const;
  /// Which rows a rank sends: receiver by receiver, each ascending. A number below the rows that it holds is a local
  /// row; the next ones are those that crossed to it, rank by rank, each ascending.
  std::vector<std::int64_t> sent_rows(std::int64_t rank, const Partition& keys) const;
  /// Which local rows cross from a rank: receiver by receiver, each ascending.
  std::vector<std::int64_t> crossing_sent_rows(std::int64_t rank, const Partition& keys) const;
  /// How long rows of row_bytes bytes travel, in seconds: derived from 258 GB/s within a host, 50 GB/s a rank across
  /// hosts, each way, and 55 us that a step takes for few bytes. The busiest rank counts; steps follow each other.
  /// `ranks_per_host`: of a plan that was built without it, whose ranks stand on several hosts all the same.
  double predicted_seconds(std::int64_t row_bytes, std::int64_t ranks_per_host = 0) const;
  /// Equal for equal plans, on every machine.
  std::uint64_t hash() const;
  /// A table: a line for each receiver, a column for each sender. With several hosts another one of what crosses, with
  /// a column for each host, and what all ranks receive across hosts and within them. In rows; in bytes if the bytes of
  /// a row are given: batch * heads of keys * (D + Dv) * bytes of an element.
  std::string text(std::int64_t row_bytes = 0) const;
  bool operator==(const ExchangePlan&) const = default;
};

/// Whether rows of row_bytes bytes take two steps. `direct` and `two`: plans of one mask, built without and with
/// ranks_per_host. False if `two` has one step, too.
bool takes_two_steps(HostSteps steps, const ExchangePlan& direct, const ExchangePlan& two, std::int64_t row_bytes);

}  // namespace heddle
