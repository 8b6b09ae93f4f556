// Jobs of known cost dealt to workers of one speed, so that the last is done as early as can be.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace heddle::plan {

struct Deal {
  std::vector<std::uint16_t> workers;  // of each job
  std::vector<std::int64_t> loads;     // of each worker
};

/// Each job, in this order, goes to the worker with the least to do, the first of equals; with the longest jobs first,
/// or in sections that each begin with theirs, that is nearly even. Then late jobs change hands while the longest load
/// shrinks, which evens out what short sections leave. `workers` is 1 to 65536; costs are at least 0.
Deal deal(std::span<const std::int64_t> costs, int workers);

}  // namespace heddle::plan
