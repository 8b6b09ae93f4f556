// A CTA's tile in a pass of the backward: its rows, where they stand, and the steps that it walks. With kOfKeys rows
// are keys and steps are queries; without, the other way round.
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "families/backward_mma/shared/backward_mma_params.h"

namespace heddle::portable {

/// The steps of a tile: of each run of blocks those that begin before the end of the rows that they are. `length`:
/// these rows. (Few members: each is a register through the whole walk.)
template <auto kConfig>
class BackwardWalk {
 public:
  __device__ __forceinline__ BackwardWalk(const shared::QueryRun* runs, const shared::BackwardItem& item, int length)
      : run_(runs + item.first_run), left_(item.runs) {
    if (left_ > 0) begin(length);
  }
  __device__ __forceinline__ bool any() const { return left_ > 0; }
  __device__ __forceinline__ int first() const { return first_; }  // row of the sequence
  __device__ __forceinline__ int flags() const { return run_->flags; }
  __device__ __forceinline__ int head() const { return run_->head; }  // query head
  __device__ __forceinline__ void next(int length) {
    first_ += kConfig.step;
    if (first_ < end_of_run(length)) return;
    ++run_;
    if (--left_ > 0) begin(length);
  }

 private:
  __device__ __forceinline__ int end_of_run(int length) const {
    const int end = run_->end * shared::kBackwardBlock;
    return end < length ? end : length;
  }
  /// The run, or the first one behind it that has steps.
  __device__ __forceinline__ void begin(int length) {
    for (;; ++run_) {
      first_ = run_->begin * shared::kBackwardBlock;
      if (first_ < end_of_run(length) || --left_ == 0) return;
    }
  }

  const shared::QueryRun* run_;
  int left_, first_ = 0;
};

template <auto kConfig>
struct BackwardTile {
  int batch, head;              // of the tile's rows
  int first;                    // its first row, of the sequence
  int begin, length;            // of the sequence's rows of that kind
  int step_begin, step_length;  // of the other kind
  int q_start, first_block;

  __device__ __forceinline__ BackwardTile(const shared::BackwardMmaParams& params, const shared::BackwardItem& item,
                                          int part)
      : batch(item.batch), head(item.kv_head), begin(0), step_begin(0), first_block(item.first_block) {
    constexpr int kListed = kConfig.rows() * kConfig.parts();
    first = item.kv_tile * kListed + part * kConfig.rows();
    int q_len = params.mod.q_len, kv_len = params.mod.kv_len, q_begin = 0, kv_begin = 0;
    q_start = params.mod.q_start;
    if constexpr (kConfig.by_sequence) {
      const shared::SequenceSpan& span = params.mod.sequences[batch];
      q_len = span.q_len, kv_len = span.kv_len, q_begin = span.q_begin, kv_begin = span.kv_begin;
      q_start = span.q_start;
    }
    if constexpr (kConfig.device_lengths) {
      first_block = shared::first_block_of(q_begin, batch, params.padded_blocks);
    }
    begin = kConfig.of_keys ? kv_begin : q_begin;
    length = kConfig.of_keys ? kv_len : q_len;
    step_begin = kConfig.of_keys ? q_begin : kv_begin;
    step_length = kConfig.of_keys ? q_len : kv_len;
  }

  __device__ __forceinline__ int head_of_steps(int q_head, int group) const {
    return kConfig.of_keys ? q_head : q_head / group;
  }
  // The indices by which mods know a row, and a step's row.
  __device__ __forceinline__ int index_of_row(int row) const { return kConfig.of_keys ? row : q_start + row; }
  __device__ __forceinline__ int index_of_step(int row) const { return kConfig.of_keys ? q_start + row : row; }
};

/// Rows of a tensor, of one head of a sequence: what fragments load blocks from.
template <int kElementBytes>
class RowSource {
 public:
  static constexpr bool kLinear = true;
  __device__ __forceinline__ RowSource(const shared::RowsOfTensor& tensor, int batch, int head, int begin)
      : apart_(tensor.stride[2] * kElementBytes),
        base_(static_cast<const char*>(tensor.data) +
              (batch * tensor.stride[0] + head * tensor.stride[1] + begin * tensor.stride[2]) * kElementBytes) {}
  __device__ __forceinline__ const char* row(int j) const { return base_ + j * apart_; }
  __device__ __forceinline__ const char* below(const char* row, int rows) const { return row + rows * apart_; }

 private:
  long long apart_;
  const char* base_;
};

}  // namespace heddle::portable
