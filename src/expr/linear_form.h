// Integer expressions by meaning: a sum of coefficients times atoms plus a constant, equal to the node modulo 2^32.
// Atoms are leaves, params, reads and integer operations that are not linear.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "expr/node.h"
#include "shared/intervals.h"

namespace heddle::expr {

using shared::ceil_quotient;
using shared::floor_quotient;
using shared::Interval;
inline constexpr Interval kI32 = shared::any_i32();

struct LinearTerm {
  const Node* atom;
  std::int64_t coefficient;
  bool operator==(const LinearTerm&) const = default;
};

/// The operations whose forms are made of their operands' (LinearForms), beside constants.
constexpr bool is_linear(Op op) {
  return op == Op::add || op == Op::sub || op == Op::neg || op == Op::mul || op == Op::bit_not || op == Op::shift_left;
}

struct LinearForm {
  std::vector<LinearTerm> terms;  // in the order of stands_before(), no zero coefficient
  std::int64_t constant = 0;

  bool is_constant() const { return terms.empty(); }
  /// The form is `node` itself: nothing was collected.
  bool is_atom(const Node& node) const;
  bool operator==(const LinearForm&) const = default;
};

/// scale_x * x + scale_y * y, over the integers or with every number taken modulo 2^32 into i32. Scales are i32.
LinearForm combine(const LinearForm& x, std::int64_t scale_x, const LinearForm& y, std::int64_t scale_y, bool modulo);

/// The forms of the integer nodes of an expression. A form's coefficients are i32 and sum (absolutely) to less than
/// 2^30, so that sums over i32 atoms and differences of forms stay inside 64 bits; a node that would have a larger one
/// is an atom.
class LinearForms {
 public:
  /// The form of an i32 node whose i32 operands have been collected.
  const LinearForm& collect(const Node& node);
  const LinearForm& operator[](const Node* node) const { return forms_.at(node); }

 private:
  std::unordered_map<const Node*, LinearForm> forms_;
};

/// A form without its constant and common factor, the first coefficient positive: value = factor * form + constant.
/// Forms that differ only in those have the same one.
struct CanonicalForm {
  LinearForm form;
  std::int64_t factor, constant;
};
/// Empty for a constant form.
std::optional<CanonicalForm> canonical(const LinearForm& form);

/// A comparison's meaning over the integers: a canonical form lies inside `interval`, or outside when `outside`.
struct LinearBound {
  LinearForm form;
  Interval interval;
  bool outside;
};
/// Ends that stand for infinity: beyond every sum of i32 atoms.
inline constexpr Interval kAllIntegers = {-(std::int64_t{1} << 62), std::int64_t{1} << 62};

/// The bound that `difference op 0` states, for a comparison op. Empty when the difference is constant.
std::optional<LinearBound> bound_of(Op op, const LinearForm& difference);
LinearBound negated(LinearBound bound);
/// No value satisfies both.
bool disjoint(const LinearBound& x, const LinearBound& y);

}  // namespace heddle::expr
