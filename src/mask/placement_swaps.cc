#include <algorithm>
#include <bit>

#include "mask/placement.h"

namespace heddle::mask {
namespace {

/// Splitmix64: the same draws on every machine.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::int64_t below(std::int64_t end) {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::int64_t>((x ^ (x >> 31)) % static_cast<std::uint64_t>(end));
  }

 private:
  std::uint64_t state_;
};

/// Which chunks of keys each rank's queries need under one mask, and which of them it does not hold.
class RankNeeds {
 public:
  RankNeeds(const PlacementProblem& problem, const WeighedNeeds& mask, const Owners& owners)
      : mask_(mask),
        keys_(mask.needs.keys()),
        words_(mask.needs.words()),
        chunk_(problem.chunk),
        last_(problem.kv_len - (keys_ - 1) * problem.chunk),
        keys_move_(problem.keys_move),
        counts_(static_cast<std::size_t>(problem.ranks * keys_)),
        once_(static_cast<std::size_t>(problem.ranks * words_)),
        twice_(once_.size()),
        elsewhere_(once_.size(), ~std::uint64_t{0}) {
    for (std::size_t c = 0; c < owners.size(); ++c) count(owners[c], static_cast<std::int64_t>(c), 1);
    const Owners& key_owners = keys_move_ ? owners : problem.key_owners;
    for (std::int64_t k = 0; k < keys_; ++k) clear(elsewhere(key_owners[static_cast<std::size_t>(k)]), k);
  }

  /// The time of a rank's exchange once `out` has left it and `in` has come.
  double time_after(std::int64_t rank, std::int64_t out, std::int64_t in) const {
    const std::uint64_t *less = mask_.needs.of(out), *more = mask_.needs.of(in);
    const std::uint64_t *once = once_.data() + rank * words_, *twice = twice_.data() + rank * words_;
    const std::uint64_t* elsewhere = elsewhere_.data() + rank * words_;
    const auto needed = [&](std::int64_t word) { return (once[word] & ~less[word]) | twice[word] | more[word]; };
    const auto is_needed = [&](std::int64_t k) { return (needed(k / 64) >> (k % 64) & 1) != 0; };
    std::int64_t chunks = 0;
    for (std::int64_t word = 0; word < words_; ++word) chunks += std::popcount(needed(word) & elsewhere[word]);
    std::int64_t rows = chunks * chunk_;
    if (is_needed(keys_ - 1) && has(elsewhere, keys_ - 1)) rows -= chunk_ - last_;
    if (keys_move_) {
      if (is_needed(out) && !has(elsewhere, out)) rows += rows_of(out);
      if (is_needed(in) && has(elsewhere, in)) rows -= rows_of(in);
    }
    return mask_.row_time * static_cast<double>(rows);
  }

  void move(std::int64_t rank, std::int64_t out, std::int64_t in) {
    count(rank, out, -1);
    count(rank, in, 1);
    if (!keys_move_) return;
    set(elsewhere(rank), out);
    clear(elsewhere(rank), in);
  }

 private:
  std::int64_t rows_of(std::int64_t k) const { return k == keys_ - 1 ? last_ : chunk_; }
  std::uint64_t* elsewhere(std::int64_t rank) { return elsewhere_.data() + rank * words_; }

  void count(std::int64_t rank, std::int64_t q_chunk, int step) {
    std::int32_t* counts = counts_.data() + rank * keys_;
    std::uint64_t *once = once_.data() + rank * words_, *twice = twice_.data() + rank * words_;
    const std::uint64_t* needed = mask_.needs.of(q_chunk);
    for (std::int64_t word = 0; word < words_; ++word) {
      for (std::uint64_t left = needed[word]; left != 0; left &= left - 1) {
        const std::int64_t k = word * 64 + std::countr_zero(left);
        counts[k] += step;
        counts[k] >= 1 ? set(once, k) : clear(once, k);
        counts[k] >= 2 ? set(twice, k) : clear(twice, k);
      }
    }
  }

  const WeighedNeeds& mask_;
  std::int64_t keys_, words_, chunk_, last_;
  bool keys_move_;
  std::vector<std::int32_t> counts_;  // how many of a rank's chunks of queries need a chunk of keys
  Bits once_, twice_;                 // by at least one, at least two of them
  Bits elsewhere_;
};

