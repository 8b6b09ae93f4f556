// Which rows travel for one mask, directly or in two steps by hosts.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/hash.h"
#include "heddle/error.h"
#include "heddle/partition.h"
#include "mask/chunk_needs.h"
#include "mask/row_ranges.h"

namespace heddle {
namespace {

using Ranges = std::vector<RowRange>;

/// Throws Error(invalid_argument) where `rows` rows have more bytes than i64 counts.
void refuse_too_many_bytes(std::int64_t row_bytes, std::int64_t rows) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / std::max<std::int64_t>(rows, 1);
  if (row_bytes <= most) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("row_bytes is {}; up to {} are accepted", row_bytes, most));
}

/// The keys that the blocks of a rank's queries list.
Ranges needed_by(const std::vector<RowRange>& queries, const BlockMask& mask) {
  const BlockSize block = mask.block();
  mask::RowUnion needed(mask.shape().sequences.front().kv_len, block.kv);
  for (const RowRange& range : queries) {
    for (std::int64_t row = range.begin / block.q; row * block.q < range.end; ++row) {
      for (std::int64_t s = 0; s < mask::different_sequences(mask); ++s) {
        for (std::int64_t h = 0; h < mask::different_heads(mask); ++h) {
          for (const Run& run : mask.row(s, h, row)) needed.add(run.begin, run.end);
        }
      }
    }
  }
  return needed.ranges();
}

/// Fills both steps of a plan over hosts.
void plan_by_hosts(ExchangePlan& plan, const std::vector<Ranges>& needed, const Partition& keys) {
  const std::int64_t ranks = std::ssize(needed), per_host = plan.ranks_per_host;
  plan.crossing.assign(needed.size(), std::vector<Ranges>(needed.size()));
  for (std::int64_t first = 0; first < ranks; first += per_host) {
    Ranges of_host;
    for (std::int64_t rank = first; rank < first + per_host; ++rank) {
      of_host = mask::united(of_host, needed[static_cast<std::size_t>(rank)]);
    }
    std::vector<Ranges> there;  // for each rank of the host: its own rows and those that cross to it
    for (std::int64_t rank = first; rank < first + per_host; ++rank) {
      Ranges rows = keys.placement[static_cast<std::size_t>(rank)];
      for (std::int64_t sender = rank % per_host; sender < ranks; sender += per_host) {
        if (sender == rank) continue;
        Ranges& crossing = plan.crossing[static_cast<std::size_t>(rank)][static_cast<std::size_t>(sender)];
        crossing = mask::intersection(of_host, keys.placement[static_cast<std::size_t>(sender)]);
        rows = mask::united(rows, crossing);
      }
      there.push_back(std::move(rows));
    }
    for (std::int64_t rank = first; rank < first + per_host; ++rank) {
      std::vector<Ranges>& from = plan.received.emplace_back(needed.size());
      const Ranges others =
          mask::difference(needed[static_cast<std::size_t>(rank)], keys.placement[static_cast<std::size_t>(rank)]);
      for (std::int64_t i = 0; i < per_host; ++i) {
        from[static_cast<std::size_t>(first + i)] = mask::intersection(others, there[static_cast<std::size_t>(i)]);
      }
    }
  }
}

/// Rows that stand one after the other in a rank's memory, by the row of the whole sequence.
struct Segment {
  RowRange rows;
  std::int64_t first;  // number of its first row
};

class Segments {
 public:
  void add(const std::vector<RowRange>& ranges) {
    for (const RowRange& range : ranges) {
      segments_.push_back({range, count_});
      count_ += range.end - range.begin;
    }
  }
  void sort() {
    std::ranges::sort(segments_, {}, [](const Segment& one) { return one.rows.begin; });
  }
  /// Appends the numbers of some rows.
  void find(std::int64_t rank, RowRange range, std::vector<std::int64_t>& found) const {
    for (std::int64_t row = range.begin; row < range.end;) {
      const auto after =
          std::ranges::upper_bound(segments_, row, {}, [](const Segment& one) { return one.rows.begin; });
      if (after == segments_.begin() || row >= std::prev(after)->rows.end) {
        mask::refuse_partition(
            fmt::format("rank {} sends rows {} to {}, which the partition of the keys does not give it", rank,
                        range.begin, range.end));
      }
      const Segment& one = *std::prev(after);
      for (const std::int64_t end = std::min(range.end, one.rows.end); row < end; ++row) {
        found.push_back(one.first + row - one.rows.begin);
      }
    }
  }

 private:
  std::vector<Segment> segments_;
  std::int64_t count_ = 0;
};

using Table = std::vector<std::vector<Ranges>>;  // [receiver][sender]

