#include "mask/equal_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/hash.h"
#include "mask/shape.h"

namespace heddle::mask {
namespace {

using expr::Leaf;
using expr::LeafSet;
using expr::Node;
using expr::Op;

/// Values that are computed at most from one row that repeats to the next: about 4 ms.
constexpr std::int64_t kBudget = 1 << 16;

/// Most terms of one sum, nested sums included.
constexpr int kMostParts = 256;

constexpr LeafSet kQuery{Leaf::q_idx, Leaf::q_token}, kKey{Leaf::kv_idx, Leaf::kv_token};

bool uses_query(const Node& node) { return node.uses.intersects(kQuery); }
bool uses_key(const Node& node) { return node.uses.intersects(kKey); }

/// The terms through which a mask sees the query.
class QueryTerms {
 public:
  explicit QueryTerms(const Classification& what) : what_(what) {}

  /// Whatever decides the value of `e`.
  void collect(const Expr& e) {
    const Node& node = *e.node();
    if (!uses_query(node) || !seen_.insert(&node).second) return;
    if (!uses_key(node)) return add(e);
    if (node.op == Op::mod && node.type == ExprType::i32 && collect_modulo(node)) return;
    for (std::size_t i = 0; i < node.operands.size(); ++i) collect(expr::operand(node, i));
  }

  const std::vector<Expr>& terms() const { return terms_; }
  /// False when a term differs from query to query, or may be computed otherwise elsewhere.
  bool may_repeat() const { return may_repeat_; }

 private:
  void add(const Expr& term) {
    bool folds = false;  // takes the same value for several queries
    for (const Node* node : expr::post_order(term)) {
      // Other evaluators may round these operations otherwise, and so tell apart two queries that are equal here.
      if (expr::info(node->op).ulp > 0) may_repeat_ = false;
      switch (node->op) {
        case Op::constant:
        case Op::leaf:
        case Op::add:
        case Op::sub:
        case Op::mul:
        case Op::neg:
        case Op::to_f32:
        case Op::random_uniform:
          break;
        default:
          folds = folds || uses_query(*node);
      }
    }
    may_repeat_ = may_repeat_ && folds;
    terms_.push_back(term);
  }

  /// x % c of a sum x: what the sum adds up from the query alone counts modulo c. False when x may wrap where that
  /// changes the remainder, or c is no positive constant.
  bool collect_modulo(const Node& node) {
    const Node& divisor = *node.operands[1];
    if (divisor.op != Op::constant || divisor.i32() <= 0) return false;
    Sum sum;
    collect_parts(expr::operand(node, 0), 1, sum);
    const bool wraps_well = std::has_single_bit(static_cast<std::uint32_t>(divisor.i32()));
    if (!sum.is_known || (!wraps_well && sum.largest > std::numeric_limits<std::int32_t>::max())) return false;
    for (const Expr& part : sum.mixed) collect(part);
    if (!sum.of_query.empty()) add(sum.of_query % expr::operand(node, 1));
    return true;
  }

  /// The parts of a sum of multiples.
  struct Sum {
    Expr of_query;            // the sum of those that see no key
    std::vector<Expr> mixed;  // those that see both
    double largest = 0;       // bounds the magnitude of every partial sum
    int parts = 0;
    bool is_known = true;  // no factor left i32, and there are not too many parts: a node may be added to itself again
                           // and again
  };
  void collect_parts(const Expr& e, std::int64_t factor, Sum& sum) {
    const Node& node = *e.node();
    sum.is_known = sum.is_known && ++sum.parts <= kMostParts;
    if (uses_query(node) && uses_key(node)) {
      const auto below = [&](std::size_t i, std::int64_t times) {
        const std::int64_t product = factor * times;
        sum.is_known = sum.is_known && product == static_cast<std::int32_t>(product);
        if (sum.is_known) collect_parts(expr::operand(node, i), product, sum);
      };
      if (node.op == Op::add || node.op == Op::sub) {
        below(0, 1);
        return below(1, node.op == Op::add ? 1 : -1);
      }
      if (node.op == Op::neg) return below(0, -1);
      for (const std::size_t i : {0, 1}) {
        if (node.op == Op::mul && node.operands[i]->op == Op::constant) return below(1 - i, node.operands[i]->i32());
      }
      sum.mixed.push_back(e);
    } else if (uses_query(node)) {
      const Expr multiple = factor == 1 ? e : e * static_cast<std::int32_t>(factor);
      sum.of_query = sum.of_query.empty() ? multiple : sum.of_query + multiple;
    }
    const expr::Range range = expr::RangeAnalysis(e, what_.precision, &what_.captures)(what_.leaves);
    sum.largest += std::abs(static_cast<double>(factor)) * std::max(std::abs(range.lo), std::abs(range.hi));
  }

