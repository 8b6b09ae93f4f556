// Proof that every read stays inside its tensor. Each read is looked at once for each set of conditions under which it
// is selected; the conditions bound linear forms, and through them the forms and atoms of the indices. An index that is
// not inside by that is looked at again: a where in it is what its branches are under its condition.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "expr/comparisons.h"
#include "expr/range_program.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

/// Beyond so many sets of conditions, further ones are ignored: the proof may then fail, but never wrongly succeeds.
constexpr std::size_t kMostContexts = 256;

/// What holds where a sub-expression is selected.
struct Context {
  std::vector<LinearBound> bounds;
  Narrowing known;           // what the bounds, and the wheres of indices, say of each step
  std::vector<Range> slots;  // every node's range there
  bool empty = false;        // no element comes here
};

class ReadChecker {
 public:
  ReadChecker(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds, Precision precision)
      : root_(root), leaves_(leaves), bounds_(bounds), program_(root, precision, &bounds, true) {}

  void check() {
    for (const Node* node : post_order(root_)) {
      if (node->type != ExprType::i32) continue;
      if (auto form = canonical(program_.forms()[node])) integers_.emplace_back(node, std::move(*form));
    }
    contexts_.push_back({{}, Narrowing(program_.size(), kAllIntegers), std::vector<Range>(program_.size())});
    program_.run(leaves_, contexts_[0].slots);
    visit(root_.node(), 0);
    while (!open_.empty()) {
      const auto [node, context] = open_.back();
      open_.pop_back();
      check_node(*node, context);
    }
  }

 private:
  void visit(const Node* node, std::size_t context) {
    if (seen_.emplace(node, context).second) open_.emplace_back(node, context);
  }

  void check_node(const Node& node, std::size_t context) {
    if (node.op == Op::read) check_read(node, context);
    if (node.op != Op::where) {
      for (const auto& below : node.operands) visit(below.get(), context);
      return;
    }
    visit(node.operands[0].get(), context);
    visit_branch(node, true, context);
    visit_branch(node, false, context);
  }

  void visit_branch(const Node& where, bool yes, std::size_t context) {
    const std::optional<std::size_t> inside = branch_context(where, yes, context);
    if (inside) visit(where.operands[yes ? 1 : 2].get(), *inside);
  }

  /// The context of a branch: `context` itself when nothing more is known there, none when no element selects it.
  std::optional<std::size_t> branch_context(const Node& where, bool yes, std::size_t context) {
    const auto known = branch_contexts_.find({&where, yes, context});
    if (known != branch_contexts_.end()) return known->second;
    const Node* condition = where.operands[0].get();
    const Range& decided = slot(condition, context);
    if (yes ? decided.always_false() : decided.always_true()) return {};
    std::vector<LinearBound> added;
    collect_bounds(*condition, yes, context, added);
    if (added.empty() || contexts_.size() >= kMostContexts) return context;
    Context inside = contexts_[context];
    for (const LinearBound& bound : added) add_bound(bound, inside.bounds);
    std::optional<std::size_t>& result = branch_contexts_[{&where, yes, context}];
    if (!narrow(inside)) return result;  // the conditions contradict each other
    contexts_.push_back(std::move(inside));
    return result = contexts_.size() - 1;
  }

  /// The bounds on linear forms that follow from `condition` being `value`.
  void collect_bounds(const Node& condition, bool value, std::size_t context, std::vector<LinearBound>& bounds) const {
    std::vector<std::pair<const Node*, bool>> open = {{&condition, value}};
    while (!open.empty()) {
      const auto [node, holds] = open.back();
      open.pop_back();
      if (node->op == Op::logical_not) open.emplace_back(node->operands[0].get(), !holds);
      if (node->op == (holds ? Op::logical_and : Op::logical_or)) {
        for (const auto& below : node->operands) open.emplace_back(below.get(), holds);
      }
      if (!is_comparison(node->op) || node->operands[0]->type != ExprType::i32) continue;
      if (!program_.is_exact(program_.step_of(node), contexts_[context].slots)) continue;
      std::optional<LinearBound> bound = bound_of(node->op, difference(*node));
      if (bound) bounds.push_back(holds ? *bound : negated(*bound));
    }
    std::erase_if(bounds, [](const LinearBound& bound) { return bound.outside; });
  }

