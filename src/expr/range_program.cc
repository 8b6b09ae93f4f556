#include "expr/range_program.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "expr/comparisons.h"
#include "expr/range_ops.h"
#include "expr/real_ranges.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

bool compares_integers(const Node& node) { return is_comparison(node.op) && node.operands[0]->type == ExprType::i32; }

/// Nodes whose slots the step of `node` reads.
std::vector<const Node*> needs(const Node& node, const LinearForms& forms) {
  std::vector<const Node*> result;
  const auto add_atoms = [&](const Node* integer) {
    for (const LinearTerm& term : forms[integer].terms) result.push_back(term.atom);
  };
  if (compares_integers(node)) {
    add_atoms(node.operands[0].get());
    add_atoms(node.operands[1].get());
  } else if (node.type == ExprType::i32 && !forms[&node].is_atom(node)) {
    add_atoms(&node);
  } else {
    for (const auto& below : node.operands) result.push_back(below.get());
  }
  return result;
}

Interval integers(const Range& x) { return {static_cast<std::int64_t>(x.lo), static_cast<std::int64_t>(x.hi)}; }
Range as_range(Interval x) { return {static_cast<double>(x.lo), static_cast<double>(x.hi), false}; }

Interval intersection(Interval x, Interval y) { return {std::max(x.lo, y.lo), std::min(x.hi, y.hi)}; }

Range constant_range(const Node& node, Precision precision) {
  if (node.type == ExprType::boolean) return Range::point(node.boolean() ? 1 : 0);
  return std::isnan(node.f32()) ? real::kNanOnly : Range::point(real::stored(node.f32(), precision));
}

/// The values that a read of a tensor of this type may give.
Range range_of_elements(DType dtype) {
  switch (dtype) {
    case DType::i16:
      return {-32768, 32767, false};
    case DType::i8:
      return {-128, 127, false};
    case DType::u16:
      return {0, 65535, false};
    case DType::u8:
      return {0, 255, false};
    default:
      return Range::any(read_type(dtype));
  }
}

/// The comparison below any number of `not`s, and what it says with them.
struct SignedComparison {
  const Node* comparison;
  LinearBound bound;
};
std::optional<SignedComparison> signed_comparison(const Node* node, const LinearForms& forms) {
  bool positive = true;
  for (; node->op == Op::logical_not; node = node->operands[0].get()) positive = !positive;
  if (!compares_integers(*node)) return {};
  const LinearForm difference = combine(forms[node->operands[0].get()], 1, forms[node->operands[1].get()], -1, false);
  std::optional<LinearBound> bound = bound_of(node->op, difference);
  if (!bound) return {};
  return SignedComparison{node, positive ? *bound : negated(*bound)};
}

}  // namespace

RangeProgram::RangeProgram(const Expr& root, Precision precision, const CaptureBounds* bounds, bool all)
    : root_(root), precision_(precision), bounds_(bounds) {
  const std::vector<const Node*> order = post_order(root);
  for (const Node* node : order) {
    if (node->type == ExprType::i32) forms_.collect(*node);
  }
  std::unordered_set<const Node*> needed = {root.node()};
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    if (all) needed.insert(*node);
    if (!needed.contains(*node)) continue;
    for (const Node* below : needs(**node, forms_)) needed.insert(below);
  }
  for (const Node* node : order) {
    if (needed.contains(node)) compile(*node);
  }
}

int RangeProgram::step_of(const Node* node) const {
  const auto found = step_of_.find(node);
  if (found == step_of_.end()) throw Error(ErrorCode::internal, "the range program has no step for a node");
  return found->second;
}

void RangeProgram::add(const Node& node, const Step& step) {
  step_of_.insert_or_assign(&node, static_cast<int>(steps_.size()));
  steps_.push_back(step);
}

void RangeProgram::compile(const Node& node) {
  if (node.type == ExprType::i32 && !forms_[&node].is_atom(node)) {
    add(node, compile_sum(forms_[&node]));
  } else if (compares_integers(node)) {
    add(node, compile_comparison(node));
  } else if (node.op == Op::constant) {
    add(node, Constant{constant_range(node, precision_), node.type});
  } else if (node.op == Op::leaf) {
    add(node, LeafValue{node.leaf()});
  } else if (node.op == Op::param) {
    add(node, Param{&node});
  } else if (info(node.op).kind == Kind::read) {
    add(node, compile_read(node));
  } else {
    add(node, compile_operation(node));
    if (node.op == Op::logical_and || node.op == Op::logical_or) compile_pair(node);
  }
}

