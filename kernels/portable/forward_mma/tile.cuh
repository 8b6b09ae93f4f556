// A CTA's tile: the queries and keys that it reads, the key blocks that it walks, and where its rows stand.
#pragma once

#include "families/forward_mma/shared/forward_mma_params.h"
#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::portable {


/// The steps of a tile from number `first` on, `left` of them.
class Walk {
 public:
  __device__ __forceinline__ Walk(const shared::KvRun* runs, const shared::WorkItem& item, int first, int left)
      : runs_(runs + item.first_run), run_(item.run), left_(left) {
    if (left <= 0) return;
    while (first >= run_.end - run_.begin) {
      first -= run_.end - run_.begin;
      run_ = *++runs_;
    }
    run_.begin += first;
  }
  __device__ __forceinline__ bool any() const { return left_ > 0; }
  __device__ __forceinline__ int left() const { return left_; }
  __device__ __forceinline__ int block() const { return run_.begin; }
  __device__ __forceinline__ int flags() const { return run_.flags; }
  __device__ __forceinline__ void next() {
    if (--left_ > 0 && ++run_.begin == run_.end) run_ = *++runs_;
  }

 private:
  const shared::KvRun* runs_;  // the one that is walked
  shared::KvRun run_;          // what is left of it
  int left_;
};

template <auto kConfig>
struct Tile {
  int batch, head, kv_head;  // the first query head
  int heads;                 // packed: that there are; else 1
  int q_first;               // its first query
  int q_begin, q_len, q_start, kv_begin, kv_len;  // of the sequence

  __device__ __forceinline__ Tile(const shared::ForwardMmaParams& params, const shared::WorkItem& item)
      : batch(item.batch), head(item.head), kv_head(item.kv_head), heads(1),
        q_first(item.q_tile * kConfig.tile().queries()), q_begin(0), q_len(params.mod.q_len),
        q_start(params.mod.q_start), kv_begin(0), kv_len(params.mod.kv_len) {
    if constexpr (kConfig.packs()) {
      const int left = (item.kv_head + 1) * params.group - item.head;
      heads = left < kConfig.packed_heads ? left : kConfig.packed_heads;
    }
    if constexpr (kConfig.by_sequence) {
      const shared::SequenceSpan& span = params.mod.sequences[item.batch];
      q_begin = span.q_begin;
      q_len = span.q_len;
      q_start = span.q_start;
      kv_begin = kConfig.page_rows > 0 ? 0 : span.kv_begin;
      kv_len = span.kv_len;
    }
  }

  /// The head of a row of the tile. A row without a head counts as the last head's.
  __device__ __forceinline__ int head_of(int row) const {
    if constexpr (!kConfig.packs()) return head;
    const int own = row % kConfig.packed_heads;
    return head + (own < heads ? own : heads - 1);
  }
  __device__ __forceinline__ int query_of(int row) const { return q_first + row / kConfig.packed_heads; }
  __device__ __forceinline__ int q_idx_of(int row) const { return q_start + query_of(row); }
  __device__ __forceinline__ bool has(int row) const {
    return query_of(row) < q_len && (!kConfig.packs() || row % kConfig.packed_heads < heads);
  }
};

/// Rows of a tensor of keys or values, of one head: where row j of a sequence is.
template <auto kConfig>
class KeySource {
 public:
  __device__ __forceinline__ KeySource(const shared::RowsOfTensor& tensor, const shared::PageTable& table,
                                       const Tile<kConfig>& tile)
      : tensor_(tensor), table_(table), batch_(tile.batch) {
    long long first = tile.kv_head * tensor.stride[1];
    if constexpr (kConfig.page_rows == 0) first += tile.batch * tensor.stride[0] + tile.kv_begin * tensor.stride[2];
    base_ = static_cast<const char*>(tensor.data) + first * kConfig.element_bytes();
  }
  /// Rows that follow each other are equally far apart.
  static constexpr bool kLinear = kConfig.page_rows == 0;
  __device__ __forceinline__ const char* below(const char* row, int rows) const {
    return row + rows * tensor_.stride[2] * kConfig.element_bytes();
  }
  __device__ __forceinline__ const char* row(int j) const {
    if constexpr (kConfig.page_rows == 0) return row(j, 0);
    return row(j, page_of(j));
  }
  /// Row j, whose page was asked for before.
  __device__ __forceinline__ const char* row(int j, int page) const {
    if constexpr (kConfig.page_rows == 0) {
      return base_ + j * tensor_.stride[2] * kConfig.element_bytes();
    } else {
      page = page < 0 ? 0 : page < table_.pages ? page : table_.pages - 1;
      return base_ +
             (page * tensor_.stride[0] + j % kConfig.page_rows * tensor_.stride[2]) * kConfig.element_bytes();
    }
  }
  /// The table's entry for row j, whatever it holds.
  __device__ __forceinline__ int page_of(int j) const {
    constexpr int kPageRows = kConfig.page_rows > 0 ? kConfig.page_rows : 1;
    return table_.data[batch_ * table_.stride[0] + j / kPageRows * table_.stride[1]];
  }

 private:
  const shared::RowsOfTensor& tensor_;
  const shared::PageTable& table_;
  int batch_;
  const char* base_;
};

}  // namespace heddle::portable
