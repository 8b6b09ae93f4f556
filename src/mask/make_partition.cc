#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "heddle/partition.h"
#include "mask/placement.h"
#include "mask/row_ranges.h"
#include "mask/shape.h"

namespace heddle {
namespace {

using mask::Owners;
using mask::PlacementProblem;

void check_factor(const char* what, double factor) {
  if (!std::isfinite(factor) || factor < 0)
    mask::refuse_partition(fmt::format("{} is {}; finite numbers from 0 on are accepted", what, factor));
}

void check_request(std::span<const WeightedMask> masks, const PartitionOptions& options) {
  if (masks.empty()) mask::refuse_partition("masks is empty; at least one is accepted");
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const std::string what = fmt::format("masks[{}]", i);
    if (masks[i].mask == nullptr) mask::refuse_partition(what + " is null; a block mask is accepted");
    mask::check_uniform(what.c_str(), *masks[i].mask);
    check_factor((what + ".weight").c_str(), masks[i].weight);
    const Sequence &first = masks[0].mask->shape().sequences[0], &one = masks[i].mask->shape().sequences[0];
    if (one != first) {
      mask::refuse_partition(fmt::format(
          "{} covers {} queries and {} keys, and masks[0] {} and {}; masks of the same lengths are accepted", what,
          one.q_len, one.kv_len, first.q_len, first.kv_len));
    }
  }
  check_factor("partial_factor", options.partial_factor);
  check_factor("row_weight", options.row_weight);
  check_factor("exchange_weight", options.exchange_weight);
  check_factor("exposed", options.exposed);
  check_factor("host_exchange_weight", options.host_exchange_weight);
  if (options.chunk < 0) mask::refuse_partition(fmt::format("chunk is {}; 0 and more are accepted", options.chunk));
}

PlacementProblem problem_of(std::span<const WeightedMask> masks, std::int64_t ranks, const PartitionOptions& options) {
  const Sequence& sequence = masks[0].mask->shape().sequences[0];
  PlacementProblem problem;
  problem.ranks = ranks;
  problem.chunk = options.chunk != 0 ? options.chunk : default_chunk(sequence.q_len, ranks);
  problem.q_len = sequence.q_len;
  problem.kv_len = sequence.kv_len;
  problem.exposed = options.exposed;
  if (mask::has_several_hosts(ranks, options.ranks_per_host)) problem.per_host = options.ranks_per_host;
  // With one rank a host, all rows come from other hosts.
  const double exchange_weight =
      options.ranks_per_host == 1 && ranks > 1 ? options.host_exchange_weight : options.exchange_weight;
  Partition::contiguous(sequence.q_len, ranks, problem.chunk);  // refuses what no placement has
  Partition::contiguous(sequence.kv_len, ranks, problem.chunk);
  problem.times.resize(static_cast<std::size_t>(mask::block_count(sequence.q_len, problem.chunk)));
  for (const auto& [block_mask, weight] : masks) {
    const auto matrices = static_cast<double>(std::ssize(block_mask->shape().sequences) * block_mask->shape().heads);
    const std::vector<ChunkCost> costs = chunk_costs(*block_mask, problem.chunk);
    for (std::size_t c = 0; c < costs.size(); ++c) {
      problem.times[c] += weight * (costs[c].full + options.partial_factor * costs[c].partial +
                                    options.row_weight * matrices * static_cast<double>(costs[c].rows));
    }
    problem.masks.push_back({mask::ChunkNeeds(*block_mask, problem.chunk), weight, weight * exchange_weight * matrices,
                             weight * options.host_exchange_weight * matrices});
  }
  problem.keys_move = sequence.q_len == sequence.kv_len;
  if (!problem.keys_move) {
    const Partition keys = Partition::contiguous(sequence.kv_len, ranks, problem.chunk);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (const RowRange& range : keys.placement[static_cast<std::size_t>(rank)]) {
        problem.key_owners.insert(problem.key_owners.end(),
                                  static_cast<std::size_t>(mask::block_count(range.end - range.begin, problem.chunk)),
                                  static_cast<std::int32_t>(rank));
      }
    }
  }
  return problem;
}

Partition partition_of(const PlacementProblem& problem, const Owners& owners) {
  Partition made{.length = problem.q_len, .chunk = problem.chunk, .placement = {}};
  made.placement.resize(static_cast<std::size_t>(problem.ranks));
  for (std::int64_t c = 0; c < problem.chunks(); ++c) {
    mask::append(made.placement[static_cast<std::size_t>(owners[static_cast<std::size_t>(c)])],
                 {c * problem.chunk, std::min(problem.q_len, (c + 1) * problem.chunk)});
  }
  return made;
}

