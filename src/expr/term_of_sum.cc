// Finds terms that depend on a sum of a number of the query and one of the key alone, which kernels read from a table.
#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "expr/linear_form.h"
#include "expr/separate.h"
#include "expr/simplify.h"

namespace heddle::expr {
namespace {

bool reads_query(const Node& node) { return node.uses.has(Leaf::q_idx); }
bool reads_key(const Node& node) { return node.uses.has(Leaf::kv_idx); }

/// An integer that is factor * (a number of the query + one of the key) + rest; `rest` reads neither of them.
struct Sum {
  CanonicalForm of_indices;  // its constant is 0
  LinearForm rest;
};

class Sums {
 public:
  explicit Sums(const Expr& e) {
    rewrite(e, [&](const Node& node, std::span<const Expr> operands) {
      Expr same = with_operands(node, operands);
      handles_.emplace(&node, same);
      if (node.type == ExprType::i32) forms_.collect(node);
      return same;
    });
  }

  /// Splits an integer that reads query and key, if none of its terms reads both.
  std::optional<Sum> of(const Node& node) const {
    LinearForm indices, rest;
    for (const LinearTerm& term : forms_[&node].terms) {
      if (reads_query(*term.atom) && reads_key(*term.atom)) return {};
      (reads_query(*term.atom) || reads_key(*term.atom) ? indices : rest).terms.push_back(term);
    }
    rest.constant = forms_[&node].constant;
    const std::optional<CanonicalForm> canonical = expr::canonical(indices);
    if (!canonical) return {};
    return Sum{*canonical, std::move(rest)};
  }

  /// The form's constant and those terms whose atoms `belong`, as an expression.
  template <class Belongs>
  Expr expression(const LinearForm& form, Belongs&& belong) const {
    Expr sum = number(form.constant);
    for (const LinearTerm& term : form.terms) {
      if (belong(*term.atom)) sum = sum + handles_.at(term.atom) * number(term.coefficient);
    }
    return sum;
  }
  static Expr number(std::int64_t x) { return Expr(static_cast<std::int32_t>(x)); }

 private:
  LinearForms forms_;
  std::unordered_map<const Node*, Expr> handles_;
};

/// The outermost integers that are such sums. Empty where the same indices are summed otherwise in another, or a node
/// reads both beside them.
std::vector<std::pair<const Node*, Sum>> outermost_sums(const Expr& e, const Sums& sums) {
  std::vector<std::pair<const Node*, Sum>> found;
  std::vector<const Node*> open = {e.node()};
  std::unordered_map<const Node*, bool> seen;
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if ((!reads_query(*node) && !reads_key(*node)) || seen[node]) continue;
    seen[node] = true;
    if (node->type == ExprType::i32) {
      if (std::optional<Sum> sum = sums.of(*node)) {
        if (!found.empty() && !(found.front().second.of_indices.form == sum->of_indices.form)) return {};
        found.emplace_back(node, std::move(*sum));
        continue;
      }
    }
    if (node->op == Op::leaf) return {};
    for (const auto& below : node->operands) open.push_back(below.get());
  }
  return found;
}

/// `number` less its lower end, and the ends that it has while the indices are inside `leaves`.
struct Bounded {
  Expr number;
  std::int64_t least, most;
};
std::optional<Bounded> bounded(const Expr& number, const LeafRanges& leaves) {
  constexpr double kSmall = 1 << 29;
  const Range range = RangeAnalysis(number, Precision::f32, nullptr)(leaves);
  if (range.lo < -kSmall || range.hi > kSmall) return {};
  const auto least = static_cast<std::int32_t>(range.lo), most = static_cast<std::int32_t>(range.hi);
  return Bounded{simplify(clip(number, least, most) - least, Precision::f32), least, most};
}

}  // namespace

std::optional<TermOfSum> term_of_sum(const Expr& e, const LeafRanges& leaves, int most) {
  const LeafSet refused = {Leaf::score,  Leaf::q_token, Leaf::kv_token, Leaf::q_len,
                           Leaf::kv_len, Leaf::q_start, Leaf::kv_start};
  if (e.node()->uses.intersects(refused)) return {};
  const Sums sums(e);
  const std::vector<std::pair<const Node*, Sum>> found = outermost_sums(e, sums);
  if (found.empty()) return {};
  const LinearForm& indices = found.front().second.of_indices.form;
  const auto any = [&](auto&& reads) {
    return std::ranges::any_of(indices.terms, [&](const LinearTerm& term) { return reads(*term.atom); });
  };
  if (!any(reads_query) || !any(reads_key)) return {};
  const std::optional<Bounded> of_query = bounded(sums.expression(indices, reads_query), leaves),
                               of_key = bounded(sums.expression(indices, reads_key), leaves);
  if (!of_query || !of_key) return {};
  const std::int64_t least = of_query->least + of_key->least, last = of_query->most + of_key->most;
  if (last - least >= most) return {};

  const Expr sum = leaf::kv_idx() + Sums::number(least);
  const Expr entry = rewrite(e, [&](const Node& node, std::span<const Expr> operands) {
    const auto replaced = std::ranges::find(found, &node, [](const auto& each) { return each.first; });
    if (replaced == found.end()) return with_operands(node, operands);
    const Sum& of = replaced->second;
    return sum * Sums::number(of.of_indices.factor) + sums.expression(of.rest, [](const Node&) { return true; });
  });
  return TermOfSum{of_query->number, of_key->number, simplify(entry, Precision::f32),
                   static_cast<int>(last - least) + 1};
}

}  // namespace heddle::expr
