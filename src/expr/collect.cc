#include "expr/collect.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "expr/linear_form.h"
#include "expr/order.h"

namespace heddle::expr {
namespace {

/// Larger sums stay as they are: walking them again at every step would cost the square of their size.
constexpr std::size_t kLargestSum = 128;

bool is_linear(const Node& node) {
  return node.type == ExprType::i32 && (is_linear(node.op) || node.op == Op::constant);
}

using Handles = std::unordered_map<const Node*, Expr>;

/// The i32 arithmetic below `root` down to its atoms: the form of each of its nodes, and handles on them.
struct LinearPart {
  LinearForms forms;
  Handles handles;
};

/// False when it is too large.
bool walk_linear_part(const Node& root, LinearPart& part) {
  std::unordered_set<const Node*> seen;
  std::vector<std::pair<const Node*, bool>> open = {{&root, false}};
  while (!open.empty()) {
    const auto [node, operands_done] = open.back();
    open.pop_back();
    if (operands_done) part.forms.collect(*node);
    if (operands_done || !seen.insert(node).second) continue;
    if (node->type == ExprType::i32) open.emplace_back(node, true);
    if (node != &root && !is_linear(*node)) continue;
    for (const auto& below : node->operands) {
      part.handles.emplace(below.get(), Expr(below));
      open.emplace_back(below.get(), false);
    }
    if (seen.size() > kLargestSum) return false;
  }
  return true;
}

Expr integer(std::int64_t value) { return Expr(static_cast<std::int32_t>(value)); }
Expr node(Op op, const Expr& x, const Expr& y) { return make(op, x.type(), std::array{x, y}); }

/// A sum written out: added terms in order, then subtracted ones, then the constant.
class Writer {
 public:
  Writer(const LinearForm& form, const Handles& handles) : handles_(handles), constant_(form.constant) {
    terms_ = form.terms;
    std::sort(terms_.begin(), terms_.end(), [](const LinearTerm& x, const LinearTerm& y) {
      if ((x.coefficient > 0) != (y.coefficient > 0)) return x.coefficient > 0;
      return stands_before(*x.atom, *y.atom);
    });
  }

  Expr write() {
    if (terms_.empty()) return integer(constant_);
    const bool starts_negative = terms_[0].coefficient < 0;
    const bool constant_first = starts_negative && constant_ != 0;
    if (constant_first) sum_ = integer(constant_);
    for (const LinearTerm& term : terms_) add_term(term);
    if (!constant_first && constant_ != 0) add_constant();
    return sum_;
  }

 private:
  void add_term(const LinearTerm& term) {
    const Expr& atom = handles_.at(term.atom);
    const std::int64_t size = std::abs(term.coefficient);
    const bool subtract = term.coefficient < 0;
    if (sum_.empty() && subtract && size == 1) {
      sum_ = make(Op::neg, ExprType::i32, std::array{atom});
      return;
    }
    const std::int64_t factor = sum_.empty() ? term.coefficient : size;
    const Expr product = factor == 1 ? atom : node(Op::mul, atom, integer(factor));
    sum_ = sum_.empty() ? product : node(subtract ? Op::sub : Op::add, sum_, product);
  }

  void add_constant() {
    const bool subtract = constant_ < 0 && constant_ != kI32.lo;
    sum_ = node(subtract ? Op::sub : Op::add, sum_, integer(subtract ? -constant_ : constant_));
  }

  const Handles& handles_;
  std::vector<LinearTerm> terms_;
  std::int64_t constant_;
  Expr sum_;
};

/// left == right with every term on the side where it is positive, and odd common factors, which have inverses modulo
/// 2^32, gone.
Expr write_equality(Op op, LinearForm difference, const Handles& handles) {
  if (difference.is_constant()) {
    const bool equal = difference.constant == 0;
    return Expr(equal == (op == Op::eq));
  }
  std::int64_t divisor = difference.constant;
  for (const LinearTerm& term : difference.terms) divisor = std::gcd(divisor, term.coefficient);
  while (divisor % 2 == 0) divisor /= 2;
  const auto first = std::min_element(difference.terms.begin(), difference.terms.end(),
                                      [](const auto& x, const auto& y) { return stands_before(*x.atom, *y.atom); });
  if (first->coefficient < 0) divisor = -divisor;
  LinearForm left;
  LinearForm right;
  for (const LinearTerm& term : difference.terms) {
    const std::int64_t coefficient = term.coefficient / divisor;
    (coefficient > 0 ? left : right).terms.push_back({term.atom, std::abs(coefficient)});
  }
  const std::int64_t constant = difference.constant / divisor;
  const bool on_the_left = constant > 0 && !right.is_constant();
  (on_the_left ? left : right).constant = on_the_left ? constant : -constant;
  if (right.constant == -kI32.lo) right.constant = kI32.lo;
  const Expr x = Writer(left, handles).write();
  const Expr y = Writer(right, handles).write();
  return stands_before(*y.node(), *x.node()) ? node(op, y, x) : node(op, x, y);
}

/// Nodes of e above the atoms, atoms included.
std::size_t size_above(const Expr& e, const LinearForms& forms, const Handles& known) {
  std::unordered_set<const Node*> seen = {e.node()};
  std::vector<const Node*> open = {e.node()};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (known.contains(node) && node->type == ExprType::i32 && forms[node].is_atom(*node)) continue;
    for (const auto& below : node->operands) {
      if (seen.insert(below.get()).second) open.push_back(below.get());
    }
  }
  return seen.size();
}

}  // namespace

std::optional<Expr> collect_linear(const Node& root) {
  const bool equality = root.op == Op::eq || root.op == Op::ne;
  LinearPart part;
  if (!walk_linear_part(root, part)) return {};
  Expr collected;
  if (equality) {
    const LinearForms& forms = part.forms;
    const LinearForm difference = combine(forms[root.operands[0].get()], 1, forms[root.operands[1].get()], -1, true);
    collected = write_equality(root.op, difference, part.handles);
  } else {
    const LinearForm& form = part.forms[&root];
    if (form.is_atom(root)) return {};
    collected = Writer(form, part.handles).write();
  }
  const Expr given = with_operands(root, std::vector<Expr>(root.operands.begin(), root.operands.end()));
  const bool grows = size_above(collected, part.forms, part.handles) > size_above(given, part.forms, part.handles);
  return grows ? std::optional<Expr>() : collected;
}

}  // namespace heddle::expr
