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
/// Vectors of 64 bytes, and 32 registers of them.
inline constexpr bool kWideRegisters = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;
/// How far ahead near lines are fetched. With AVX-512 they go to L2 first, where more misses are under way at a time
/// than in L1, and RowAddresses::approach() brings them on. Elsewhere a line that waits in L2 takes a second of the few
/// entries for misses, so lines go to L1 at once.
inline constexpr std::int64_t kAheadLines = kWideRegisters ? 256 : 128;

/// Where the rows of a chunk start, one a score column. Columns past the last key repeat its row.
struct RowAddresses {
  const std::byte* row[plan::kChunk];
  std::int64_t bytes;  // of a row

  template <class Storage>
  const Storage* at(std::int64_t column) const {
    return reinterpret_cast<const Storage*>(row[column]);
  }
  /// Fetches `lines` lines of kRows rows, from byte `first` of each on, from L2 into L1. Columns past the chunk begin
  /// anew: what they fetch is there already.
  template <int kRows>
  HWY_INLINE void approach(std::int64_t column, std::int64_t first, std::int64_t lines) const {
    if constexpr (!kWideRegisters) return;
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t line = 0; line < lines; ++line) {
        __builtin_prefetch(row[(column + i) % plan::kChunk] + first + line * kLineBytes, 0, 3);
      }
    }
  }
};

/// Rows that are fetched while others are computed on, line after line, since in any other order the hardware's own
/// prefetching does not join in: those of a phase, and then those of the next.
class Ahead {
 public:
  Ahead(const RowAddresses& rows, std::int64_t columns, bool near) : near_(near) { begin(rows, columns); }
  Ahead() = default;

  /// True: a short way ahead, kAheadLines. False: a phase ahead, to L2.
  bool near() const { return near_; }
  /// Lines of the phase's rows that are still to be fetched.
  std::int64_t lines() const { return left_ == 0 ? 0 : (columns_ - column_ - 1) * row_lines_ + left_; }

  /// The rows of the next phase: they come after those of this one, or are fetched in this one. A phase whose rows have
  /// all been fetched is over.
  void then(const RowAddresses& rows, std::int64_t columns) {
    next_ = &rows;
    next_columns_ = columns;
    if (!near_ || left_ == 0) begin(rows, columns);
  }
  /// A phase begins that reads these rows.
  void enter(const RowAddresses& rows, std::int64_t columns) {
    if (near_ && rows_ != &rows) begin(rows, columns);
  }
  HWY_INLINE void fetch(std::int64_t count) {
    for (; count > 0 && left_ > 0; --count) {
      near_ && !kWideRegisters ? __builtin_prefetch(line_, 0, 3) : __builtin_prefetch(line_, 0, 2);
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

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
