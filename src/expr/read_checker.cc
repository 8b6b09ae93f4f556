#include "expr/read_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "expr/comparisons.h"
#include "expr/range_program.h"

namespace heddle::expr {
namespace {

/// Sets of conditions that are kept. Further ones are ignored: the proof may then fail, but never wrongly succeeds.
constexpr std::size_t kMostContexts = 256;

/// A comparison of integers that holds where a sub-expression is selected, as a bound on a linear form.
struct Guard {
  const Node* comparison;
  LinearBound bound;
};

/// Facts that hold where a sub-expression is selected.
struct Context {
  std::vector<LinearBound> bounds;
  std::vector<Guard> unproven;  // guards of which some read is not known to be inside: they bound nothing yet
  Narrowing known;              // what the bounds, and the wheres of indices, say of each step
  std::vector<Range> slots;     // every node's range there
  bool empty = false;           // no element comes here
};

class ReadChecker {
 public:
  /// `reading`: the nodes below which there is a read. `terms_guard`: the terms of an `and` (`or`) guard each other.
  ReadChecker(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds, Precision precision,
              const std::unordered_set<const Node*>& reading, bool terms_guard)
      : root_(root),
        leaves_(leaves),
        bounds_(bounds),
        reading_(reading),
        terms_guard_(terms_guard),
        program_(root, precision, &bounds, true) {}

  /// The first read that is not proven inside, as a sentence; nothing if all are.
  std::optional<std::string> refusal() {
    for (const Node* node : post_order(root_)) {
      if (node->type != ExprType::i32) continue;
      if (auto form = canonical(program_.forms()[node])) integers_.emplace_back(node, std::move(*form));
    }
    contexts_.push_back({.bounds = {},
                         .unproven = {},
                         .known = Narrowing(program_.size(), kAllIntegers),
                         .slots = std::vector<Range>(program_.size())});
    program_.run(leaves_, contexts_[0].slots);
    visit(root_.node(), 0);
    while (!open_.empty()) {
      const auto [node, context] = open_.back();
      open_.pop_back();
      if (node->op == Op::read) {
        const std::optional<int> axis = axis_outside(*node, context);
        if (axis) return sentence(*node, *axis, context);
      }
      visit_operands(*node, context);
    }
    return {};
  }

 private:
  void visit(const Node* node, std::size_t context) {
    if (reading_.contains(node) && seen_.emplace(node, context).second) open_.emplace_back(node, context);
  }

  void visit_operands(const Node& node, std::size_t context) {
    const auto operand = [&](std::size_t i) { return node.operands[i].get(); };
    if (node.op == Op::where) {
      visit(operand(0), context);
      visit_under(operand(1), *operand(0), true, Holds::proven, context);
      visit_under(operand(2), *operand(0), false, Holds::proven, context);
    } else if (terms_guard_ && (node.op == Op::logical_and || node.op == Op::logical_or)) {
      visit_under(operand(0), *operand(1), node.op == Op::logical_and, Holds::where_read, context);
      visit_under(operand(1), *operand(0), node.op == Op::logical_and, Holds::where_read, context);
    } else {
      for (const auto& below : node.operands) visit(below.get(), context);
    }
  }

  /// proven: the condition's own reads are checked without the condition itself. where_read: they may need it, as the
  /// terms of an `and` may need each other, so a comparison counts only once its reads are proven inside. Each proof
  /// then rests on earlier ones.
  enum class Holds : std::uint8_t { proven, where_read };

  void visit_under(const Node* node, const Node& condition, bool value, Holds holds, std::size_t context) {
    if (!reading_.contains(node)) return;
    const std::optional<std::size_t> inside = context_under(condition, value, holds, context);
    if (inside) visit(node, *inside);
  }

  /// The context where `condition` is `value`: `context` itself if this adds no fact, none if no element comes there.
  std::optional<std::size_t> context_under(const Node& condition, bool value, Holds holds, std::size_t context) {
    const auto known = contexts_under_.find({&condition, value, holds, context});
    if (known != contexts_under_.end()) return known->second;
    const bool counts = holds == Holds::proven || reads_inside(condition, context);
    const Range& decided = slot(&condition, context);
    if (counts && (value ? decided.always_false() : decided.always_true())) return {};
    std::vector<Guard> added = guards(condition, value, context);
    if (added.empty() || contexts_.size() >= kMostContexts) return context;
    Context inside = contexts_[context];
    if (holds == Holds::proven) {
      for (const Guard& guard : added) add_bound(guard.bound, inside.bounds);
    } else {
      inside.unproven.insert(inside.unproven.end(), added.begin(), added.end());
    }
    const Condition key = {&condition, value, holds, context};
    if (!narrow(inside)) return contexts_under_[key] = {};  // the conditions contradict each other
    contexts_.push_back(std::move(inside));
    const std::size_t result = contexts_.size() - 1;
    contexts_under_[key] = result;
    if (!use_proven_guards(result)) contexts_under_[key] = {};
    return contexts_under_[key];
  }