std::int64_t rows_of(const Table& table, std::int64_t receiver) {
  std::int64_t sum = 0;
  for (const Ranges& ranges : table[static_cast<std::size_t>(receiver)]) sum += mask::count(ranges);
  return sum;
}

std::vector<std::int64_t> numbers_sent(const Table& table, std::int64_t rank, const Segments& segments) {
  std::vector<std::int64_t> found;
  for (const std::vector<Ranges>& from : table) {
    for (const RowRange& range : from[static_cast<std::size_t>(rank)]) segments.find(rank, range, found);
  }
  return found;
}

}  // namespace

ExchangePlan ExchangePlan::build(const Partition& queries, const Partition& keys, const BlockMask& mask,
                                 std::int64_t ranks_per_host) {
  mask::check_uniform("mask", mask);
  queries.validate();
  keys.validate();
  const Sequence& sequence = mask.shape().sequences.front();
  if (queries.length != sequence.q_len || keys.length != sequence.kv_len || queries.ranks() != keys.ranks()) {
    mask::refuse_partition(
        fmt::format("the partitions place {} queries over {} ranks and {} keys over {}; the mask covers {} and "
                    "{}, and both have the same ranks",
                    queries.length, queries.ranks(), keys.length, keys.ranks(), sequence.q_len, sequence.kv_len));
  }
  ExchangePlan plan;
  std::vector<Ranges> needed;
  for (const std::vector<RowRange>& rows : queries.placement) needed.push_back(needed_by(rows, mask));
  if (mask::has_several_hosts(queries.ranks(), ranks_per_host)) {
    plan.ranks_per_host = ranks_per_host;
    plan_by_hosts(plan, needed, keys);
    return plan;
  }
  for (std::int64_t rank = 0; rank < queries.ranks(); ++rank) {
    std::vector<Ranges>& from = plan.received.emplace_back();
    for (std::int64_t sender = 0; sender < keys.ranks(); ++sender) {
      from.push_back(sender == rank ? Ranges()
                                    : mask::intersection(needed[static_cast<std::size_t>(rank)],
                                                         keys.placement[static_cast<std::size_t>(sender)]));
    }
  }
  return plan;
}

std::int64_t ExchangePlan::rows(std::int64_t receiver, std::int64_t sender) const {
  mask::check_rank(receiver, ranks());
  mask::check_rank(sender, ranks());
  return mask::count(received[static_cast<std::size_t>(receiver)][static_cast<std::size_t>(sender)]);
}

std::int64_t ExchangePlan::rows(std::int64_t receiver) const {
  mask::check_rank(receiver, ranks());
  return rows_of(received, receiver);
}

std::int64_t ExchangePlan::crossing_rows(std::int64_t receiver, std::int64_t sender) const {
  mask::check_rank(receiver, ranks());
  mask::check_rank(sender, ranks());
  if (crossing.empty()) return 0;
  return mask::count(crossing[static_cast<std::size_t>(receiver)][static_cast<std::size_t>(sender)]);
}

std::int64_t ExchangePlan::crossing_rows(std::int64_t receiver) const {
  mask::check_rank(receiver, ranks());
  return crossing.empty() ? 0 : rows_of(crossing, receiver);
}

std::int64_t ExchangePlan::crossing_rows_if_direct() const {
  std::int64_t sum = 0;
  for (std::size_t receiver = 0; receiver < crossing.size(); ++receiver) {
    for (std::size_t through = 0; through < crossing.size(); ++through) {
      for (const Ranges& crossed : crossing[through]) {
        sum += mask::count(mask::intersection(received[receiver][through], crossed));
      }
    }
  }
  return sum;
}

std::vector<std::int64_t> ExchangePlan::received_positions(std::int64_t rank) const {
  mask::check_rank(rank, ranks());
  std::vector<std::int64_t> found;
  for (const Ranges& ranges : received[static_cast<std::size_t>(rank)]) {
    for (const RowRange& range : ranges) {
      for (std::int64_t row = range.begin; row < range.end; ++row) found.push_back(row);
    }
  }
  return found;
}

std::vector<std::int64_t> ExchangePlan::sent_rows(std::int64_t rank, const Partition& keys) const {
  mask::check_rank(rank, ranks());
  mask::check_rank(rank, keys.ranks());
  Segments segments;
  segments.add(keys.placement[static_cast<std::size_t>(rank)]);
  if (!crossing.empty()) {
    for (const Ranges& crossed : crossing[static_cast<std::size_t>(rank)]) segments.add(crossed);
  }
  segments.sort();
  return numbers_sent(received, rank, segments);
}