  LinearForm difference(const Node& comparison) const {
    const LinearForms& forms = program_.forms();
    return combine(forms[comparison.operands[0].get()], 1, forms[comparison.operands[1].get()], -1, false);
  }

  /// A form has one bound in a context.
  static void add_bound(const LinearBound& bound, std::vector<LinearBound>& bounds) {
    for (LinearBound& known : bounds) {
      if (known.form != bound.form) continue;
      known.interval = {std::max(known.interval.lo, bound.interval.lo), std::min(known.interval.hi, bound.interval.hi)};
      return;
    }
    bounds.push_back(bound);
  }

  /// Ranges of all nodes under the context's bounds. False when no element satisfies them.
  bool narrow(Context& context) const {
    constexpr int kRounds = 3;  // a bound narrows an atom, which tightens another bound
    for (int round = 0; round < kRounds; ++round) {
      for (const LinearBound& bound : context.bounds) {
        if (bound.interval.empty()) return false;
        narrow_atoms(bound, context.slots, context.known);
        narrow_forms(bound, context.known);
      }
      if (!program_.run(leaves_, context.slots, context.known)) return false;
    }
    return true;
  }

  /// Narrows the integer wheres below `root` in the context, the innermost first. It calls itself (narrow_where) only
  /// for a deeper context, so its depth is bounded by their number.
  void narrow_wheres(const Node* root, std::size_t context) {
    std::vector<std::pair<const Node*, bool>> open = {{root, false}};
    while (!open.empty()) {
      const auto [node, below_done] = open.back();
      open.pop_back();
      if (below_done) {
        narrow_where(*node, context);
        continue;
      }
      if (!narrowed_.emplace(node, context).second) continue;
      const bool chooses = node->op == Op::where && node->type == ExprType::i32;
      if (chooses) open.emplace_back(node, true);
      for (std::size_t i = 0; i < node->operands.size(); ++i) {
        const bool elsewhere = chooses && i > 0 && branch_context(*node, i == 1, context) != context;
        if (!elsewhere) open.emplace_back(node->operands[i].get(), false);
      }
    }
  }

  /// A where is its first branch as it is where the condition holds, or its second as it is where it does not.
  void narrow_where(const Node& where, std::size_t context) {
    Interval value = {kAllIntegers.hi, kAllIntegers.lo};
    for (const bool yes : {true, false}) {
      const Node* branch = where.operands[yes ? 1 : 2].get();
      const std::optional<std::size_t> inside = branch_context(where, yes, context);
      if (inside && *inside != context) narrow_wheres(branch, *inside);
      if (!inside || contexts_[*inside].empty) continue;
      const Range& range = slot(branch, *inside);
      value.lo = std::min(value.lo, static_cast<long long>(range.lo));
      value.hi = std::max(value.hi, static_cast<long long>(range.hi));
    }
    const Range& before = slot(&where, context);
    if (static_cast<double>(value.lo) <= before.lo && static_cast<double>(value.hi) >= before.hi) return;
    Context& here = contexts_[context];
    restrict(&where, value, here.known);
    here.empty = here.empty || !narrow(here);
  }

  void restrict(const Node* node, Interval interval, Narrowing& narrowing) const {
    Interval& known = narrowing[static_cast<std::size_t>(program_.step_of(node))];
    known = {std::max(known.lo, interval.lo), std::min(known.hi, interval.hi)};
  }

