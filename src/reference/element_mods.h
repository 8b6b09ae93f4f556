// The mods of an attention at one element, through the scalar interpreter, unsimplified. Scores and weights are
// computed in the precision asked for, from what the problem's own precision holds: constants, params, captures and
// converted integers are rounded to it. The mask is computed in the problem's own, since a mask that compares reals is
// defined there.
#pragma once

#include <optional>

#include "backend/backend.h"
#include "expr/interpret.h"

namespace heddle::reference {

/// One query row of one score matrix: sequence b, query head h, row i of the sequence.
struct RowPosition {
  std::int64_t b, h, i;
};

/// Immutable after construction; threads share it.
class ElementMods {
 public:
  ElementMods(const problem::AttentionProblem& problem, const backend::RunArguments& arguments,
              expr::Precision precision);

  /// Key j takes part for this row. Block lists restrict: keys of unlisted blocks do not.
  bool attends(const RowPosition& row, std::int64_t j) const;
  /// t of the element, from s.
  double score(const RowPosition& row, std::int64_t j, double s) const;
  double weight(const RowPosition& row, std::int64_t j) const;
  /// Where mods are evaluated; its score is 0.
  expr::Element element(const RowPosition& row, std::int64_t j) const;

 private:
  const problem::AttentionProblem& problem_;
  const BlockMask* lists_ = nullptr;
  std::optional<expr::Interpreter> score_, mask_, weight_;
};

}  // namespace heddle::reference
