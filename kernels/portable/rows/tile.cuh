// A CTA's tile: where its queries and keys are, and which row is which query of which head.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "backend/portable/shared/prefix_table.h"
#include "portable/fragments/split_rows.cuh"
#include "shared/mod_values.h"
#include "shared/paging.h"
#include "shared/strided.h"

namespace heddle::portable {

/// A tile of keys that several sequences share, whose rows it has: of `prefix_sequences` that stand beside each other,
/// those of which `near` says that they share keys with the first one. Or a tile of one sequence.
template <bool kPrefixed>
struct SequencesOfTile {};
template <>
struct SequencesOfTile<true> {
  const shared::PrefixTable* near;
  bool is_shared;
};

template <auto kConfig>
struct Tile : SequencesOfTile<kConfig.prefixed()> {
  int batch, head, kv_head;                       // the first query head
  int heads;                                      // packed: that there are; else 1
  int q_first;                                    // its first query
  int q_begin, q_len, q_start, kv_begin, kv_len;  // of the sequence
  int first_entry = 0;                            // of its pages, where a list has them

  /// `group`: query heads that read one head of keys. `mod`: lengths of all sequences, where they do not differ.
  __device__ __forceinline__ Tile(int batch, int head, int kv_head, int q_first, int group,
                                  const shared::ModValues& mod)
      : batch(batch),
        head(head),
        kv_head(kv_head),
        heads(1),
        q_first(q_first),
        q_begin(0),
        q_len(mod.q_len),
        q_start(mod.q_start),
        kv_begin(0),
        kv_len(mod.kv_len) {
    if constexpr (kConfig.packs()) {
      const int left = (kv_head + 1) * group - head;
      heads = left < kConfig.packed_heads ? left : kConfig.packed_heads;
    }
  }
  __device__ __forceinline__ void stand_at(const shared::SequenceSpan& span) {
    q_begin = span.q_begin;
    q_len = span.q_len;
    q_start = span.q_start;
    kv_begin = kConfig.page_rows > 0 ? 0 : span.kv_begin;
    kv_len = span.kv_len;
  }

  /// The head of a row of the tile. A row without a head counts as the last head's.
  __device__ __forceinline__ int head_of(int row) const {
    if constexpr (!kConfig.packs()) return head;
    const int own = row % kConfig.packed_heads;
    return head + (own < heads ? own : heads - 1);
  }
  __device__ __forceinline__ int query_of(int row) const {
    if constexpr (kConfig.prefixed()) row %= kConfig.own_rows();
    return q_first + row / kConfig.packed_heads;
  }
  __device__ __forceinline__ int q_idx_of(int row) const { return q_start_of(row) + query_of(row); }
  __device__ __forceinline__ bool has(int row) const {
    if constexpr (kConfig.prefixed()) {
      if (!has_sequence(row)) return false;
    }
    return query_of(row) < q_len_of(row) && (!kConfig.packs() || row % kConfig.packed_heads < heads);
  }
  /// prefixed: the row is one of a sequence whose keys the tile has.
  __device__ __forceinline__ bool has_sequence(int row) const {
    return this->is_shared ? batch_of(row) == batch_at(row) : row < kConfig.own_rows();
  }
  /// The sequence of a row. A row without a head counts as the first row's.
  __device__ __forceinline__ int batch_of(int row) const {
    if constexpr (kConfig.prefixed()) return is_row_of_another(row) ? batch_at(row) : batch;
    return batch;
  }
  // Numbers of the row's sequence.
  __device__ __forceinline__ int q_begin_of(int row) const {
    if constexpr (kConfig.prefixed()) return is_row_of_another(row) ? span_at(row).q_begin : q_begin;
    return q_begin;
  }
  __device__ __forceinline__ int q_len_of(int row) const {
    if constexpr (kConfig.prefixed()) return is_row_of_another(row) ? span_at(row).q_len : q_len;
    return q_len;
  }
  __device__ __forceinline__ int q_start_of(int row) const {
    if constexpr (kConfig.prefixed()) return is_row_of_another(row) ? span_at(row).q_start : q_start;
    return q_start;
  }
  /// Where a row's query is; null: there is none. `params`: a ForwardParams.
  template <class Params>
  __device__ __forceinline__ auto query_row(const Params& params, int row) const {
    if constexpr (kConfig.q_first == 0) {
      return row_in(params.q, row);
    } else {
      constexpr int kFirst = kConfig.q_first_bytes();
      const char* const first = row_in(params.q, row);
      return SplitRow<kFirst>{first, first == nullptr ? nullptr : row_in(params.q_rest, row) - kFirst};
    }
  }