  /// Each atom of lo <= sum of terms <= hi, given the ranges of the others.
  void narrow_atoms(const LinearBound& bound, const std::vector<Range>& slots, Narrowing& narrowing) const {
    for (const LinearTerm& term : bound.form.terms) {
      Interval rest = {0, 0};
      for (const LinearTerm& other : bound.form.terms) {
        if (other.atom == term.atom) continue;
        const Range& atom = slots[static_cast<std::size_t>(program_.step_of(other.atom))];
        const Interval part =
            scaled({static_cast<std::int64_t>(atom.lo), static_cast<std::int64_t>(atom.hi)}, other.coefficient, 0);
        rest = {rest.lo + part.lo, rest.hi + part.hi};
      }
      Interval atom = kAllIntegers;
      if (bound.interval.lo != kAllIntegers.lo) atom.lo = bound.interval.lo - rest.hi;
      if (bound.interval.hi != kAllIntegers.hi) atom.hi = bound.interval.hi - rest.lo;
      if (term.coefficient < 0) atom = {-atom.hi, -atom.lo};
      const std::int64_t factor = std::abs(term.coefficient);
      if (atom.lo != kAllIntegers.lo) atom.lo = ceil_quotient(atom.lo, factor);
      if (atom.hi != kAllIntegers.hi) atom.hi = floor_quotient(atom.hi, factor);
      restrict(term.atom, atom, narrowing);
    }
  }

  /// Every node whose form is a multiple of the bounded one plus a constant.
  void narrow_forms(const LinearBound& bound, Narrowing& narrowing) const {
    for (const auto& [node, form] : integers_) {
      if (form.form != bound.form) continue;
      restrict(node, scaled(bound.interval, form.factor, form.constant), narrowing);
    }
  }

  /// factor * x + constant; open ends stay open.
  static Interval scaled(Interval x, std::int64_t factor, std::int64_t constant) {
    const auto end = [&](std::int64_t value) {
      const bool open = value == kAllIntegers.lo || value == kAllIntegers.hi;
      if (open) return factor > 0 ? value : -value;
      return factor * value + constant;
    };
    return factor > 0 ? Interval{end(x.lo), end(x.hi)} : Interval{end(x.hi), end(x.lo)};
  }

  void check_read(const Node& read, std::size_t context) {
    const Dims& shape = bounds_.shape(read.capture());
    for (int axis = 0; axis < shape.size(); ++axis) {
      const Node* index = read.operands[static_cast<std::size_t>(axis)].get();
      if (is_inside(index, shape[axis], context)) continue;
      narrow_wheres(index, context);  // only now, so that it takes no context from what needs none
      if (is_inside(index, shape[axis], context)) continue;
      const Range& range = slot(index, context);
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: index {} ranges over [{}, {}], outside the tensor's extent of {}; read it with "
                              "at({}, ..., fill), or keep the index inside with clip or where",
                              quote_read(read), axis, static_cast<std::int64_t>(range.lo),
                              static_cast<std::int64_t>(range.hi), shape[axis], read.capture().name));
    }
  }

  bool is_inside(const Node* index, std::int64_t extent, std::size_t context) const {
    const Range& range = slot(index, context);
    return contexts_[context].empty || (range.lo >= 0 && range.hi < static_cast<double>(extent));
  }

  std::string quote_read(const Node& read) const {
    return quote(with_operands(read, std::vector<Expr>(read.operands.begin(), read.operands.end())));
  }

  const Range& slot(const Node* node, std::size_t context) const {
    return contexts_[context].slots[static_cast<std::size_t>(program_.step_of(node))];
  }

  using Visit = std::pair<const Node*, std::size_t>;
  using Branch = std::tuple<const Node*, bool, std::size_t>;

  Expr root_;
  LeafRanges leaves_;
  const CaptureBounds& bounds_;
  RangeProgram program_;
  std::vector<std::pair<const Node*, CanonicalForm>> integers_;  // all that are no constants
  std::vector<Context> contexts_;
  std::map<Branch, std::optional<std::size_t>> branch_contexts_;
  std::set<Visit> seen_, narrowed_;
  std::vector<Visit> open_;
};

}  // namespace

void check_reads_inside(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds, Precision precision) {
  ReadChecker(root, leaves, bounds, precision).check();
}

}  // namespace heddle::expr
