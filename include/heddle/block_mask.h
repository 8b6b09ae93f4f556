// Block masks say which blocks of the score matrix are empty, full, or partial (need the mask inside). A block mask is
// built from a mask expression by interval analysis; the dense mask is never formed. The result is exact: each block
// has the class that the dense mask would give.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "heddle/expr.h"
#include "heddle/row_runs.h"
#include "heddle/tensor.h"

namespace heddle {
namespace base {
struct Content;
}

/// One sequence of the batch: its first rows in the tensors, its lengths, and the numbers added to its q_idx and
/// kv_idx. In a padded batch q_begin and kv_begin are 0 and the tensor's batch index is the sequence's number.
struct Sequence {
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t kv_begin = 0, kv_len = 0;
  std::int64_t q_start = 0, kv_start = 0;
  bool operator==(const Sequence&) const = default;
};

/// The score matrices that a mask covers. Every position (q_idx, kv_idx, q_token, kv_token) must fit i32.
struct MaskShape {
  static constexpr std::int64_t kMostSequences = std::int64_t{1} << 24;  // more are refused: their list takes memory

  std::int64_t heads = 1;
  std::vector<Sequence> sequences;  // one per batch entry

  /// Equal sequences. Throws invalid_argument for a negative size and for lengths past i32.
  static MaskShape uniform(std::int64_t batch, std::int64_t heads, std::int64_t q_len, std::int64_t kv_len);
  /// A packed batch from cumulative lengths [N+1] (i32 or i64, CPU, non-decreasing, starting at 0). Throws
  /// invalid_argument for anything else.
  static MaskShape packed(std::int64_t heads, const ConstTensorView& cu_seqlens_q,
                          const ConstTensorView& cu_seqlens_kv);
  bool operator==(const MaskShape&) const = default;
};

struct BlockSize {
  std::int64_t q = 128, kv = 128;
  bool operator==(const BlockSize&) const = default;
};

/// The lists of PyTorch's BlockMask, all i32 on the CPU: kv_num_blocks [B, H, Q], kv_indices [B, H, Q, KV], and the
/// same for full blocks (empty tensors: every listed block is partial).
struct BlockLists {
  Tensor kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices;
};

/// Which blocks of the score matrices are empty, full or partial. Only the elements inside the sequence count for a
/// block's class, so a last, ragged block may be full. A reader of the class must still check the end of the sequence.
class BlockMask {
 public:
  BlockMask() = default;

  /// Classifies `mask` (empty: everything attends) over every score matrix of `shape`. Blocks may have any size >= 1.
  /// If intervals decide, the cost grows with the boundary of the mask, not with its area; blocks that they leave open
  /// are evaluated, one tile at a time. Repeated rows of blocks are stored once. `threads` 0: all cores; the result
  /// does not depend on it. `reals` is the type of the mask's real arithmetic: f64 for an attention on f64 inputs, else
  /// f32. Throws invalid_argument for a mask that is not boolean, unbound names, and reads that may fall outside their
  /// tensor, unless `clamp_reads`, which is as AttentionOptions::clamp_reads; unsupported for captures that are not on
  /// the CPU.
  static BlockMask build(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings = {},
                         int threads = 0, DType reals = DType::f32, bool clamp_reads = false);

  /// From PyTorch's lists. The lists are those of the longest sequence; for a shorter sequence they are cut at its end.
  /// `mask` applies inside partial blocks; if it is empty, partial blocks count as full. B and H of the lists may be 1
  /// (shared by all). Throws invalid_argument for duplicates, entries that are out of range or both partial and full,
  /// wrong shapes and dtypes, and a mask that is not boolean.
  static BlockMask from_lists(const BlockLists& lists, const MaskShape& shape, BlockSize block, const Expr& mask = {});
  /// B (H) is 1 when all sequences (heads) share their rows; entries past a row's count are 0. Throws unsupported when
  /// the sequences differ in length.
  BlockLists to_lists() const;

  /// The runs of one row of query blocks, sorted; two runs of one kind never touch. A mask with one head that does not
  /// depend on the head (shared_by_heads()) accepts any head. Throws invalid_argument for a row that does not exist.
  RowRuns row(std::int64_t sequence, std::int64_t head, std::int64_t q_block) const;
  std::int64_t q_blocks(std::int64_t sequence) const;
  std::int64_t kv_blocks(std::int64_t sequence) const;

