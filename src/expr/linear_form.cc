#include "expr/linear_form.h"

#include <algorithm>
#include <numeric>

#include "expr/order.h"

namespace heddle::expr {
namespace {

constexpr std::int64_t kLargestSum = std::int64_t{1} << 30;
constexpr std::size_t kMostTerms = 16;

std::int64_t to_i32_modulo(std::int64_t x) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(x)); }

bool too_large(const LinearForm& form) {
  std::int64_t sum = 0;
  for (const LinearTerm& term : form.terms) sum += std::abs(term.coefficient);
  return sum >= kLargestSum || form.terms.size() > kMostTerms;
}

LinearForm atom(const Node& node) { return {{{&node, 1}}, 0}; }

LinearForm form_of(const Node& node, const std::unordered_map<const Node*, LinearForm>& forms) {
  const auto below = [&](std::size_t i) -> const LinearForm& { return forms.at(node.operands[i].get()); };
  switch (node.op) {
    case Op::constant:
      return {{}, node.i32()};
    case Op::add:
      return combine(below(0), 1, below(1), 1, true);
    case Op::sub:
      return combine(below(0), 1, below(1), -1, true);
    case Op::neg:
      return combine(below(0), -1, {}, 0, true);
    case Op::mul:
      if (below(0).is_constant()) return combine(below(1), below(0).constant, {}, 0, true);
      if (below(1).is_constant()) return combine(below(0), below(1).constant, {}, 0, true);
      return atom(node);
    case Op::bit_not:
      return combine(below(0), -1, LinearForm{{}, 1}, -1, true);
    case Op::shift_left:
      if (!below(1).is_constant()) return atom(node);
      if (below(1).constant < 0 || below(1).constant > 31) return {{}, 0};
      return combine(below(0), to_i32_modulo(std::int64_t{1} << below(1).constant), {}, 0, true);
    default:
      return atom(node);
  }
}

}  // namespace

bool LinearForm::is_atom(const Node& node) const {
  return constant == 0 && terms.size() == 1 && terms[0] == LinearTerm{&node, 1};
}

LinearForm combine(const LinearForm& x, std::int64_t scale_x, const LinearForm& y, std::int64_t scale_y, bool modulo) {
  const auto number = [modulo](std::int64_t n) { return modulo ? to_i32_modulo(n) : n; };
  LinearForm sum;
  sum.constant = number(scale_x * x.constant + scale_y * y.constant);
  sum.terms.reserve(x.terms.size() + y.terms.size());
  auto of_x = x.terms.begin();
  auto of_y = y.terms.begin();
  while (of_x != x.terms.end() || of_y != y.terms.end()) {
    LinearTerm term{};
    const bool only_y = of_x == x.terms.end() || (of_y != y.terms.end() && stands_before(*of_y->atom, *of_x->atom));
    const bool only_x = of_y == y.terms.end() || (of_x != x.terms.end() && stands_before(*of_x->atom, *of_y->atom));
    term.atom = only_y ? of_y->atom : of_x->atom;
    if (!only_y) term.coefficient += scale_x * (of_x++)->coefficient;
    if (!only_x) term.coefficient += scale_y * (of_y++)->coefficient;
    term.coefficient = number(term.coefficient);
    if (term.coefficient != 0) sum.terms.push_back(term);
  }
  return sum;
}

const LinearForm& LinearForms::collect(const Node& node) {
  const auto [found, added] = forms_.try_emplace(&node);
  if (added) {
    LinearForm form = form_of(node, forms_);
    found->second = too_large(form) ? atom(node) : std::move(form);
  }
  return found->second;
}

std::optional<CanonicalForm> canonical(const LinearForm& form) {
  if (form.is_constant()) return {};
  std::int64_t factor = 0;
  for (const LinearTerm& term : form.terms) factor = std::gcd(factor, term.coefficient);
  if (form.terms[0].coefficient < 0) factor = -factor;
  CanonicalForm result{{form.terms, 0}, factor, form.constant};
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): no coefficient is 0, and so no common divisor is
  for (LinearTerm& term : result.form.terms) term.coefficient /= factor;
  return result;
}

std::optional<LinearBound> bound_of(Op op, const LinearForm& difference) {
  const std::optional<CanonicalForm> found = canonical(difference);
  if (!found) return {};
  // factor * form + constant op 0; a negative factor turns the comparison around.
  const std::int64_t factor = std::abs(found->factor);
  const std::int64_t value = found->factor > 0 ? -found->constant : found->constant;
  const bool turned = found->factor < 0;
  Interval inside = kAllIntegers;
  if (op == Op::eq || op == Op::ne) inside = {value, value};
  const bool from_above = turned ? op == Op::ge || op == Op::gt : op == Op::le || op == Op::lt;
  const bool from_below = turned ? op == Op::le || op == Op::lt : op == Op::ge || op == Op::gt;
  const std::int64_t strict = op == Op::lt || op == Op::gt ? 1 : 0;
  if (from_above) inside.hi = value - strict;
  if (from_below) inside.lo = value + strict;
  if (inside.lo > kAllIntegers.lo) inside.lo = ceil_quotient(inside.lo, factor);
  if (inside.hi < kAllIntegers.hi) inside.hi = floor_quotient(inside.hi, factor);
  return LinearBound{found->form, inside, op == Op::ne};
}

LinearBound negated(LinearBound bound) {
  const bool half_line = bound.interval.lo == kAllIntegers.lo || bound.interval.hi == kAllIntegers.hi;
  if (bound.outside || !half_line) {
    bound.outside = !bound.outside;
  } else if (bound.interval.lo == kAllIntegers.lo) {
    bound.interval = {bound.interval.hi + 1, kAllIntegers.hi};
  } else {
    bound.interval = {kAllIntegers.lo, bound.interval.lo - 1};
  }
  return bound;
}

bool disjoint(const LinearBound& x, const LinearBound& y) {
  if (x.form != y.form || (x.outside && y.outside)) return false;
  if (x.outside) return disjoint(y, x);
  if (y.outside) return x.interval.empty() || (y.interval.lo <= x.interval.lo && x.interval.hi <= y.interval.hi);
  return x.interval.empty() || y.interval.empty() || x.interval.lo > y.interval.hi || y.interval.lo > x.interval.hi;
}

}  // namespace heddle::expr