std::vector<std::int64_t> ExchangePlan::crossing_sent_rows(std::int64_t rank, const Partition& keys) const {
  mask::check_rank(rank, ranks());
  mask::check_rank(rank, keys.ranks());
  Segments own;
  own.add(keys.placement[static_cast<std::size_t>(rank)]);
  return numbers_sent(crossing, rank, own);
}

double ExchangePlan::predicted_seconds(std::int64_t row_bytes, std::int64_t ranks_on_host) const {
  constexpr double kWithin = 258e9, kAcross = 50e9;  // bytes a second, of a rank, each way
  constexpr double kStart = 55e-6;                   // of a step
  const std::int64_t per_host = ranks_per_host != 0 ? ranks_per_host : ranks_on_host;
  const auto are_near = [&](std::int64_t one, std::int64_t other) {
    return per_host == 0 || one / per_host == other / per_host;
  };
  const auto time_of = [&](const Table& table) {
    double longest = 0;
    for (std::int64_t rank = 0; rank < ranks(); ++rank) {
      std::int64_t near_in = 0, near_out = 0, far_in = 0, far_out = 0;
      for (std::int64_t other = 0; other < ranks(); ++other) {
        if (other == rank) continue;
        const std::int64_t in = mask::count(table[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other)]),
                           out = mask::count(table[static_cast<std::size_t>(other)][static_cast<std::size_t>(rank)]);
        (are_near(rank, other) ? near_in : far_in) += in;
        (are_near(rank, other) ? near_out : far_out) += out;
      }
      longest = std::max({longest, static_cast<double>(std::max(near_in, near_out)) / kWithin,
                          static_cast<double>(std::max(far_in, far_out)) / kAcross});
    }
    return kStart + longest * static_cast<double>(row_bytes);
  };
  return crossing.empty() ? time_of(received) : time_of(crossing) + time_of(received);
}

bool takes_two_steps(HostSteps steps, const ExchangePlan& direct, const ExchangePlan& two, std::int64_t row_bytes) {
  if (two.ranks_per_host == 0) return false;
  if (steps != HostSteps::automatic) return steps == HostSteps::two;
  return two.predicted_seconds(row_bytes) < direct.predicted_seconds(row_bytes, two.ranks_per_host);
}

std::uint64_t ExchangePlan::hash() const {
  std::uint64_t made = static_cast<std::uint64_t>(ranks());
  for (const Table* table : {&received, &crossing}) {
    for (const std::vector<Ranges>& senders : *table) {
      for (const Ranges& ranges : senders) made = mask::hash_of(made, ranges);
    }
  }
  return crossing.empty() ? made : base::hash_combine(made, static_cast<std::uint64_t>(ranks_per_host));
}

std::string ExchangePlan::text(std::int64_t row_bytes) const {
  std::int64_t all = 0;
  for (std::int64_t rank = 0; rank < ranks(); ++rank) all += rows(rank) + (crossing.empty() ? 0 : crossing_rows(rank));
  refuse_too_many_bytes(row_bytes, all + (crossing.empty() ? 0 : crossing_rows_if_direct()));
  const std::int64_t unit = row_bytes > 0 ? row_bytes : 1;
  std::string table = "receives from";
  for (std::int64_t sender = 0; sender < ranks(); ++sender) table += fmt::format(" {:>9}", sender);
  for (std::int64_t receiver = 0; receiver < ranks(); ++receiver) {
    table += fmt::format("\nrank {:>8}", receiver);
    for (std::int64_t sender = 0; sender < ranks(); ++sender) {
      table += fmt::format(" {:>9}", unit * rows(receiver, sender));
    }
  }
  table += '\n';
  if (crossing.empty()) return table;
  table += "takes from host";
  const std::int64_t hosts = ranks() / ranks_per_host;
  for (std::int64_t host = 0; host < hosts; ++host) table += fmt::format(" {:>9}", host);
  std::int64_t across = 0, within = 0;
  for (std::int64_t receiver = 0; receiver < ranks(); ++receiver) {
    table += fmt::format("\nrank {:>10}", receiver);
    for (std::int64_t host = 0; host < hosts; ++host) {
      const std::int64_t sender = host * ranks_per_host + receiver % ranks_per_host;
      table += fmt::format(" {:>9}", unit * crossing_rows(receiver, sender));
    }
    across += crossing_rows(receiver);
    within += rows(receiver) - rows(receiver, receiver);
  }
  return table + fmt::format("\n{} across hosts: {} ({} if each rank took its own), within hosts: {}\n",
                             row_bytes > 0 ? "bytes" : "rows", unit * across, unit * crossing_rows_if_direct(),
                             unit * within);
}

}  // namespace heddle
