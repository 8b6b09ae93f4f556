// Lets an allocation of this process fail. Without a sanitizer it replaces malloc, and with it what libraries allocate;
// with one, which has a malloc of its own, it replaces operator new.
#pragma once

#include <cstdint>

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

}  // namespace heddle::test
