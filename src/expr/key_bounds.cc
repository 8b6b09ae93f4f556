#include "expr/key_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "expr/comparisons.h"
#include "expr/real_ranges.h"

namespace heddle::expr {
namespace {

using shared::KeyRuns;
using shared::Relation;

bool reads_key(const Node& node) { return node.uses.intersects({Leaf::kv_idx}); }

Interval integers(const Range& x) { return {static_cast<std::int64_t>(x.lo), static_cast<std::int64_t>(x.hi)}; }

}  // namespace

bool leaves_holes(const Expr& mask) {
  if (mask.node()->uses.has(Leaf::h)) return true;
  return std::ranges::any_of(post_order(mask), [](const Node* node) {
    return info(node->op).kind == Kind::read && node->uses.intersects({Leaf::kv_idx, Leaf::kv_token});
  });
}

Expr with_affine_tokens(const Expr& mask) {
  const auto word = [](const char* name) { return make(Op::param, ExprType::i32, {}, ParamDecl{name}); };
  return rewrite(mask, [&](const Node& node, std::span<const Expr> operands) {
    if (node.op == Op::leaf && node.leaf() == Leaf::q_token) return leaf::q_idx() + word(kQTokenParam);
    if (node.op == Op::leaf && node.leaf() == Leaf::kv_token) return leaf::kv_idx() + word(kKvTokenParam);
    return with_operands(node, operands);
  });
}

// ---- which steps there are

KeyBounds::KeyBounds(const Expr& mask)
    : mask_(with_affine_tokens(mask)), program_(mask_, Precision::f32, nullptr, false) {
  root_ = build(mask_.shared(), true);
}

int KeyBounds::add(Step step) {
  steps_.push_back(std::move(step));
  return static_cast<int>(steps_.size()) - 1;
}

int KeyBounds::joined(bool both, int first, int second) {
  if (first == kAll || second == kAll) return both ? std::max(first, second) : kAll;
  return add(Join{both, first, second});
}

int KeyBounds::build(const NodePointer& node, bool value) {
  const auto found = built_.find({node.get(), value});
  if (found != built_.end()) return found->second;
  const int step = build_new(node, value);
  built_.emplace(std::pair(node.get(), value), step);
  return step;
}

int KeyBounds::build_new(const NodePointer& pointer, bool value) {
  const Node& node = *pointer;
  const auto operand = [&](std::size_t i, bool of) { return build(node.operands[i], of); };
  if (!reads_key(node)) return add(Condition{program_.step_of(&node), value, Expr(pointer)});
  switch (node.op) {
    case Op::logical_not:
      return operand(0, !value);
    case Op::logical_and:
    case Op::logical_or:
      return joined((node.op == Op::logical_and) == value, operand(0, value), operand(1, value));
    case Op::logical_xor:
      return joined(false, joined(true, operand(0, true), operand(1, !value)),
                    joined(true, operand(0, false), operand(1, value)));
    case Op::where:
      return joined(false, joined(true, operand(0, true), operand(1, value)),
                    joined(true, operand(0, false), operand(2, value)));
    default:
      return bound_of(pointer, value);
  }
}

int KeyBounds::bound_of(const NodePointer& pointer, bool value) {
  const Node& node = *pointer;
  if (!is_comparison(node.op) || node.operands[0]->type != ExprType::i32) return kAll;
  const LinearForms& forms = program_.forms();
  const LinearForm difference = combine(forms[node.operands[0].get()], 1, forms[node.operands[1].get()], -1, false);
  const Relation relation = real::relation(value ? node.op : complement(node.op));
  std::vector<Link> links;
  const std::optional<int> term = follow_a_term(difference, links);
  if (!term || relation == Relation::ne) return kAll;
  return add(Bound{program_.step_of(&node), *term, relation, std::move(links), Expr(pointer), value});
}

/// From a node that reads a key down to kv_idx; false: some operation on the way says nothing.
bool KeyBounds::follow(const Node& node, std::vector<Link>& links) const {
  if (node.op == Op::leaf) return true;
  if (node.type != ExprType::i32) return false;
  if (!program_.forms()[&node].is_atom(node)) return follow_sum(node, links);
  const auto link = [&](Link::Kind kind, std::size_t through, std::size_t other) {
    if (node.operands[through]->type != ExprType::i32 || reads_key(*node.operands[other])) return false;
    links.push_back(
        {kind, program_.step_of(node.operands[through].get()), 0, program_.step_of(node.operands[other].get())});
    return follow(*node.operands[through], links);
  };
  switch (node.op) {
    case Op::floor_div:
      return link(Link::Kind::quotient, 0, 1);
    case Op::shift_right:
      return link(Link::Kind::shift, 0, 1);
    case Op::min:
    case Op::max: {
      const std::size_t through = reads_key(*node.operands[0]) ? 0 : 1;
      return link(node.op == Op::min ? Link::Kind::min : Link::Kind::max, through, 1 - through);
    }
    case Op::abs:
      links.push_back({Link::Kind::abs, program_.step_of(node.operands[0].get()), 0, 0});
      return follow(*node.operands[0], links);
    default:
      return false;
  }
}

bool KeyBounds::follow_sum(const Node& node, std::vector<Link>& links) const {
  const std::size_t here = links.size();
  links.push_back({Link::Kind::sum, program_.step_of(&node), 0, 0});
  const std::optional<int> term = follow_a_term(program_.forms()[&node], links);
  links[here].term = term.value_or(0);
  return term.has_value();
}

/// From a sum down to kv_idx through the first of its terms that leads there. The other terms count with all values
/// that they can have, also those that read a key.
std::optional<int> KeyBounds::follow_a_term(const LinearForm& form, std::vector<Link>& links) const {
  const std::size_t here = links.size();
  for (std::size_t i = 0; i < form.terms.size(); ++i) {
    const Node& atom = *form.terms[i].atom;
    if (reads_key(atom) && follow(atom, links)) return static_cast<int>(i);
    links.resize(here);
  }
  return std::nullopt;
}

// ---- what they say

const RangeProgram::Sum& KeyBounds::difference_of(const Bound& bound) const {
  return std::get<RangeProgram::Comparison>(program_.steps()[static_cast<std::size_t>(bound.step)]).difference;
}
const RangeProgram::Sum& KeyBounds::sum_of(const Link& link) const {
  return std::get<RangeProgram::Sum>(program_.steps()[static_cast<std::size_t>(link.step)]);
}
std::int64_t KeyBounds::coefficient(const RangeProgram::Sum& sum, int term) const {
  return program_.terms(sum)[static_cast<std::size_t>(term)].coefficient;
}

bool KeyBounds::bounds_from_above(const Bound& bound) const {
  const Interval ends = shared::differences(bound.relation);
  bool below = ends.lo > -shared::kFar, above = ends.hi < shared::kFar;  // which ends the values have
  const auto multiply = [&](std::int64_t by) {
    if (by < 0) std::swap(below, above);
  };
  multiply(coefficient(difference_of(bound), bound.term));
  for (const Link& link : bound.links) {
    if (link.kind == Link::Kind::sum) multiply(coefficient(sum_of(link), link.term));
    if (link.kind == Link::Kind::abs) below = true;
  }
  return !below;
}

bool KeyBounds::leaves_first_keys() const {
  return std::ranges::all_of(steps_, [&](const Step& step) {
    const auto* bound = std::get_if<Bound>(&step);
    return bound == nullptr || bounds_from_above(*bound);
  });
}

Interval KeyBounds::without(const RangeProgram::Sum& sum, int term, std::span<const Range> slots) const {
  Interval rest = {sum.constant, sum.constant};
  const std::span terms = program_.terms(sum);
  for (int i = 0; i < sum.terms; ++i) {
    if (i == term) continue;
    const RangeProgram::Term& each = terms[static_cast<std::size_t>(i)];
    rest = shared::plus(rest, each.coefficient, integers(slots[static_cast<std::size_t>(each.slot)]));
  }
  return rest;
}

KeyRuns KeyBounds::evaluate(const Bound& bound, Interval keys, std::span<const Range> slots) const {
  const RangeProgram::Sum& difference = difference_of(bound);
  if (!program_.is_exact(bound.step, slots)) return shared::all_keys(keys);
  Interval found = shared::terms_of_sum(shared::differences(bound.relation), coefficient(difference, bound.term),
                                        without(difference, bound.term, slots));
  for (const Link& link : bound.links) {
    const auto value = [&](int step) { return integers(slots[static_cast<std::size_t>(step)]); };
    switch (link.kind) {
      case Link::Kind::sum: {
        const RangeProgram::Sum& sum = sum_of(link);
        found = shared::terms_of_sum(found, coefficient(sum, link.term), without(sum, link.term, slots),
                                     without(sum, -1, slots));
        break;
      }
      case Link::Kind::quotient:
        found = shared::dividends(found, value(link.other));
        break;
      case Link::Kind::shift:
        found = shared::dividends(found, shared::powers(value(link.other)));
        break;
      case Link::Kind::min:
        found = shared::under_min(found, value(link.other));
        break;
      case Link::Kind::max:
        found = shared::under_max(found, value(link.other));
        break;
      case Link::Kind::abs:
        found = shared::under_abs(found, value(link.step));
        break;
    }
  }
  return shared::keys_within(found, keys);
}

KeyRuns KeyBounds::operator()(const LeafRanges& leaves) const {
  const Interval keys = integers(leaves[Leaf::kv_idx]);
  if (!bounds()) return shared::all_keys(keys);
  std::vector<Range> slots(program_.size());
  program_.run(leaves, slots);
  std::vector<KeyRuns> runs;
  for (const Step& step : steps_) {
    if (const auto* bound = std::get_if<Bound>(&step)) {
      runs.push_back(evaluate(*bound, keys, slots));
    } else if (const auto* condition = std::get_if<Condition>(&step)) {
      const Range& range = slots[static_cast<std::size_t>(condition->step)];
      runs.push_back(shared::keys_where(condition->value ? !range.always_false() : !range.always_true(), keys));
    } else {
      const auto& join = std::get<Join>(step);
      const KeyRuns &x = runs[static_cast<std::size_t>(join.first)], &y = runs[static_cast<std::size_t>(join.second)];
      runs.push_back(join.both ? shared::intersect(x, y) : shared::unite(x, y));
    }
  }
  return runs[static_cast<std::size_t>(root_)];
}

std::string KeyBounds::text() const { return bounds() ? text_of(root_) : ""; }

std::string KeyBounds::text_of(int number) const {
  const Step& step = steps_[static_cast<std::size_t>(number)];
  const auto term = [](const Expr& e, bool value) { return print(value ? e : !e); };
  if (const auto* bound = std::get_if<Bound>(&step)) return term(bound->comparison, bound->value);
  if (const auto* condition = std::get_if<Condition>(&step)) return term(condition->term, condition->value);
  const auto& join = std::get<Join>(step);
  const auto side = [&](int of) {
    const auto* below = std::get_if<Join>(&steps_[static_cast<std::size_t>(of)]);
    return below != nullptr && below->both != join.both ? fmt::format("({})", text_of(of)) : text_of(of);
  };
  return fmt::format("{} {} {}", side(join.first), join.both ? "and" : "or", side(join.second));
}

}  // namespace heddle::expr
