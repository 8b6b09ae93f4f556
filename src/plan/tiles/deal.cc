#include "plan/tiles/deal.h"

#include <cstddef>

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
  return result;
}

}  // namespace heddle::plan
