#include "context/route.h"

#include <algorithm>
#include <numeric>

#include "context/positions.h"

namespace heddle::context {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Tensor list_of(const std::vector<std::int64_t>& numbers, const Device& device) {
  Tensor list = Tensor::empty(DType::i32, {std::ssize(numbers)});
  std::ranges::transform(numbers, static_cast<std::int32_t*>(list.data()),
                         [](std::int64_t number) { return static_cast<std::int32_t>(number); });
  return device.kind == DeviceKind::cpu ? list : list.to(device);
}

/// How many own rows stand before the received ones: so that all ascend, if one gap between own rows has all others.
/// Else none, because kernels of biases that grow with the key walk keys from the last one, and want those near the
/// diagonal first. All, if received rows would cut a granule.
std::int64_t own_before(const std::vector<std::int64_t>& own, const std::vector<std::int64_t>& others) {
  if (others.empty()) return std::ssize(own);
  const auto gap = std::ranges::lower_bound(own, others.front());
  if (std::ranges::is_sorted(others) && (gap == own.end() || *gap > others.back())) return gap - own.begin();
  return std::ssize(others) % kGranule == 0 ? 0 : std::ssize(own);
}

}  // namespace

std::int64_t Step::received_rows() const { return sum(received); }
std::int64_t Step::sent_rows() const { return sum(sent); }

Route::Route(const ExchangePlan& plan, const Partition& keys, std::int64_t rank, const Device& device)
    : own(keys.rows(rank)), received(plan.rows(rank)), crossed(plan.crossing_rows(rank)) {
  positions = keys.positions(rank);
  const std::vector<std::int64_t> others = plan.received_positions(rank);
  before = own_before(positions, others);
  positions.insert(positions.begin() + before, others.begin(), others.end());
  const auto in_memory = [&](std::vector<std::int64_t> numbers) {
    for (std::int64_t& number : numbers) number += number >= before ? received : 0;
    return list_of(numbers, device);
  };
  near.leaving = in_memory(plan.sent_rows(rank, keys));
  if (plan.crossing.empty()) {
    near.leaving_own = list_of(plan.sent_rows(rank, keys), device);
  } else {
    crossing.leaving = in_memory(plan.crossing_sent_rows(rank, keys));
  }
  for (std::int64_t other = 0; other < plan.ranks(); ++other) {
    near.received.push_back(plan.rows(rank, other));
    near.sent.push_back(plan.rows(other, rank));
    if (plan.crossing.empty()) continue;
    crossing.received.push_back(plan.crossing_rows(rank, other));
    crossing.sent.push_back(plan.crossing_rows(other, rank));
  }
}

}  // namespace heddle::context
