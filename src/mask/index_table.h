// Finds which of many stored things equals a new one, by a hash of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::mask {

class IndexTable {
 public:
  /// The index of the thing with this hash for which is_equal(index) is true; else size() as it was, under which the
  /// thing is known from now on.
  template <class F>
  std::int32_t find_or_add(std::uint64_t hash, F&& is_equal) {
    if (2 * hashes_.size() >= slots_.size()) grow();
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = hash & mask;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
      if (hashes_[static_cast<std::size_t>(slots_[slot])] == hash && is_equal(slots_[slot])) return slots_[slot];
    }
    slots_[slot] = static_cast<std::int32_t>(hashes_.size());
    hashes_.push_back(hash);
    return slots_[slot];
  }
  std::int64_t size() const { return std::ssize(hashes_); }

 private:
  static constexpr std::size_t kFirstSlots = 16;

  void grow() {
    slots_.assign(std::max(kFirstSlots, 2 * slots_.size()), -1);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
      std::size_t slot = hashes_[i] & mask;
      while (slots_[slot] >= 0) slot = (slot + 1) & mask;
      slots_[slot] = static_cast<std::int32_t>(i);
    }
  }

  std::vector<std::uint64_t> hashes_;  // by index
  std::vector<std::int32_t> slots_;    // indices by hash, at most half full; -1: free
};

}  // namespace heddle::mask