RangeProgram::Sum RangeProgram::compile_sum(const LinearForm& form) {
  const Sum sum = {static_cast<int>(terms_.size()), static_cast<int>(form.terms.size()), form.constant};
  for (const LinearTerm& term : form.terms) terms_.push_back({step_of(term.atom), term.coefficient});
  return sum;
}

RangeProgram::Comparison RangeProgram::compile_comparison(const Node& node) {
  const Node* left = node.operands[0].get();
  const Node* right = node.operands[1].get();
  const auto cannot_wrap = [this](const Node* x) { return forms_[x].is_atom(*x) || forms_[x].is_constant(); };
  const LinearForm difference = combine(forms_[left], 1, forms_[right], -1, false);
  std::int64_t divisor = 0;
  for (const LinearTerm& term : difference.terms) divisor = std::gcd(divisor, term.coefficient);
  return {{.relation = real::relation(node.op),
           .always_exact = cannot_wrap(left) && cannot_wrap(right),
           .has_terms = !difference.is_constant(),
           .constant = difference.constant,
           .divisor = divisor},
          compile_sum(forms_[left]),
          compile_sum(forms_[right]),
          compile_sum(difference)};
}

RangeProgram::Read RangeProgram::compile_read(const Node& node) const {
  Read read{&node.capture(), {}, node.type, {}, node.op == Op::at};
  if (bounds_ != nullptr) read.shape = bounds_->shape(node.capture());
  for (std::size_t i = 0; i < node.operands.size(); ++i) read.operands[i] = step_of(node.operands[i].get());
  return read;
}

/// where(x < c, c, x) of reals is in the range of max(x, c), which the hull of its branches is not. A NaN takes the
/// branch of x, so c has to be the constant.
std::optional<RangeProgram::Operation> RangeProgram::compile_bound(const Node& node) const {
  if (node.op != Op::where || node.type != ExprType::f32 || !is_comparison(node.operands[0]->op)) return {};
  const Node& comparison = *node.operands[0];
  const Node* bound = node.operands[1].get();
  const Node* bounded = node.operands[2].get();
  if (bound->op != Op::constant || std::isnan(bound->f32())) return {};
  const bool bounded_first = comparison.operands[0].get() == bounded && comparison.operands[1].get() == bound;
  const bool bound_first = comparison.operands[0].get() == bound && comparison.operands[1].get() == bounded;
  const bool less = comparison.op == Op::lt || comparison.op == Op::le;
  const bool greater = comparison.op == Op::gt || comparison.op == Op::ge;
  if ((!bounded_first && !bound_first) || (!less && !greater)) return {};
  return Operation{less == bounded_first ? Op::max : Op::min, ExprType::f32, false, false, 2,
                   {step_of(bounded), step_of(bound)}};
}

RangeProgram::Operation RangeProgram::compile_operation(const Node& node) const {
  if (const std::optional<Operation> bound = compile_bound(node)) return *bound;
  Operation operation{node.op, node.operands[0]->type, false, false, static_cast<int>(node.operands.size()), {}};
  for (std::size_t i = 0; i < node.operands.size(); ++i) operation.operands[i] = step_of(node.operands[i].get());
  if (node.operands.size() == 2) {
    operation.same = node.operands[0] == node.operands[1];
    operation.opposite = info(node.op).kind == Kind::logic && opposite(*node.operands[0], *node.operands[1]);
  }
  return operation;
}

void RangeProgram::compile_pair(const Node& node) {
  const auto first = signed_comparison(node.operands[0].get(), forms_);
  const auto second = signed_comparison(node.operands[1].get(), forms_);
  if (!first || !second) return;
  const bool is_or = node.op == Op::logical_or;
  const bool decided =
      is_or ? disjoint(negated(first->bound), negated(second->bound)) : disjoint(first->bound, second->bound);
  if (decided) add(node, Pair{step_of(&node), step_of(first->comparison), step_of(second->comparison), is_or});
}

Interval RangeProgram::sum(const Sum& sum, std::span<const Range> slots) const {
  Interval total = {sum.constant, sum.constant};
  for (const Term& term : terms(sum)) {
    total = shared::plus(total, term.coefficient, integers(slots[static_cast<std::size_t>(term.slot)]));
  }
  return total;
}

bool RangeProgram::is_exact(const Comparison& comparison, std::span<const Range> slots) const {
  return comparison.what.always_exact ||
         shared::is_exact(comparison.what, sum(comparison.left, slots), sum(comparison.right, slots));
}

bool RangeProgram::is_exact(int comparison, std::span<const Range> slots) const {
  return is_exact(std::get<Comparison>(steps_[static_cast<std::size_t>(comparison)]), slots);
}