  /// Turns guards whose reads are proven inside into bounds, which may prove the reads of further guards. False when
  /// the bounds contradict each other.
  bool use_proven_guards(std::size_t context) {
    constexpr int kRounds = 4;  // guards that read what guards guard that read
    bool changed = true;
    for (int round = 0; round < kRounds && changed; ++round) {
      const std::vector<Guard> unproven = std::exchange(contexts_[context].unproven, {});
      changed = false;
      for (const Guard& guard : unproven) {
        const bool proven = reads_inside(*guard.comparison, context);
        Context& here = contexts_[context];
        if (proven) add_bound(guard.bound, here.bounds);
        if (!proven) here.unproven.push_back(guard);
        changed = changed || proven;
      }
      if (changed && !narrow(contexts_[context])) return false;
    }
    return true;
  }

  /// Every read below `root` is inside in the context, whatever guards it.
  bool reads_inside(const Node& root, std::size_t context) {
    std::vector<const Node*> open = {&root};
    std::unordered_set<const Node*> seen;
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      if (!reading_.contains(node) || !seen.insert(node).second) continue;
      if (node->op == Op::read && axis_outside(*node, context)) return false;
      for (const auto& below : node->operands) open.push_back(below.get());
    }
    return true;
  }

  /// The comparisons that follow from `condition` being `value`.
  std::vector<Guard> guards(const Node& condition, bool value, std::size_t context) const {
    std::vector<Guard> found;
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
      if (bound) found.push_back({node, holds ? *bound : negated(*bound)});
    }
    std::erase_if(found, [](const Guard& guard) { return guard.bound.outside; });
    return found;
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
        const bool elsewhere =
            chooses && i > 0 && context_under(*node->operands[0], i == 1, Holds::proven, context) != context;
        if (!elsewhere) open.emplace_back(node->operands[i].get(), false);
      }
    }
  }

  /// Narrows a where to its first branch under the condition, and its second branch under the opposite.
  void narrow_where(const Node& where, std::size_t context) {
    Interval value = {kAllIntegers.hi, kAllIntegers.lo};
    for (const bool yes : {true, false}) {
      const Node* branch = where.operands[yes ? 1 : 2].get();
      const std::optional<std::size_t> inside = context_under(*where.operands[0], yes, Holds::proven, context);
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

  /// The first axis whose index may leave the tensor.
  std::optional<int> axis_outside(const Node& read, std::size_t context) {
    const Dims& shape = bounds_.shape(read.capture());
    for (int axis = 0; axis < shape.size(); ++axis) {
      const Node* index = read.operands[static_cast<std::size_t>(axis)].get();
      if (is_inside(index, shape[axis], context)) continue;
      narrow_wheres(index, context);  // only now, so that it takes no context from what needs none
      if (!is_inside(index, shape[axis], context)) return axis;
    }
    return {};
  }

  std::string sentence(const Node& read, int axis, std::size_t context) const {
    const Range& range = slot(read.operands[static_cast<std::size_t>(axis)].get(), context);
    return fmt::format(
        "{}: index {} ranges over [{}, {}], outside the tensor's extent of {}; read it with at({}, ..., fill), or keep "
        "the index inside with clip or where",
        quote_read(read), axis, static_cast<std::int64_t>(range.lo), static_cast<std::int64_t>(range.hi),
        bounds_.shape(read.capture())[axis], read.capture().name);
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
  using Condition = std::tuple<const Node*, bool, Holds, std::size_t>;

  Expr root_;
  LeafRanges leaves_;
  const CaptureBounds& bounds_;
  const std::unordered_set<const Node*>& reading_;
  const bool terms_guard_;
  RangeProgram program_;
  std::vector<std::pair<const Node*, CanonicalForm>> integers_;  // all that are no constants
  std::vector<Context> contexts_;
  std::map<Condition, std::optional<std::size_t>> contexts_under_;
  std::set<Visit> seen_, narrowed_;
  std::vector<Visit> open_;
};

}  // namespace

std::optional<std::string> read_outside(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds,
                                        Precision precision, const std::unordered_set<const Node*>& reading,
                                        bool terms_guard) {
  return ReadChecker(root, leaves, bounds, precision, reading, terms_guard).refusal();
}

}  // namespace heddle::expr