/// A placement that changes by swaps, with each rank's loads.
class Search {
 public:
  Search(const PlacementProblem& problem, Owners owners)
      : problem_(problem),
        owners_(std::move(owners)),
        loads_(loads_of(problem, owners_)),
        crossing_(loads_.size()),
        cost_(cost_of(problem, loads_)) {
    for (const WeighedNeeds& mask : problem.masks) needs_.emplace_back(problem, mask, owners_);
    if (problem.per_host == 0) return;
    PlacementProblem near = problem;
    near.per_host = 0;
    const std::vector<RankLoad> without = loads_of(near, owners_);
    for (std::size_t rank = 0; rank < loads_.size(); ++rank) {
      crossing_[rank] = loads_[rank].exchange - without[rank].exchange;
    }
  }

  void try_swap(std::int64_t one, std::int64_t other) {
    const std::int64_t a = owner_of(one), b = owner_of(other);
    if (a == b) return;
    RankLoad &of_a = loads_[static_cast<std::size_t>(a)], &of_b = loads_[static_cast<std::size_t>(b)];
    const RankLoad before_a = of_a, before_b = of_b;
    const double moved =
        problem_.times[static_cast<std::size_t>(other)] - problem_.times[static_cast<std::size_t>(one)];
    of_a.attention += moved;
    of_b.attention -= moved;
    of_a.exchange = exchange_after(a, one, other);
    of_b.exchange = exchange_after(b, other, one);
    const double cost = cost_of(problem_, loads_);
    if (cost >= cost_) {
      of_a = before_a;
      of_b = before_b;
      return;
    }
    cost_ = cost;
    std::swap(owners_[static_cast<std::size_t>(one)], owners_[static_cast<std::size_t>(other)]);
    for (RankNeeds& needs : needs_) {
      needs.move(a, one, other);
      needs.move(b, other, one);
    }
  }

  Swapped take() { return {std::move(owners_), cost_}; }

 private:
  std::int64_t owner_of(std::int64_t chunk) const { return owners_[static_cast<std::size_t>(chunk)]; }

  double exchange_after(std::int64_t rank, std::int64_t out, std::int64_t in) const {
    double time = crossing_[static_cast<std::size_t>(rank)];
    for (const RankNeeds& needs : needs_) time += needs.time_after(rank, out, in);
    return time;
  }

  const PlacementProblem& problem_;
  Owners owners_;
  std::vector<RankNeeds> needs_;
  std::vector<RankLoad> loads_;
  std::vector<double> crossing_;  // times of what comes from other hosts, which stays as it was
  double cost_;
};

}  // namespace

Swapped swapped(const PlacementProblem& problem, Owners owners, std::uint64_t seed) {
  constexpr std::int64_t kMostChunks = 4096;  // more take more memory than their balance is worth
  constexpr std::int64_t kMostWork = std::int64_t{1} << 23;
  const std::int64_t chunks = problem.chunks();
  if (chunks < 2 || chunks > kMostChunks || problem.ranks < 2 || problem.kv_len == 0) {
    const double cost = cost_of(problem, loads_of(problem, owners));
    return {std::move(owners), cost};
  }
  // The chunks of each host, which stay there.
  const std::int64_t per_host = problem.per_host == 0 ? problem.ranks : problem.per_host;
  std::vector<std::vector<std::int64_t>> of_host(static_cast<std::size_t>(problem.ranks / per_host));
  const auto host_of = [&](std::int64_t c) {
    return static_cast<std::size_t>(owners[static_cast<std::size_t>(c)] / per_host);
  };
  std::vector<std::size_t> hosts;
  for (std::int64_t c = 0; c < chunks; ++c) {
    hosts.push_back(host_of(c));
    of_host[hosts.back()].push_back(c);
  }
  Search search(problem, std::move(owners));
  Draws draws(seed);
  const std::int64_t tries = std::min(problem.swaps, kMostWork / (chunks * std::ssize(problem.masks)));
  for (std::int64_t i = 0; i < tries; ++i) {
    const std::int64_t one = draws.below(chunks);
    const std::vector<std::int64_t>& near = of_host[hosts[static_cast<std::size_t>(one)]];
    search.try_swap(one, near[static_cast<std::size_t>(draws.below(std::ssize(near)))]);
  }
  return search.take();
}

}  // namespace heddle::mask
