// Block masks: which blocks of the score matrix attend at all, and which need the mask inside. Built from a mask
// expression by interval analysis, without ever forming the dense mask, and exact: equal, block for block, to what the
// dense mask would give.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "heddle/expr.h"
#include "heddle/tensor.h"

namespace heddle {

/// One sequence of the batch: where its rows stand in the tensors, how many there are, and what is added to its q_idx.
/// In a padded batch q_begin and kv_begin are 0 and the tensor's batch index is the sequence's number.
struct Sequence {
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t kv_begin = 0, kv_len = 0;
  std::int64_t q_start = 0;
  bool operator==(const Sequence&) const = default;
};

/// The score matrices that a mask covers.
struct MaskShape {
  std::int64_t heads = 1;
  std::vector<Sequence> sequences;  // one per batch entry

  static MaskShape uniform(std::int64_t batch, std::int64_t heads, std::int64_t q_len, std::int64_t kv_len);
  /// A packed batch from cumulative lengths [N+1] (i32 or i64, CPU, non-decreasing, starting at 0).
  static MaskShape packed(std::int64_t heads, const ConstTensorView& cu_seqlens_q,
                          const ConstTensorView& cu_seqlens_kv);
};

struct BlockSize {
  std::int64_t q = 128, kv = 128;
  bool operator==(const BlockSize&) const = default;
};

enum class RunKind : std::uint8_t { partial, full };

/// Key blocks [begin, end) of one row of query blocks, all of one kind.
struct Run {
  std::int32_t begin, end;
  RunKind kind;
  bool operator==(const Run&) const = default;
};

/// The lists of PyTorch's BlockMask, all i32 on the CPU: kv_num_blocks [B, H, Q], kv_indices [B, H, Q, KV], and the
/// same for full blocks (empty tensors: every listed block is partial).
struct BlockLists {
  Tensor kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices;
};

class BlockMask {
 public:
  BlockMask() = default;

  /// Classifies `mask` over every score matrix of `shape`. Blocks may have any size >= 1. Costs the boundary of the
  /// mask, not its area, where intervals decide; blocks that they leave open are evaluated, one tile at a time.
  /// `threads` 0: all cores. Throws invalid_argument for a mask that is not boolean, unbound names, and reads that may
  /// fall outside their tensor.
  static BlockMask build(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings = {},
                         int threads = 0);

  /// From PyTorch's lists. With a `mask`, it applies inside partial blocks; with an empty one, partial blocks count as
  /// full. B and H of the lists may be 1 (shared by all). Throws invalid_argument for duplicates, entries out of range,
  /// wrong shapes.
  static BlockMask from_lists(const BlockLists& lists, const MaskShape& shape, BlockSize block, const Expr& mask = {},
                              const Bindings& bindings = {});
  /// Throws unsupported when the sequences differ in length.
  BlockLists to_lists() const;

  /// The runs of one row of query blocks, sorted, not touching where of one kind.
  std::span<const Run> row(std::int64_t sequence, std::int64_t head, std::int64_t q_block) const;
  std::int64_t q_blocks(std::int64_t sequence) const;
  std::int64_t kv_blocks(std::int64_t sequence) const;

  /// The columns: for each block of keys the runs of query blocks that read it. Same kinds, for the backward pass.
  BlockMask transposed() const;

  /// Rebuilds the rows in place for new values of the params and captures that the mask reads.
  void update(const Bindings& bindings, int threads = 0);
  /// Throws invalid_argument, naming the first one, when a param or a capture's content differs from what the rows were
  /// built from.
  void check_current(const Bindings& bindings) const;

  const MaskShape& shape() const { return shape_; }
  BlockSize block() const { return block_; }
  const Expr& mask() const { return mask_; }
  /// True when all sequences of equal lengths (all heads) share their rows.
  bool shared_by_batch() const { return shared_by_batch_; }
  bool shared_by_heads() const { return shared_by_heads_; }

  struct Statistics {
    std::int64_t blocks = 0, full = 0, partial = 0, empty = 0;  // over all score matrices
    std::int64_t runs = 0;                                      // stored
    std::int64_t bytes = 0;                                     // of the rows
    std::int64_t evaluated_tiles = 0;                           // blocks that intervals left open
    double density() const {
      return blocks == 0 ? 0 : static_cast<double>(full + partial) / static_cast<double>(blocks);
    }
  };
  Statistics statistics() const;

  /// One score matrix as text, a character a block: '#' full, '+' partial, '.' empty; at most 128 columns, coarser
  /// beyond.
  std::string text(std::int64_t sequence = 0, std::int64_t head = 0) const;
  /// The same as an SVG picture with axes and a legend.
  std::string svg(std::int64_t sequence = 0, std::int64_t head = 0) const;

  bool operator==(const BlockMask& other) const;  // same shape, block sizes and rows

 private:
  friend struct BlockMaskAccess;  // src/mask builds and reads the fields

  struct Origin {  // what the rows were built from
    std::map<std::string, ParamValue> params;
    std::map<std::string, std::uint64_t> capture_hashes;
  };

  MaskShape shape_;
  BlockSize block_;
  Expr mask_;
  Origin origin_;
  bool shared_by_batch_ = false, shared_by_heads_ = false;
  bool from_lists_ = false;
  std::vector<std::int64_t> sequence_row_;  // first row of each sequence; equal sequences share when shared_by_batch
  std::vector<std::int64_t> row_offset_;    // CSR: runs of row r are [row_offset_[r], row_offset_[r + 1])
  std::vector<Run> runs_;
  std::int64_t evaluated_tiles_ = 0;
};

}  // namespace heddle
