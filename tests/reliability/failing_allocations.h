// Lets an allocation of this process fail. Without a sanitizer it replaces malloc, and with it what libraries allocate;
// with one, which has a malloc of its own, it replaces operator new.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sample.h"

namespace heddle::test {

/// While it lives, allocation number `at` of the process fails, counted from 0 over all threads; with kAndAllAfter, all
/// later ones fail, too.
class FailingAllocation {
 public:
  enum Which : std::uint8_t { kOne, kAndAllAfter };
  FailingAllocation(std::int64_t at, Which which);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  /// Whether that allocation was asked for.
  static bool met();
};

/// Blocks that are allocated now.
std::int64_t live_blocks();

/// The allocation to fail behind number `at`: `step` further, and later ever further, since calls of some draws
/// allocate a million times.
inline std::int64_t allocation_behind(std::int64_t at, std::int64_t step) {
  return at + std::max(step, at / (takes_all() ? 256 : 16));
}

}  // namespace heddle::test