struct Weighed {
  PartitionCandidate candidate;
  Owners owners;
  std::vector<RankLoad> loads;
};

Weighed weighed(const PlacementProblem& problem, Placing placing, bool is_swapped, Owners owners) {
  std::vector<RankLoad> loads = mask::loads_of(problem, owners);
  PartitionCandidate candidate{.placing = placing, .swapped = is_swapped, .cost = mask::cost_of(problem, loads)};
  double attention = 0, largest = 0, rows = 0, most = 0, crossing = 0, layers = 0;
  for (const mask::WeighedNeeds& one : problem.masks) layers += one.weight;
  for (const RankLoad& load : loads) {
    attention += load.attention;
    largest = std::max(largest, load.attention);
    rows += load.received;
    most = std::max(most, load.received);
    crossing += load.crossing;
  }
  const double all = std::max(1.0, static_cast<double>(problem.kv_len)) * (layers > 0 ? layers : 1);
  const auto ranks = static_cast<double>(problem.ranks);
  if (largest > 0) candidate.balance = attention / ranks / largest;
  candidate.mean_received = rows / ranks / all;
  candidate.most_received = most / all;
  if (problem.per_host != 0) candidate.mean_crossing = crossing * static_cast<double>(problem.per_host) / ranks / all;
  return {candidate, std::move(owners), std::move(loads)};
}

/// All placements that `placed` makes, the one to take first. A swapped one has more ranges, so it must be clearly
/// faster than its start.
template <class Placed>
std::vector<Weighed> candidates_of(const PlacementProblem& problem, const PartitionOptions& options, Placed&& placed) {
  constexpr double kWorthSwapping = 0.98;
  std::vector<Weighed> found;
  for (const Placing placing : {Placing::contiguous, Placing::zigzag, Placing::documents, Placing::heap}) {
    if (options.only && *options.only != placing) continue;
    found.push_back(weighed(problem, placing, false, placed(placing)));
    if (options.only || placing == Placing::heap) continue;
    Weighed swapped = weighed(problem, placing, true, mask::swapped(problem, found.back().owners, options.seed).owners);
    if (swapped.candidate.cost < kWorthSwapping * found.back().candidate.cost) found.push_back(std::move(swapped));
  }
  std::ranges::stable_sort(found, {}, [](const Weighed& one) { return one.candidate.cost; });
  return found;
}

std::vector<std::int64_t> all_chunks(const PlacementProblem& problem) {
  std::vector<std::int64_t> chunks(static_cast<std::size_t>(problem.chunks()));
  std::iota(chunks.begin(), chunks.end(), 0);
  return chunks;
}

/// A problem whose ranks are hosts: each has the links and the time of its ranks, and receives what crosses.
PlacementProblem problem_of_hosts(const PlacementProblem& problem) {
  const auto share = static_cast<double>(problem.per_host);
  PlacementProblem hosts = problem;
  hosts.ranks /= problem.per_host;
  hosts.per_host = 0;
  for (double& time : hosts.times) time /= share;
  for (mask::WeighedNeeds& mask : hosts.masks) mask.row_time = mask.crossing_time / share;
  for (std::int32_t& owner : hosts.key_owners) owner /= static_cast<std::int32_t>(problem.per_host);
  return hosts;
}

std::vector<Weighed> place_on_hosts(const PlacementProblem& problem, const PartitionOptions& options) {
  const PlacementProblem hosts = problem_of_hosts(problem);
  mask::Placeable all{.chunks = all_chunks(problem), .rooms = {}};
  const std::vector<std::int64_t> rooms = mask::rooms_of(problem);
  for (auto first = rooms.begin(); first != rooms.end(); first += problem.per_host) {
    all.rooms.push_back(std::accumulate(first, first + problem.per_host, std::int64_t{0}));
  }
  return candidates_of(hosts, options, [&](Placing placing) {
    Owners owners(all.chunks.size());
    mask::place(hosts, all, placing, owners);
    return owners;
  });
}

/// The chunks of each host on its ranks.
std::vector<Weighed> place_within_hosts(const PlacementProblem& problem, const PartitionOptions& options,
                                        const Owners& hosts) {
  const std::vector<std::int64_t> rooms = mask::rooms_of(problem);
  std::vector<mask::Placeable> parts;
  for (std::int64_t first = 0; first < problem.ranks; first += problem.per_host) {
    parts.push_back({.chunks = {},
                     .rooms = {rooms.begin() + first, rooms.begin() + first + problem.per_host},
                     .first = static_cast<std::int32_t>(first)});
  }
  for (std::size_t c = 0; c < hosts.size(); ++c) {
    parts[static_cast<std::size_t>(hosts[c])].chunks.push_back(static_cast<std::int64_t>(c));
  }
  return candidates_of(problem, options, [&](Placing placing) {
    Owners owners(hosts.size());
    for (const mask::Placeable& part : parts) mask::place(problem, part, placing, owners);
    return owners;
  });
}

