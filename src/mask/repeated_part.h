// A conjunction, some of whose terms make rows of blocks that repeat, while others make every row another one: stripes
// within causal. Both parts are classified for themselves, the first once for each of its different rows, and a row of
// the mask is made from one of each. So it costs its runs, where the quadtree would ask for each block.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mask/classification.h"
#include "mask/descent.h"

namespace heddle::mask {

/// The parts of one score matrix. Threads share it.
class RepeatedPart {
 public:
  /// Null where the mask is no such conjunction, or where a block of the part that repeats needs its elements.
  static std::shared_ptr<const RepeatedPart> find(const Classification& what, const Matrix& matrix);

  /// Fills the strip's rows as descend() does with the ranges of the whole mask. A block that is partial in both parts
  /// is asked for as a whole.
  void fill(Strip& strip, const MaskRanges& whole, const Sequence& sequence, BlockSize block,
            std::vector<expr::Range>& scratch) const;

 private:
  RepeatedPart(const Classification& what, const Expr& rest);

  MaskRanges rest_;                        // of the terms whose rows all differ
  std::vector<std::int32_t> first_equal_;  // by row: the row of the other terms that it repeats
  std::vector<std::vector<Run>> rows_;     // of those rows, and empty for all others
};

}  // namespace heddle::mask
