// Range analysis as a flat program: a step a node, over the slots of earlier steps. A sum of integers is one step over
// its atoms, and so is a comparison of integers, which looks at the difference of its sides.
#pragma once

#include <array>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "expr/interpret.h"
#include "expr/linear_form.h"
#include "expr/range.h"

namespace heddle::expr {

/// For each step, what its i32 value is known to lie in for other reasons; kAllIntegers where nothing is known.
using Narrowing = std::vector<Interval>;

class RangeProgram {
 public:
  /// A program whose last step is `root`. `all`: every node gets a step, also those that only take part in sums.
  /// `bounds` may be null and must outlive the program.
  RangeProgram(const Expr& root, Precision precision, const CaptureBounds* bounds, bool all);

  std::size_t size() const { return steps_.size(); }
  /// The step of a node; throws internal when it has none.
  int step_of(const Node* node) const;
  const LinearForms& forms() const { return forms_; }

  /// Fills slots [0, size()).
  void run(const LeafRanges& leaves, std::span<Range> slots) const;
  /// Runs under further facts. False if these leave some value no possibility: no element comes here.
  bool run(const LeafRanges& leaves, std::span<Range> slots, const Narrowing& narrowing) const;
  /// True when no side of a comparison of integers wraps, so that their difference has the sign that it says.
  bool is_exact(int comparison, std::span<const Range> slots) const;

  // The steps, for who writes them in another language (backend/device_text/range_text.h).

  struct Constant {
    Range range;
    ExprType type;
  };
  struct Param {
    const Node* node;
  };
  struct LeafValue {
    Leaf leaf;
  };
  struct Sum {
    int first_term, terms;  // in terms_
    std::int64_t constant;
  };
  struct Comparison {
    shared::SumComparison what;
    Sum left, right, difference;
  };
  struct Read {
    const CaptureDecl* capture;
    Dims shape;
    ExprType type;
    std::array<int, kMaxRank + 1> operands;  // the indices, and for at the fill
    bool with_fill;
  };
  struct Operation {
    Op op;
    ExprType operand_type;
    bool same, opposite;
    int operand_count;
    std::array<int, 5> operands;
  };
  /// `and` (`or`) of two comparisons that no value of their form (every value) satisfies: `value` if both are exact.
  struct Pair {
    int operation, first, second;
    bool value;
  };
  using Step = std::variant<Constant, Param, LeafValue, Sum, Comparison, Read, Operation, Pair>;
  struct Term {
    int slot;
    std::int64_t coefficient;
  };
  const std::vector<Step>& steps() const { return steps_; }
  std::span<const Term> terms(const Sum& sum) const {
    return std::span(terms_).subspan(static_cast<std::size_t>(sum.first_term), static_cast<std::size_t>(sum.terms));
  }

 private:
  void compile(const Node& node);
  Sum compile_sum(const LinearForm& form);
  Comparison compile_comparison(const Node& node);
  Read compile_read(const Node& node) const;
  Operation compile_operation(const Node& node) const;
  std::optional<Operation> compile_bound(const Node& node) const;
  void compile_pair(const Node& node);
  void add(const Node& node, const Step& step);

  template <bool narrowed>
  bool run_steps(const LeafRanges& leaves, std::span<Range> slots, const Narrowing& narrowing) const;
  Interval sum(const Sum& sum, std::span<const Range> slots) const;
  bool is_exact(const Comparison& comparison, std::span<const Range> slots) const;
  Range evaluate(const Step& step, const LeafRanges& leaves, std::span<const Range> slots) const;
  Range evaluate(const Comparison& comparison, std::span<const Range> slots) const;
  Range evaluate(const Read& read, std::span<const Range> slots) const;
  Range evaluate(const Operation& operation, std::span<const Range> slots) const;
  Range evaluate(const Pair& pair, std::span<const Range> slots) const;

  Expr root_;
  Precision precision_;
  const CaptureBounds* bounds_;
  LinearForms forms_;
  std::vector<Step> steps_;
  std::vector<Term> terms_;
  std::unordered_map<const Node*, int> step_of_;
};

}  // namespace heddle::expr