 private:
  /// Where a row's query is in that tensor; null: there is none.
  __device__ __forceinline__ const char* row_in(const shared::RowsOfTensor& q, int row) const {
    if (!has(row)) return nullptr;
    const long long at =
        batch_of(row) * q.stride[0] + head_of(row) * q.stride[1] + (q_begin_of(row) + query_of(row)) * q.stride[2];
    return static_cast<const char*>(q.data) + at * kConfig.q_element_bytes();
  }
  // prefixed: the sequence whose place the row has, whether or not it shares the keys.
  __device__ __forceinline__ int batch_at(int row) const {
    if constexpr (!kConfig.prefixed()) return batch;
    return batch / kConfig.prefix_sequences * kConfig.prefix_sequences + row / kConfig.own_rows();
  }
  /// Another sequence than the tile's first one shares the keys, and has the row.
  __device__ __forceinline__ bool is_row_of_another(int row) const {
    const int b = batch_at(row);
    return this->is_shared && b != batch && this->near->first[b % shared::kNearSequences] == batch;
  }
  __device__ __forceinline__ const shared::SequenceSpan& span_at(int row) const {
    return this->near->spans[batch_at(row) % shared::kNearSequences];
  }
};

/// Rows of a tensor of keys or values, of one head: where row j of a sequence is.
template <auto kConfig>
class KeySource {
 public:
  __device__ __forceinline__ KeySource(const shared::RowsOfTensor& tensor, const shared::PageTable& table,
                                       const Tile<kConfig>& tile)
      : tensor_(tensor), table_(table), batch_(tile.batch), first_entry_(tile.first_entry) {
    long long first = tile.kv_head * tensor.stride[1];
    if constexpr (kConfig.page_rows == 0) first += tile.batch * tensor.stride[0] + tile.kv_begin * tensor.stride[2];
    base_ = static_cast<const char*>(tensor.data) + first * kConfig.kv_element_bytes();
  }
  /// Rows that follow each other are equally far apart.
  static constexpr bool kLinear = kConfig.page_rows == 0;
  __device__ __forceinline__ const char* below(const char* row, int rows) const {
    return row + rows * tensor_.stride[2] * kConfig.kv_element_bytes();
  }
  __device__ __forceinline__ const char* row(int j) const {
    if constexpr (kConfig.page_rows == 0) return row(j, 0);
    return row(j, page_of(j));
  }
  /// Row j, whose page was asked for before.
  __device__ __forceinline__ const char* row(int j, int page) const {
    if constexpr (kConfig.page_rows == 0) {
      return base_ + j * tensor_.stride[2] * kConfig.kv_element_bytes();
    } else {
      page = page < 0 ? 0 : page < table_.pages ? page : table_.pages - 1;
      return base_ +
             (page * tensor_.stride[0] + j % kConfig.page_rows * tensor_.stride[2]) * kConfig.kv_element_bytes();
    }
  }
  /// Rows that lie in one page from row j on, whose number is `page`, whatever the table holds. `Stride`: the number of
  /// units of kUnit bytes from a row to the next one, or a reference to the parameter, which takes no registers.
  template <class Stride, int kUnit>
  class RowsInPage {
   public:
    static constexpr bool kLinear = true;
    __device__ __forceinline__ RowsInPage(const char* row, int number, Stride stride)
        : row_(row), number_(number), stride_(stride) {}
    __device__ __forceinline__ const char* row(int j) const { return below(row_, j - number_); }
    __device__ __forceinline__ const char* below(const char* row, int rows) const {
      return row + rows * (stride_ * kUnit);
    }
    __device__ __forceinline__ Stride stride() const { return stride_; }
    __device__ __forceinline__ RowStrides strides() const { return {stride_, stride_}; }

   private:
    const char* row_;
    int number_;
    Stride stride_;
  };
  using InPage = RowsInPage<long long, 1>;
  using InPageByReference = RowsInPage<const long long&, kConfig.kv_element_bytes()>;
  __device__ __forceinline__ auto in_page(int j, int page) const {
    if constexpr (kConfig.takes_turns()) return in_page_by_reference(j, page);
    if constexpr (!kConfig.takes_turns()) return in_page_by_stride(j, page);
  }
  __device__ __forceinline__ InPageByReference in_page_by_reference(int j, int page) const {
    return {row(j, page), j, tensor_.stride[2]};
  }
  /// The rows of a block that two pages have, a half each.
  struct InTwoPages {
    InPage halves[2];
  };
  __device__ __forceinline__ InTwoPages in_two_pages(int j, const int (&pages)[2]) const {
    return {{in_page_by_stride(j, pages[0]), in_page_by_stride(j + kConfig.page_rows, pages[1])}};
  }
  /// Elements from a row to the next one.
  __device__ __forceinline__ const long long& stride() const { return tensor_.stride[2]; }
  __device__ __forceinline__ RowStrides strides() const { return {stride(), stride()}; }
  /// The table's entry for row j, whatever it holds.
  __device__ __forceinline__ int page_of(int j) const {
    constexpr int kPageRows = kConfig.page_rows > 0 ? kConfig.page_rows : 1;
    if constexpr (kConfig.listed_pages) return table_.data[(first_entry_ + j / kPageRows) * table_.stride[1]];
    return table_.data[batch_ * table_.stride[0] + j / kPageRows * table_.stride[1]];
  }

 private:
  __device__ __forceinline__ InPage in_page_by_stride(int j, int page) const {
    return {row(j, page), j, tensor_.stride[2] * kConfig.kv_element_bytes()};
  }

  const shared::RowsOfTensor& tensor_;
  const shared::PageTable& table_;
  int batch_, first_entry_;
  const char* base_;
};

/// Keys of a tile. Constructed in place: clang spills registers of some kernels for AMD where a function returns them.
template <auto kConfig, bool kSplit = (kConfig.k_first > 0)>
class KeysOf : public KeySource<kConfig> {
 public:
  /// `params`: a ForwardParams.
  template <class Params>
  __device__ __forceinline__ KeysOf(const Params& params, const Tile<kConfig>& tile)
      : KeySource<kConfig>(params.k, params.table, tile) {}
};
template <auto kConfig>
class KeysOf<kConfig, true> : public SplitSource<kConfig.k_first_bytes(), KeySource<kConfig>> {
  using Source = KeySource<kConfig>;

 public:
  template <class Params>
  __device__ __forceinline__ KeysOf(const Params& params, const Tile<kConfig>& tile)
      : SplitSource<kConfig.k_first_bytes(), Source>(Source(params.k, params.table, tile),
                                                     Source(params.k_rest, params.table, tile)) {}
};

}  // namespace heddle::portable
