#include "mask/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "heddle/error.h"

namespace heddle::mask {
namespace {

constexpr std::size_t kFirstSlots = 16;

std::uint64_t hash_of(std::span<const Run> row) {
  std::uint64_t hash = row.size();
  for (const Run& run : row) {
    const std::uint64_t ends = static_cast<std::uint64_t>(run.begin) << 32 | static_cast<std::uint32_t>(run.end);
    hash = base::hash_combine(hash, ends * 2 + (run.kind == RunKind::full ? 1 : 0));
  }
  return hash;
}

}  // namespace

std::span<const Run> RowStore::stored(std::int32_t index) const {
  const auto at = static_cast<std::size_t>(index);
  return std::span(runs_).subspan(static_cast<std::size_t>(offset_[at]),
                                  static_cast<std::size_t>(offset_[at + 1] - offset_[at]));
}

/// Where the row stands, or the free slot in which it belongs.
std::size_t RowStore::slot_of(std::span<const Run> row, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    if (hashes_[static_cast<std::size_t>(slots_[slot])] == hash && std::ranges::equal(stored(slots_[slot]), row)) break;
  }
  return slot;
}

void RowStore::grow() {
  slots_.assign(std::max(kFirstSlots, 2 * slots_.size()), -1);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    std::size_t slot = hashes_[i] & mask;
    while (slots_[slot] >= 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<std::int32_t>(i);
  }
}

void RowStore::add(std::span<const Run> row) {
  if (2 * hashes_.size() >= slots_.size()) grow();
  const std::uint64_t hash = hash_of(row);
  const std::size_t slot = slot_of(row, hash);
  if (slots_[slot] < 0) {
    if (hashes_.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
      throw Error(ErrorCode::unsupported, fmt::format("the block mask has more than {} different rows; blocks of more "
                                                      "queries make fewer",
                                                      std::numeric_limits<std::int32_t>::max()));
    }
    slots_[slot] = static_cast<std::int32_t>(hashes_.size());
    hashes_.push_back(hash);
    runs_.insert(runs_.end(), row.begin(), row.end());
    offset_.push_back(std::ssize(runs_));
  }
  index_.push_back(slots_[slot]);
}

void RowStore::move_to(BlockMaskAccess::State& state) {
  runs_.shrink_to_fit();
  offset_.shrink_to_fit();
  index_.shrink_to_fit();
  state.row_index = std::move(index_);
  state.run_offset = std::move(offset_);
  state.runs = std::move(runs_);
  *this = {};
}

}  // namespace heddle::mask
