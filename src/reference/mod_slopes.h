// The derivatives of a mod at one element, through the scalar interpreter, unsimplified.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "expr/interpret.h"

namespace heddle::reference {

/// Which values that mods read get a gradient.
struct ModReads {
  bool captures = false, params = false;
};

/// One place where a mod reads a floating capture or param.
class ReadSlope {
 public:
  /// A param has no indices and a view of rank 0 without memory.
  ReadSlope(std::string name, bool is_param, const Dims& shape, std::vector<expr::Interpreter> indices,
            expr::Interpreter slope, std::optional<expr::Interpreter> terms)
      : name_(std::move(name)),
        is_param_(is_param),
        shape_(shape),
        indices_(std::move(indices)),
        slope_(std::move(slope)),
        terms_(std::move(terms)) {}

  const std::string& name() const { return name_; }
  bool is_param() const { return is_param_; }
  const Dims& shape() const { return shape_; }

  double slope(const expr::Element& element) const { return slope_.real(element); }
  /// The magnitude of the terms that slope() is a sum and product of: 2 for 1 - tanh^2 where it is next to 0. 0 where
  /// slope() is exact.
  double slope_terms(const expr::Element& element) const { return terms_ ? terms_->real(element) : 0; }
  /// The row-major number of the element that is read. An index outside counts as the nearest one inside, as in the
  /// interpreter. Empty if nothing is read: the tensor has no element, or `at` took its fill, whose slope is 0.
  std::optional<std::int64_t> offset(const expr::Element& element, double slope) const;

 private:
  std::string name_;
  bool is_param_;
  Dims shape_;
  std::vector<expr::Interpreter> indices_;
  expr::Interpreter slope_;
  std::optional<expr::Interpreter> terms_;
};

/// Immutable after construction; threads share it.
class ModSlopes {
 public:
  /// `mod` may be empty: its value is then the score. `arithmetic` and `given` as in Interpreter.
  ModSlopes(const Expr& mod, const Bindings& bindings, const ModReads& wanted, expr::Precision arithmetic,
            expr::Precision given);

  /// d mod / d score.
  double score(const expr::Element& element) const { return score_ ? score_->real(element) : 1; }
  /// As ReadSlope::slope_terms.
  double score_terms(const expr::Element& element) const { return score_terms_ ? score_terms_->real(element) : 0; }
  /// True when d mod / d score is 1 everywhere.
  bool is_score() const { return !score_; }
  const std::vector<ReadSlope>& reads() const { return reads_; }

 private:
  std::optional<expr::Interpreter> score_, score_terms_;
  std::vector<ReadSlope> reads_;
};

}  // namespace heddle::reference
