// Jobs of known cost that workers draw one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace heddle::plan {

struct Deal {
  std::vector<std::uint16_t> workers;  // of each job
  std::vector<std::int64_t> loads;     // of each worker
};

/// Deals the jobs, in this order, to workers of one speed: each job goes to the worker that is done first, the first of
/// equals. `workers` is 1 to 65536; costs are at least 0.
Deal deal(std::span<const std::int64_t> costs, int workers);

}  // namespace heddle::plan