  /// The columns, for the backward pass: for each block of keys, the runs of query blocks that read it, of the same
  /// kinds. In the result queries and keys are swapped (shape, block sizes, rows). Its transposed() equals this.
  BlockMask transposed() const;
  bool is_transposed() const { return state_.transposed; }

  /// Rebuilds the rows in place for the values of all params and captures that the mask reads; if it throws, nothing
  /// has changed. Rows from lists depend on no value and stay.
  void update(const Bindings& bindings, int threads = 0);
  /// Throws invalid_argument, naming the first one, when a param or a capture's content differs from what the rows were
  /// built from. Rows from lists are always current. Captures in GPU memory are not compared, because reading them
  /// would wait for the GPU.
  void check_current(const Bindings& bindings) const;
  /// Whether check_current() accepts them.
  bool is_current(const Bindings& bindings) const;
  /// Changes with the rows: each build, update or takeover has a number of its own, which copies share.
  std::uint64_t revision() const { return state_.revision; }

  const MaskShape& shape() const { return state_.shape; }
  BlockSize block() const { return state_.block; }
  const Expr& mask() const { return state_.mask; }
  DType reals() const { return state_.reals; }
  bool clamps_reads() const { return state_.clamp_reads; }
  /// True if from_lists made it: its rows come from the lists, not from mask().
  bool is_from_lists() const { return state_.from_lists; }
  /// True if equal sequences (all heads) share their rows, because the mask does not depend on which one it is.
  bool shared_by_batch() const { return state_.shared_by_batch; }
  bool shared_by_heads() const { return state_.shared_by_heads; }

  struct Statistics {
    std::int64_t blocks = 0, full = 0, partial = 0, empty = 0;  // over all score matrices
    std::int64_t different_rows = 0;                            // each is stored once
    std::int64_t runs = 0;                                      // of these
    std::int64_t bytes = 0;                                     // of the rows, as they are stored
    std::int64_t classified_rows = 0;                           // by building; the others were known to repeat them
    std::int64_t evaluated_tiles = 0;                           // blocks that intervals left open
    std::int64_t range_queries = 0;                             // what building asked of the interval analysis
    double density() const {
      return blocks == 0 ? 0 : static_cast<double>(full + partial) / static_cast<double>(blocks);
    }
  };
  Statistics statistics() const;

  /// One score matrix as text: a line for each row of blocks, a character for each block: '#' full, '+' partial, '.'
  /// empty. Beyond 128 columns or lines a character stands for several blocks: it is '+' if they differ.
  std::string text(std::int64_t sequence = 0, std::int64_t head = 0) const;
  /// The picture as SVG, with axes in tokens and a legend. Beyond 256 blocks a side a cell shows the mixture of several
  /// blocks.
  std::string svg(std::int64_t sequence = 0, std::int64_t head = 0) const;

  bool operator==(const BlockMask& other) const;  // same shape, block sizes and rows

 private:
  friend struct BlockMaskAccess;  // src/mask builds and reads the state

  static std::uint64_t next_revision();

  struct State {
    std::uint64_t revision = next_revision();
    MaskShape shape;
    BlockSize block;
    Expr mask;
    DType reals = DType::f32;
    bool clamp_reads = false;
    bool transposed = false, from_lists = false;
    bool shared_by_batch = false, shared_by_heads = false;

    // Inputs that the rows were built from.
    std::map<std::string, ParamValue> params;
    std::map<std::string, std::shared_ptr<const base::Content>> capture_contents;  // null: of a GPU's memory

    // Equal rows are stored once. Row r is stored row s = row_index[r], with runs [run_offset[s], run_offset[s + 1]).
    std::vector<std::int64_t> sequence_row;  // first row of each sequence; equal ones share when shared_by_batch
    std::vector<std::int32_t> row_index;
    std::vector<std::int64_t> run_offset{0};
    std::vector<Run> runs;
    // A row of many runs has none there. Its windows have the contents window_contents[window_offset[s]] up to
    // window_contents[window_offset[s + 1]]. window_offset is empty if there is no such row.
    std::vector<std::int64_t> window_offset;
    std::vector<std::int32_t> window_contents;
    RunWindows windows;
    std::int64_t evaluated_tiles = 0, range_queries = 0, classified_rows = 0;
  };
  State state_;
};

}  // namespace heddle
