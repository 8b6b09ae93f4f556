// Rows that stand in two places: their first columns in one tensor, the ones behind them in another. Both are addressed
// by the same columns, so that the code that reads a row does not see the cut.
#pragma once

namespace heddle::portable {

/// A row whose bytes below kFirst stand from `first` on; byte b behind them is at `rest` + b.
template <int kFirst>
struct SplitRow {
  const char *first, *rest;

  __device__ __forceinline__ friend bool operator==(const SplitRow& row, decltype(nullptr)) {
    return row.first == nullptr;
  }
};

/// Where byte `at` of a row is. A read from there on does not cross the cut if its size divides kFirst and `at`.
__device__ __forceinline__ const char* byte_of(const char* row, int at) { return row + at; }
template <int kFirst>
__device__ __forceinline__ const char* byte_of(const SplitRow<kFirst>& row, int at) {
  return (at < kFirst ? row.first : row.rest) + at;
}

/// Where byte `at` is if it is there, else any byte of the row. (Choosing between addresses instead of distances takes
/// fewer registers.)
__device__ __forceinline__ const char* byte_of_if(bool there, const char* row, int at) {
  return there ? row + at : row;
}
template <int kFirst>
__device__ __forceinline__ const char* byte_of_if(bool there, const SplitRow<kFirst>& row, int at) {
  return byte_of(row, there ? at : 0);
}

/// The row without its first bytes, for offsets that are multiples of a divisor of kFirst.
__device__ __forceinline__ const char* behind(const char* row, int bytes) { return row + bytes; }
template <int kFirst>
__device__ __forceinline__ SplitRow<kFirst> behind(const SplitRow<kFirst>& row, int bytes) {
  return {row.first + bytes, row.rest + bytes};
}

/// Where a row is whose first kFirst bytes stand apart; 0: none do.
template <int kFirst>
struct RowPlace {
  using Type = SplitRow<kFirst>;
};
template <>
struct RowPlace<0> {
  using Type = const char*;
};

/// Elements from a row to the next one, in both places.
struct RowStrides {
  long long first, rest;
};

/// Rows of two tensors of keys: a source (tile.cuh) of the first kFirst bytes of each, and one of the others.
template <int kFirst, class Source>
class SplitSource {
 public:
  static constexpr bool kLinear = Source::kLinear;
  __device__ __forceinline__ SplitSource(const Source& first, const Source& rest) : first_(first), rest_(rest) {}

  __device__ __forceinline__ SplitRow<kFirst> row(int j) const { return joined(first_.row(j), rest_.row(j)); }
  __device__ __forceinline__ SplitRow<kFirst> row(int j, int page) const {
    return joined(first_.row(j, page), rest_.row(j, page));
  }
  __device__ __forceinline__ SplitRow<kFirst> below(const SplitRow<kFirst>& row, int rows) const {
    return {first_.below(row.first, rows), rest_.below(row.rest, rows)};
  }
  __device__ __forceinline__ RowStrides strides() const { return {first_.stride(), rest_.stride()}; }
  __device__ __forceinline__ int page_of(int j) const { return first_.page_of(j); }
  __device__ __forceinline__ auto in_page(int j, int page) const {
    using InPage = typename Source::InPageByReference;
    return SplitSource<kFirst, InPage>(first_.in_page_by_reference(j, page), rest_.in_page_by_reference(j, page));
  }

 private:
  __device__ __forceinline__ static SplitRow<kFirst> joined(const char* first, const char* rest) {
    return {first, rest - kFirst};
  }

  Source first_, rest_;
};

}  // namespace heddle::portable
