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

#include <algorithm>
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

/// Whether the processor fetches rows that stand together by itself, but for the beginning of a page of memory: then
/// fetching each line costs a tenth of the time of few rows (docs/notes/cpu_decode.md). Measured on Intel's with
/// AVX-512; by AVX2 it is slower there.
inline bool FetchesByItself() {
#if HWY_ARCH_X86
  return kWideRegisters && __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

/// Whether products of kRows rows with such keys or values may fetch by pages: memory limits the speed of these alone.
template <class Storage, int kRows>
inline constexpr bool kByPages = kWideRegisters && 2 * kRows <= static_cast<int>(sizeof(Storage));

/// Fetches kLines lines `bytes` behind `from`, from L2 into L1.
template <std::int64_t kLines>
HWY_INLINE void Approach(const void* from, std::int64_t bytes) {
  if constexpr (!kWideRegisters) return;
  HWY_UNROLL(8)
  for (std::int64_t line = 0; line < kLines; ++line) {
    __builtin_prefetch(static_cast<const std::byte*>(from) + bytes + line * kLineBytes, 0, 3);
  }
}

/// Where the rows of a chunk start, one a score column. Columns past the last key repeat its row.
struct RowAddresses {
  const std::byte* row[plan::kChunk];
  std::int64_t bytes;     // of a row
  bool together = false;  // each row begins where the one before it ends

  template <class Storage>
  const Storage* at(std::int64_t column) const {
    return reinterpret_cast<const Storage*>(row[column]);
  }
  /// Fetches kLines lines of kRows rows, from byte `first` of each on, from L2 into L1. kRows divides `column`. Columns
  /// past the chunk begin anew: what they fetch is there already.
  template <int kRows, std::int64_t kLines>
  HWY_INLINE void approach(std::int64_t column, std::int64_t first) const {
    if constexpr (!kWideRegisters) return;
    static_assert(plan::kChunk % kRows == 0);
    const std::byte* const* from = row + static_cast<std::uint64_t>(column) % plan::kChunk;
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(8)
      for (std::int64_t line = 0; line < kLines; ++line) __builtin_prefetch(from[i] + first + line * kLineBytes, 0, 3);
    }
  }
};

/// Addresses of rows `step` bytes apart, from `row` on.
inline void FillAddresses(const std::byte* row, std::int64_t step, std::int64_t count, const std::byte** to) {
  static_assert(sizeof(row) == sizeof(std::uint64_t));
  const hn::ScalableTag<std::uint64_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i < std::min(lanes, count); ++i, row += step) to[i] = row;
  if (i < lanes) return;
  auto addresses = hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(to));
  const auto next = hn::Set(d, static_cast<std::uint64_t>(lanes * step));
  for (; i + lanes <= count; i += lanes) {
    addresses = hn::Add(addresses, next);
    hn::StoreU(addresses, d, reinterpret_cast<std::uint64_t*>(to + i));
  }
  for (row = to[i - 1]; i < count; ++i) to[i] = row += step;
}

/// Addresses of keys from `first` on; the last of `count` serves the columns behind it, as far as products and
/// RowAddresses::approach() reach.
inline void FindRows(const ConstRows& rows, std::int64_t dim, std::int64_t first, std::int64_t count,
                     RowAddresses& to) {
  const std::int64_t size = size_of(rows.dtype), step = rows.stride * size;
  const auto* data = static_cast<const std::byte*>(rows.data);
  to.bytes = dim * size;
  to.together = rows.pages.table == nullptr && step == to.bytes;
  for (std::int64_t i = 0; i < count;) {
    std::int64_t here = count - i;  // rows up to the page's end
    if (rows.pages.table != nullptr) {
      here = std::min(here, rows.pages.rows - (first + i) % rows.pages.rows);
    }
    FillAddresses(data + rows.offset(first + i) * size, step, here, to.row + i);
    i += here;
  }
  const std::int64_t end = std::min(plan::round_up(count, kColumnUnit) + kColumnUnit, plan::kChunk);
  std::fill(to.row + count, to.row + end, to.row[count - 1]);
}