Range RangeProgram::evaluate(const Comparison& comparison, std::span<const Range> slots) const {
  // Sides that cannot wrap are not looked at.
  const bool sums = !comparison.what.always_exact;
  return real::as_range(shared::compare(comparison.what, sums ? sum(comparison.left, slots) : Interval{},
                                        sums ? sum(comparison.right, slots) : Interval{},
                                        sum(comparison.difference, slots)));
}

Range RangeProgram::evaluate(const Read& read, std::span<const Range> slots) const {
  const auto rank = static_cast<std::size_t>(read.capture->rank);
  if (bounds_ == nullptr) {
    const Range elements = range_of_elements(read.capture->dtype);
    return read.with_fill ? hull(elements, slots[static_cast<std::size_t>(read.operands[rank])]) : elements;
  }
  std::array<Range, kMaxRank> indices;
  bool may_be_inside = true;
  bool may_be_outside = false;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const double last = static_cast<double>(read.shape[static_cast<int>(axis)] - 1);
    const Range& index = slots[static_cast<std::size_t>(read.operands[axis])];
    may_be_inside = may_be_inside && index.hi >= 0 && index.lo <= last;
    may_be_outside = may_be_outside || index.lo < 0 || index.hi > last;
    if (last < 0) return read.with_fill ? slots[static_cast<std::size_t>(read.operands[rank])] : Range::any(read.type);
    indices[axis] = {std::clamp(index.lo, 0.0, last), std::clamp(index.hi, 0.0, last), false};
  }
  if (read.with_fill && !may_be_inside) return slots[static_cast<std::size_t>(read.operands[rank])];
  Range result = bounds_->bounds(*read.capture, std::span(indices).first(rank));
  if (read.type == ExprType::f32) {
    result = {real::stored(result.lo, precision_), real::stored(result.hi, precision_), result.nan};
  }
  const bool fill = read.with_fill && may_be_outside;
  return fill ? hull(result, slots[static_cast<std::size_t>(read.operands[rank])]) : result;
}

Range RangeProgram::evaluate(const Operation& operation, std::span<const Range> slots) const {
  std::array<Range, 5> operands;
  const auto count = static_cast<std::size_t>(operation.operand_count);
  for (std::size_t i = 0; i < count; ++i) operands[i] = slots[static_cast<std::size_t>(operation.operands[i])];
  return op_range(operation.op,
                  {std::span(operands).first(count), operation.operand_type, operation.same, operation.opposite},
                  precision_);
}

Range RangeProgram::evaluate(const Pair& pair, std::span<const Range> slots) const {
  const Range& open = slots[static_cast<std::size_t>(pair.operation)];
  if (open.is_point() || !is_exact(pair.first, slots) || !is_exact(pair.second, slots)) return open;
  return Range::point(pair.value ? 1 : 0);
}

Range RangeProgram::evaluate(const Step& step, const LeafRanges& leaves, std::span<const Range> slots) const {
  if (const auto* operation = std::get_if<Operation>(&step)) return evaluate(*operation, slots);
  if (const auto* comparison = std::get_if<Comparison>(&step)) return evaluate(*comparison, slots);
  if (const auto* read = std::get_if<Read>(&step)) return evaluate(*read, slots);
  if (const auto* pair = std::get_if<Pair>(&step)) return evaluate(*pair, slots);
  if (const auto* constant = std::get_if<Constant>(&step)) return constant->range;
  if (const auto* param = std::get_if<Param>(&step)) return Range::any(param->node->type);
  const Leaf leaf = std::get<LeafValue>(step).leaf;
  const Range& range = leaves[leaf];
  if (leaf != Leaf::score) return range;
  return {real::stored(range.lo, precision_), real::stored(range.hi, precision_), range.nan};
}

template <bool narrowed>
bool RangeProgram::run_steps(const LeafRanges& leaves, std::span<Range> slots, const Narrowing& narrowing) const {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Sum* form = std::get_if<Sum>(&steps_[i]);
    Interval total = kAllIntegers;
    if (form != nullptr) total = sum(*form, slots);
    if (form == nullptr) slots[i] = evaluate(steps_[i], leaves, slots);
    if (narrowed && narrowing[i] != kAllIntegers) {
      total = intersection(form != nullptr ? total : integers(slots[i]), narrowing[i]);
      if (total.empty()) return false;
      if (form == nullptr) slots[i] = as_range(total);
    }
    if (form != nullptr) slots[i] = as_range(shared::modulo_period(total));
  }
  return true;
}

void RangeProgram::run(const LeafRanges& leaves, std::span<Range> slots) const { run_steps<false>(leaves, slots, {}); }

bool RangeProgram::run(const LeafRanges& leaves, std::span<Range> slots, const Narrowing& narrowing) const {
  return run_steps<true>(leaves, slots, narrowing);
}

}  // namespace heddle::expr
