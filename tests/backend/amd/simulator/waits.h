// The counters of what a wave has issued and not yet got: which registers wait for it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>

#include "backend/amd/simulator/instruction.h"

namespace heddle::amd::simulator {

/// The counters of all generations; a generation has some of them.
/// - gfx9: loads (vmcnt: loads, stores, atomics) and lds (lgkmcnt: LDS, scalar loads, messages)
/// - gfx11: loads (vmcnt), stores (vscnt), lds (lgkmcnt, as on gfx9)
/// - gfx12: loads, stores, lds (dscnt: LDS alone), scalar (kmcnt: scalar loads)
enum class Counter : std::uint8_t { kLoads, kStores, kLds, kScalar, kCount };

/// Values arrive in the simulator when they are asked for, so that a use before the wait cannot go wrong by chance: it
/// is found by the register's mark instead.
class Waits {
 public:
  void reset();

  /// \param in_order operations of this kind come back in the order in which they were issued
  /// \returns the operation's number, larger than all before
  std::uint32_t issue(Counter counter, bool in_order, std::span<const RegisterRange> filled);
  /// s_waitcnt: at most `left` operations of the counter may still be out.
  void wait(Counter counter, std::uint32_t left);

  /// Is any register waited for?
  bool any() const { return marked_ != 0; }
  /// The first register of the range that an operation may still fill, or -1. An operation that comes back in order
  /// after the outstanding ones of `same` may overwrite what they fill.
  int pending(const RegisterRange& range) const;
  int pending_beside(const RegisterRange& range, Counter same) const;

  /// Is the operation still out?
  bool is_out(Counter counter, std::uint32_t number) const;
  std::size_t out(Counter counter) const { return queues_[static_cast<std::size_t>(counter)].size(); }

 private:
  struct Operation {
    std::uint32_t number = 0;
    bool in_order = true;
    std::uint8_t filled_count = 0;
    std::array<RegisterRange, 2> filled{};
  };
  struct Mark {
    std::uint32_t number = 0;
    Counter counter = Counter::kLoads;
    bool in_order = true;
  };
  void release(const Operation& operation);

  std::array<std::deque<Operation>, static_cast<std::size_t>(Counter::kCount)> queues_;
  std::array<Mark, kVectorRegisters + kScalarRegisters> marks_{};
  std::uint32_t next_ = 1;
  int marked_ = 0;
};

}  // namespace heddle::amd::simulator