/// Which lines are fetched of rows that stand together: all of them, or the first ones of each page of memory; and then
/// none of rows that stand apart.
enum class Fetches { lines, pages, pages_alone };

/// Rows that are fetched while others are computed on, line after line, since in any other order the hardware's own
/// prefetching does not join in: those of a phase, and then those of the next.
class Ahead {
 public:
  Ahead(const RowAddresses& rows, std::int64_t columns, bool near, Fetches fetches) : near_(near), fetches_(fetches) {
    begin(rows, columns);
  }
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
  /// kMayStep: by pages, if so the rows are fetched. Code that never does so is much smaller.
  template <bool kMayStep = false>
  HWY_INLINE void fetch_lines(std::int64_t count) {
    if constexpr (kMayStep) {
      if (in_pages_) return fetch_pages(count);
    }
    while (count > 0 && left_ > 0) {
      const std::int64_t now = std::min(count, left_);
      for (std::int64_t i = 0; i < now; ++i) fetch_line(line_ + i * kLineBytes);
      line_ += now * kLineBytes;
      left_ -= now;
      count -= now;
      if (left_ == 0) next_row();
    }
  }
  /// fetch_lines(kCount) for rows of that many lines or of half as many, without asking for each line whether its row
  /// ends.
  template <std::int64_t kCount, bool kMayStep = false>
  HWY_INLINE void fetch() {
    constexpr std::int64_t kHalf = kCount / 2;
    if constexpr (kMayStep) {
      if (in_pages_) return fetch_pages(kCount);
    }
    if (left_ >= kCount) return fetch_of_row<kCount>();
    if constexpr (kCount % 2 == 0) {
      HWY_UNROLL(2)
      for (int half = 0; half < 2; ++half) left_ >= kHalf ? fetch_of_row<kHalf>() : fetch_lines(kHalf);
    } else {
      fetch_lines(kCount);
    }
  }

 private:
  HWY_INLINE void fetch_line(const std::byte* line) const {
    near_ && !kWideRegisters ? __builtin_prefetch(line, 0, 3) : __builtin_prefetch(line, 0, 2);
  }
  /// Steps over `count` lines of rows that stand together.
  HWY_INLINE void fetch_pages(std::int64_t count) {
    if (left_ == 0) return;
    constexpr std::uintptr_t kPage = 4096;
    const std::byte* end = line_ + count * kLineBytes;
    const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(end) / kPage * kPage;
    if (reinterpret_cast<std::uintptr_t>(line_) < page) {
      for (std::int64_t i = 0; i < 4; ++i) fetch_line(reinterpret_cast<const std::byte*>(page) + i * kLineBytes);
    }
    line_ = end;
    left_ = std::max<std::int64_t>(left_ - count, 0);
    if (left_ == 0) next_row();
  }
  /// Lines that the row has.
  template <std::int64_t kCount>
  HWY_INLINE void fetch_of_row() {
    HWY_UNROLL(8)
    for (std::int64_t i = 0; i < kCount; ++i) fetch_line(line_ + i * kLineBytes);
    line_ += kCount * kLineBytes;
    left_ -= kCount;
    if (left_ == 0) next_row();
  }
  void begin(const RowAddresses& rows, std::int64_t columns) {
    rows_ = &rows;
    in_pages_ = fetches_ != Fetches::lines && rows.together;
    columns_ = rows.together                      ? std::min<std::int64_t>(columns, 1)  // they are as one
               : fetches_ == Fetches::pages_alone ? 0
                                                  : columns;
    row_lines_ = ((rows.together ? columns : 1) * rows.bytes + kLineBytes - 1) / kLineBytes;
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
  bool near_ = false, in_pages_ = false;
  Fetches fetches_ = Fetches::lines;
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
