// The quadtree over a strip of rows of blocks: rectangles that the interval analysis decides become pieces of rows,
// the others are split, down to single blocks. Quarters are visited left before right, so that each row receives its
// pieces in order.
#pragma once

#include <cstdint>
#include <vector>

#include "mask/classification.h"

namespace heddle::mask {

/// A mask prepared for range queries: q_token and kv_token are rewritten as q_idx and kv_idx plus a constant of the
/// sequence, so that the analysis collects them with the other linear terms. Threads share it.
class MaskRanges {
 public:
  MaskRanges(const Expr& mask, expr::Precision precision, const expr::CaptureBounds& captures);
  const expr::RangeAnalysis& analysis() const { return analysis_; }
  /// The leaves' ranges for one score matrix; q_idx and kv_idx are left to the query.
  static expr::LeafRanges leaves(const Sequence& sequence, std::int64_t b, std::int64_t h);

 private:
  expr::RangeAnalysis analysis_;
};

/// Class of a rectangle. `open`: not decided.
enum class Class : std::uint8_t { empty, partial, full, open };

/// Rows of pieces under construction. Pieces of all rows stand in one array, each linked to the one on its left.
class StripRows {
 public:
  struct Open {
    std::int32_t row, piece;  // row within the strip
  };

  explicit StripRows(std::int32_t rows) : last_(static_cast<std::size_t>(rows), -1) {}

  /// Columns [begin, end) to the right of all that the rows [row_begin, row_end) have. An open piece is one block.
  void append(std::int32_t row_begin, std::int32_t row_end, std::int32_t begin, std::int32_t end, Class what);
  const std::vector<Open>& open() const { return open_; }
  std::int32_t column(const Open& open) const { return pieces_[static_cast<std::size_t>(open.piece)].begin; }
  void resolve(const Open& open, Class what) { pieces_[static_cast<std::size_t>(open.piece)].what = what; }
  /// The runs of a row, merged. Nothing in it may be open any more.
  void take(std::int32_t row, std::vector<Run>& runs) const;

 private:
  struct Piece {
    std::int32_t begin, end, left;
    Class what;
  };
  std::vector<Piece> pieces_;
  std::vector<std::int32_t> last_;  // by row: its rightmost piece, -1 for none
  std::vector<Open> open_;
};

/// Rows of blocks [row_begin, row_end) of one score matrix.
struct Strip {
  Matrix matrix;
  std::int32_t row_begin, row_end, columns;
  StripRows rows;
  std::int64_t range_queries = 0;
};

/// Fills the strip's rows; blocks that the analysis cannot decide stay open.
void descend(Strip& strip, const MaskRanges& ranges, const Sequence& sequence, BlockSize block,
             std::vector<expr::Range>& scratch);
/// As above, columns [begin, end) of one row of the matrix, which lie to the right of all that the row has.
void descend(Strip& strip, std::int32_t row, std::int32_t begin, std::int32_t end, const MaskRanges& ranges,
             const Sequence& sequence, BlockSize block, std::vector<expr::Range>& scratch);

}  // namespace heddle::mask
