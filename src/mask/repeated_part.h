// A mask of parts, joined by and, or and not, some of which make rows of blocks that repeat, while others make every
// row another one: stripes within causal, or every 128th key beside a window. Each part is classified for itself, those
// that repeat once for each of their different rows, and a row of the mask is made from theirs. So it costs its runs,
// where the quadtree would ask for each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "mask/classification.h"
#include "mask/descent.h"

namespace heddle::mask {

/// The parts of one score matrix. Threads share it.
class RepeatedPart {
 public:
  /// Null where no part repeats, or all do, or where a block of a part that repeats needs its elements.
  static std::shared_ptr<const RepeatedPart> find(const Classification& what, const Matrix& matrix);

  /// Fills the strip's rows as descend() does with the ranges of the whole mask. A block about which the parts do not
  /// decide, being partial in several, is asked for as a whole.
  void fill(Strip& strip, const MaskRanges& whole, const Sequence& sequence, BlockSize block,
            std::vector<expr::Range>& scratch) const;

 private:
  enum class Kind : std::uint8_t { repeats, differs, all_of, any_of };
  struct Part {
    Part(Kind its_kind, const Expr& its_mask) : kind(its_kind), mask(its_mask) {}
    Kind kind;
    Expr mask;                                 // what it stands for
    std::vector<Part> operands;                // of the last two
    std::shared_ptr<const MaskRanges> ranges;  // differs
    std::size_t index = 0;                     // differs: which of these parts it is
    std::vector<std::int32_t> first_equal;     // repeats: by row, the row that it repeats
    std::vector<std::vector<Run>> rows;        // repeats: of those rows, and empty for all others
  };
  /// Columns of a row, of one class, which may be open.
  struct Piece {
    std::int32_t begin, end;
    Class what;
  };
  struct PiecesOf;

  static std::optional<Part> repeating(const Classification& what, const Matrix& matrix, const Expr& mask);
  static Part parts_of(const Classification& what, const Matrix& matrix, const Expr& mask, bool negated);
  static void join_leaves(const Classification& what, const Matrix& matrix, Part& part);
  bool prepare(Part& part, const Classification& what, const Matrix& matrix);

  RepeatedPart(const Classification& what, const Matrix& matrix) : root_(parts_of(what, matrix, what.mask, false)) {}

  Part root_;
  std::size_t differing_ = 0;  // parts that differ
};

}  // namespace heddle::mask
