// The rows of a chunk by their addresses, so that pages and strides cost the products nothing, and how they are fetched
// ahead of them.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_ROW_ADDRESSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_ROW_ADDRESSES_INL_H_
#undef HEDDLE_CPU_ROW_ADDRESSES_INL_H_
#else
#define HEDDLE_CPU_ROW_ADDRESSES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "families/cpu/stored_rows-inl.h"
#include "families/cpu/target_data.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

inline constexpr std::int64_t kLineBytes = 64;

/// Where the rows of a chunk start, one a score column. Columns past the last key repeat its row.
struct RowAddresses {
  const std::byte* row[plan::kChunk];
  std::int64_t bytes;  // of a row

  template <class Storage>
  const Storage* at(std::int64_t column) const {
    return reinterpret_cast<const Storage*>(row[column]);
  }
};

/// Rows that are fetched while others are computed on, line after line, since in any other order the hardware's own
/// prefetching does not join in: those of a phase, and then those of the next.
class Ahead {
 public:
  Ahead(const RowAddresses& rows, std::int64_t columns, bool near) : near_(near) { begin(rows, columns); }
  Ahead() = default;

  /// True: a short way ahead, into L1. A line that waits in L2 takes a second of the few entries for misses, which
  /// limit what a core reads of memory: where every line is read once, that costs half the speed. False: a phase ahead,
  /// to L2.
  bool near() const { return near_; }
  /// Lines of the phase's rows that are still to be fetched.
  std::int64_t lines() const { return left_ == 0 ? 0 : (columns_ - column_ - 1) * row_lines_ + left_; }

  /// The rows of the next phase: they come after those of this one, or are fetched in this one.
  void then(const RowAddresses& rows, std::int64_t columns) {
    next_ = &rows;
    next_columns_ = columns;
    if (!near_) begin(rows, columns);
  }
  /// A phase begins that reads these rows.
  void enter(const RowAddresses& rows, std::int64_t columns) {
    if (near_ && rows_ != &rows) begin(rows, columns);
  }
  HWY_INLINE void fetch(std::int64_t count) {
    for (; count > 0 && left_ > 0; --count) {
      near_ ? __builtin_prefetch(line_, 0, 3) : __builtin_prefetch(line_, 0, 2);
      line_ += kLineBytes;
      if (--left_ == 0) next_row();
    }
  }

 private:
  void begin(const RowAddresses& rows, std::int64_t columns) {
    rows_ = &rows;
    row_lines_ = (rows.bytes + kLineBytes - 1) / kLineBytes;
    columns_ = columns;
    column_ = -1;
    next_ = nullptr;
    next_row();
  }
  void next_row() {
    if (++column_ < columns_) {
      line_ = rows_->row[column_];
      left_ = row_lines_;
    } else if (next_ != nullptr) {
      begin(*next_, next_columns_);
    } else {
      left_ = 0;
    }
  }

  const std::byte* line_ = nullptr;
  std::int64_t left_ = 0;  // lines of the row; 0: nothing is left
  const RowAddresses* rows_ = nullptr;
  const RowAddresses* next_ = nullptr;
  std::int64_t column_ = 0, columns_ = 0, next_columns_ = 0, row_lines_ = 0;
  bool near_ = false;
};

/// Sets *lost when rows [first, last) hold a NaN that LoadPair() does not keep.
template <class Storage>
void FindLostNan(const RowAddresses& rows, std::int64_t first, std::int64_t last, bool* lost) {
  if constexpr (kThroughF16<Storage> && std::is_same_v<Storage, e4m3>) {
    *lost = HasNan([&](std::int64_t i) { return rows.at<e4m3>(i); }, first, last, rows.bytes) || *lost;
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