std::vector<Weighed> place_on_one_host(const PlacementProblem& problem, const PartitionOptions& options) {
  const mask::Placeable all{.chunks = all_chunks(problem), .rooms = mask::rooms_of(problem)};
  return candidates_of(problem, options, [&](Placing placing) {
    Owners owners(all.chunks.size());
    mask::place(problem, all, placing, owners);
    return owners;
  });
}

std::string text_of(const PartitionCandidate& one) {
  const std::string crossing =
      one.mean_crossing > 0 ? fmt::format(", {:.3f} come to a host from others", one.mean_crossing) : "";
  return fmt::format("{}{}: balance {:.2f}, receives {:.3f} of the keys (at most {:.3f}){}", name(one.placing),
                     one.swapped ? " with swaps" : "", one.balance, one.mean_received, one.most_received, crossing);
}

/// A line for each candidate. `level`: "", or of what.
std::string text_of(const std::vector<PartitionCandidate>& candidates, std::string_view level) {
  std::string lines;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    lines += level;
    lines += i == 0 ? "taken: " + text_of(candidates[0])
                    : fmt::format("lost at {:.2f} of its time: {}",
                                  candidates[0].cost > 0 ? candidates[i].cost / candidates[0].cost : 1,
                                  text_of(candidates[i]));
    lines += '\n';
  }
  return lines;
}

}  // namespace

std::int64_t default_chunk(std::int64_t rows, std::int64_t ranks) {
  if (rows < 0 || ranks < 1) Partition::contiguous(rows, ranks, 1);  // refuses both
  for (std::int64_t chunk = 1024; chunk > 128; chunk /= 2) {
    if (rows / (4 * chunk) >= ranks) return chunk;
  }
  std::int64_t chunk = 128;
  while (chunk > 1 && rows / chunk < ranks) chunk /= 2;
  return chunk;
}

MadePartition make_partition(std::span<const WeightedMask> masks, std::int64_t ranks, const PartitionOptions& options) {
  check_request(masks, options);
  PlacementProblem problem = problem_of(masks, ranks, options);
  MadePartition made;
  made.ranks_per_host = problem.per_host;
  made.host_steps = options.host_steps;
  std::vector<Weighed> found;
  if (problem.per_host == 0) {
    found = place_on_one_host(problem, options);
  } else {
    problem.swaps /= 2;  // on hosts and within them, in the time of one host's
    const std::vector<Weighed> hosts = place_on_hosts(problem, options);
    for (const Weighed& one : hosts) made.host_candidates.push_back(one.candidate);
    found = place_within_hosts(problem, options, hosts[0].owners);
  }
  made.queries = partition_of(problem, found[0].owners);
  made.keys = problem.keys_move ? made.queries : Partition::contiguous(problem.kv_len, ranks, problem.chunk);
  made.loads = std::move(found[0].loads);
  for (const Weighed& one : found) made.candidates.push_back(one.candidate);
  return made;
}

std::string MadePartition::text() const {
  std::string lines = fmt::format("{} queries and {} keys over {} ranks, chunks of {}\n{}\n", queries.length,
                                  keys.length, queries.ranks(), queries.chunk, queries.text());
  double attention = 0;
  for (const RankLoad& load : loads) attention += load.attention;
  const double mean = attention > 0 ? attention / static_cast<double>(loads.size()) : 1;
  for (std::int64_t rank = 0; rank < queries.ranks(); ++rank) {
    const RankLoad& load = loads[static_cast<std::size_t>(rank)];
    lines += fmt::format("rank {}: {} queries in {} ranges, load {:.2f} of the mean, receives {:.0f} rows", rank,
                         queries.rows(rank), queries.placement[static_cast<std::size_t>(rank)].size(),
                         load.attention / mean, load.received);
    if (ranks_per_host != 0) lines += fmt::format(", takes {:.0f} from other hosts", load.crossing);
    lines += '\n';
  }
  if (ranks_per_host == 0) return lines + text_of(candidates, "");
  return lines + text_of(host_candidates, "over hosts ") + text_of(candidates, "within hosts ");
}

}  // namespace heddle