  const Classification& what_;
  std::unordered_set<const Node*> seen_;
  std::vector<Expr> terms_;
  bool may_repeat_ = true;
};

std::uint64_t bits_of(const expr::Value& value) {
  if (const double* real = std::get_if<double>(&value)) return std::bit_cast<std::uint64_t>(*real);
  if (const bool* boolean = std::get_if<bool>(&value)) return *boolean ? 1 : 0;
  return static_cast<std::uint64_t>(std::get<std::int32_t>(value));
}

}  // namespace

EqualRows::EqualRows(const Classification& what) : what_(what) {
  QueryTerms found(what);
  found.collect(what.mask);
  may_repeat_ = found.may_repeat();
  if (!may_repeat_) return;
  for (const Expr& term : found.terms()) {
    terms_.push_back({.expression = term,
                      .ranges = MaskRanges(term, what.precision, what.captures),
                      .interpreter = expr::Interpreter(term, what.bindings, what.precision)});
  }
}

std::size_t EqualRows::Hash::operator()(const std::vector<std::uint64_t>& words) const {
  return base::hash_bytes(words.data(), words.size() * sizeof(std::uint64_t));
}

std::vector<std::int32_t> EqualRows::first_equal(const Matrix& matrix) {
  if (!may_repeat_) return {};
  const auto rows = static_cast<std::int32_t>(block_count(sequence_of(matrix).q_len, what_.block.q));
  std::unordered_map<std::vector<std::uint64_t>, Candidate, Hash> candidates;
  std::vector<std::int32_t> first_equal;
  first_equal.reserve(static_cast<std::size_t>(rows));
  bool some = false;
  budget_ = kBudget;
  first_of_values_.clear();
  for (std::int32_t row = 0; row < rows; ++row) {
    Ranges ranges = ranges_of(matrix, row);
    const auto [known, added] = candidates.try_emplace(std::move(ranges.words), Candidate{row});
    std::int32_t first = row;
    if (!added) first = ranges.are_values ? known->second.first : first_of_equal_values(matrix, row, known->second);
    first_equal.push_back(first);
    if (first == row) continue;
    some = true;
    budget_ = kBudget;
  }
  return some ? std::move(first_equal) : std::vector<std::int32_t>();
}

EqualRows::Ranges EqualRows::ranges_of(const Matrix& matrix, std::int32_t row) {
  const Sequence& sequence = sequence_of(matrix);
  const std::int64_t begin = sequence.q_start + row * what_.block.q;
  const std::int64_t end = std::min(begin + what_.block.q, sequence.q_start + sequence.q_len);
  expr::LeafRanges leaves = MaskRanges::leaves(sequence, matrix.sequence, matrix.head);
  leaves[Leaf::q_idx] = {static_cast<double>(begin), static_cast<double>(end - 1)};
  Ranges ranges{.words = {}, .are_values = true};
  for (const Term& term : terms_) {
    const expr::Range range = term.ranges.analysis()(leaves, scratch_);
    ranges.words.push_back(std::bit_cast<std::uint64_t>(range.lo));
    ranges.words.push_back(std::bit_cast<std::uint64_t>(range.hi));
    // A real may be either zero, or NaN as well.
    ranges.are_values = ranges.are_values && range.is_point() && term.expression.type() != ExprType::f32;
  }
  return ranges;
}

std::int32_t EqualRows::first_of_equal_values(const Matrix& matrix, std::int32_t row, Candidate& candidate) {
  const std::int64_t queries = std::min(what_.block.q, sequence_of(matrix).q_len);
  const std::int64_t cost = queries * std::ssize(terms_) * (candidate.evaluated ? 1 : 2);
  if (cost > budget_) return row;
  budget_ -= cost;
  if (!candidate.evaluated) first_of_values_.try_emplace(values_of(matrix, candidate.first), candidate.first);
  candidate.evaluated = true;
  return first_of_values_.try_emplace(values_of(matrix, row), row).first->second;
}

EqualRows::Values EqualRows::values_of(const Matrix& matrix, std::int32_t row) const {
  const Sequence& sequence = sequence_of(matrix);
  const auto leaf = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  expr::Element element;
  element[Leaf::b] = leaf(matrix.sequence);
  element[Leaf::h] = leaf(matrix.head);
  element[Leaf::q_len] = leaf(sequence.q_len);
  element[Leaf::kv_len] = leaf(sequence.kv_len);
  element[Leaf::q_start] = leaf(sequence.q_start);
  element[Leaf::kv_start] = leaf(sequence.kv_start);
  std::set<Values> tuples;
  Values tuple;
  const std::int64_t begin = row * what_.block.q, end = std::min(begin + what_.block.q, sequence.q_len);
  for (std::int64_t q = begin; q < end; ++q) {
    element[Leaf::q_idx] = leaf(sequence.q_start + q);
    element[Leaf::q_token] = leaf(sequence.q_begin + q);
    tuple.clear();
    for (const Term& term : terms_) tuple.push_back(bits_of(term.interpreter(element)));
    tuples.insert(tuple);
  }
  Values values;
  for (const Values& one : tuples) values.insert(values.end(), one.begin(), one.end());
  return values;
}

}  // namespace heddle::mask
