// Rows of blocks that must be equal, found before any of them is classified.
//
// A mask sees the query only through some of its terms: those that use the query and no key. In
// (q_idx // 128) % 2 == (kv_idx // 128) % 2 there is one, (q_idx // 128) % 2. Rows of blocks whose queries give the
// terms the same set of values have equal blocks: an element is a function of the terms and the key, and a block's
// class depends on which values come, not on how often. A mask without such a term has one row.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "mask/classification.h"
#include "mask/descent.h"

namespace heddle::mask {

class EqualRows {
 public:
  explicit EqualRows(const Classification& what);

  /// False when all rows are taken for different.
  bool may_repeat() const { return may_repeat_; }

  /// For each row of blocks of the matrix the first row that is known to be equal to it, which may be itself. Empty
  /// when no two are known to be equal.
  std::vector<std::int32_t> first_equal(const Matrix& matrix);

 private:
  /// One term of the mask.
  struct Term {
    Expr expression;
    MaskRanges ranges;
    expr::Interpreter interpreter;
  };
  struct Hash {
    std::size_t operator()(const std::vector<std::uint64_t>& words) const;
  };
  /// The terms' ranges over a row of blocks. Rows whose ranges differ are taken for different.
  struct Ranges {
    std::vector<std::uint64_t> words;
    bool are_values;  // of integers and booleans, one each
  };
  /// The different tuples of the terms' values over a row of blocks, in order, one after the other.
  using Values = std::vector<std::uint64_t>;
  struct Candidate {
    std::int32_t first;  // row with these ranges
    bool evaluated = false;
  };

  Ranges ranges_of(const Matrix& matrix, std::int32_t row);
  Values values_of(const Matrix& matrix, std::int32_t row) const;
  std::int32_t first_of_equal_values(const Matrix& matrix, std::int32_t row, Candidate& candidate);

  const Sequence& sequence_of(const Matrix& matrix) const {
    return what_.shape.sequences[static_cast<std::size_t>(matrix.sequence)];
  }

  const Classification& what_;
  bool may_repeat_ = true;
  std::vector<Term> terms_;
  std::int64_t budget_ = 0;  // values that may still be computed without a row that repeats
  std::unordered_map<Values, std::int32_t, Hash> first_of_values_;
  std::vector<expr::Range> scratch_;
};

}  // namespace heddle::mask
