#include "plan/deal.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace heddle::plan {
namespace {

/// A heap of the workers by load, then by number. Each entry is one word: load, number. A last entry above all others
/// gives every node two children, so that the smaller is picked without a branch, which nothing could predict.
class LeastLoaded {
 public:
  explicit LeastLoaded(int workers) : workers_(static_cast<std::size_t>(workers)) {
    for (int worker = 0; worker < workers; ++worker) heap_.push_back(static_cast<std::uint64_t>(worker));
    heap_.push_back(~std::uint64_t{0});
  }

  /// Adds to the least loaded worker and returns its number.
  std::uint16_t add(std::int64_t cost) {
    const std::uint64_t top = heap_[0] + (static_cast<std::uint64_t>(cost) << kNumberBits);
    std::size_t at = 0;
    for (std::size_t child = 1; child < workers_; child = 2 * at + 1) {
      child += heap_[child + 1] < heap_[child] ? 1 : 0;
      if (top < heap_[child]) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = top;
    return static_cast<std::uint16_t>(top);
  }

 private:
  static constexpr int kNumberBits = 16;
  std::size_t workers_;
  std::vector<std::uint64_t> heap_;
};

/// Lets the most loaded worker give a job to one of the least loaded, or exchange it for a shorter one.
class Exchange {
 public:
  Exchange(std::span<const std::int64_t> costs, Deal& deal) : costs_(costs), deal_(deal), late_(deal.loads.size()) {
    std::size_t open = late_.size();
    for (std::size_t job = costs.size(); job-- > 0 && open > 0;) {
      std::vector<std::size_t>& jobs = late_[deal.workers[job]];
      if (jobs.size() == kLateJobs) continue;
      jobs.push_back(job);
      if (jobs.size() == kLateJobs) --open;
    }
    by_load_.resize(late_.size());
    std::iota(by_load_.begin(), by_load_.end(), std::size_t{0});
  }

  void run() {
    const std::int64_t total = std::accumulate(deal_.loads.begin(), deal_.loads.end(), std::int64_t{0});
    const auto enough =
        static_cast<std::int64_t>(kEven * static_cast<double>(total) / static_cast<double>(late_.size()));
    for (std::size_t round = 0; round < 2 * late_.size(); ++round) {
      const auto longest = static_cast<std::size_t>(std::ranges::max_element(deal_.loads) - deal_.loads.begin());
      if (deal_.loads[longest] <= enough || !relieve(longest)) return;
    }
  }

 private:
  // Only the last jobs of each change hands: the rest keep the order that their sections ask for, and the search is
  // short.
  static constexpr std::size_t kLateJobs = 24, kPartners = 8;
  static constexpr double kEven = 1.002;

  bool relieve(std::size_t longest) {
    const auto load = [&](std::size_t worker) { return std::pair(deal_.loads[worker], worker); };
    const std::size_t partners = std::min(kPartners, by_load_.size());
    std::ranges::partial_sort(by_load_, by_load_.begin() + static_cast<std::ptrdiff_t>(partners), {}, load);
    return std::any_of(by_load_.begin(), by_load_.begin() + static_cast<std::ptrdiff_t>(partners),
                       [&](std::size_t partner) { return exchange(longest, partner); });
  }

  // What leaves the two loads closest to each other; false when nothing brings them closer.
  bool exchange(std::size_t from, std::size_t to) {
    const std::int64_t gap = deal_.loads[from] - deal_.loads[to];
    std::int64_t left = gap;  // of the gap, after the best exchange so far
    std::size_t given = 0, taken = 0;
    const std::size_t nothing = late_[to].size();
    for (std::size_t i = 0; i < late_[from].size(); ++i) {
      for (std::size_t j = 0; j <= nothing; ++j) {
        const std::int64_t moved = costs_[late_[from][i]] - (j == nothing ? 0 : costs_[late_[to][j]]);
        if (std::abs(gap - 2 * moved) >= left) continue;
        left = std::abs(gap - 2 * moved);
        given = i;
        taken = j;
      }
    }
    if (left == gap) return false;
    const std::size_t job = late_[from][given];
    hand(job, from, to);
    if (taken == nothing) {
      late_[from].erase(late_[from].begin() + static_cast<std::ptrdiff_t>(given));
      late_[to].push_back(job);
    } else {
      hand(late_[to][taken], to, from);
      std::swap(late_[from][given], late_[to][taken]);
    }
    return true;
  }

  void hand(std::size_t job, std::size_t from, std::size_t to) {
    deal_.workers[job] = static_cast<std::uint16_t>(to);
    deal_.loads[from] -= costs_[job];
    deal_.loads[to] += costs_[job];
  }

  std::span<const std::int64_t> costs_;
  Deal& deal_;
  std::vector<std::vector<std::size_t>> late_;  // of each worker: its last jobs
  std::vector<std::size_t> by_load_;
};

}  // namespace

Deal deal(std::span<const std::int64_t> costs, int workers) {
  Deal result;
  result.workers.reserve(costs.size());
  result.loads.assign(static_cast<std::size_t>(workers), 0);
  LeastLoaded least(workers);
  for (const std::int64_t cost : costs) {
    result.workers.push_back(least.add(cost));
    result.loads[result.workers.back()] += cost;
  }
  Exchange(costs, result).run();
  return result;
}

}  // namespace heddle::plan
