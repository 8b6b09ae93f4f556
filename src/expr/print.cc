// Prints the text form. It does not recurse, and it bounds the text's length. The plain text of a shared graph can be
// exponentially longer than the graph: long texts give names to what is used more than once.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "expr/grammar.h"
#include "expr/node.h"
#include "heddle/error.h"

namespace heddle {
namespace expr {
namespace {

constexpr std::size_t kQuoteLength = 60;

std::string constant_text(const Node& node) {
  if (node.type == ExprType::i32) return fmt::format("{}", node.i32());
  if (node.type == ExprType::boolean) return node.boolean() ? "True" : "False";
  const double x = node.f32();
  std::string text = std::isnan(x) ? "nan" : fmt::format("{}", x);
  if (std::isfinite(x) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_comparison(const Node& node) { return info(node.op).kind == Kind::cmp; }

/// True for (a < b and b < c) and c < d, ..., which is written a < b < c < d.
bool is_chain(const Node& node) {
  const Node* left = &node;
  while (left->op == Op::logical_and) {
    const Node& right = *left->operands[1];
    left = left->operands[0].get();
    const Node& nearest = left->op == Op::logical_and ? *left->operands[1] : *left;
    if (!is_comparison(right) || !is_comparison(nearest) || nearest.operands[1] != right.operands[0]) return false;
  }
  return is_comparison(*left);
}

Level level_of(const Node& node, bool with_chains) {
  if (node.op == Op::constant) {
    const bool negative = node.type == ExprType::f32   ? std::signbit(node.f32()) && !std::isnan(node.f32())
                          : node.type == ExprType::i32 ? node.i32() < 0
                                                       : false;
    return negative ? Level::unary : Level::atom;
  }
  return with_chains && node.op == Op::logical_and && is_chain(node) ? Level::comparison : level(node.op);
}

/// The names of nodes that have been printed.
using Names = std::unordered_map<const Node*, std::string>;

class Printer {
 public:
  /// At most about `limit` characters; complete() tells whether that was all. Nodes in `names`, if there are any, are
  /// printed as their names.
  Printer(const Node& root, std::size_t limit, const Names* names = nullptr) : names_(names) {
    pending_.push_back({{}, &root, Level::conditional});
    while (!pending_.empty() && out_.size() <= limit) {
      const Piece piece = pending_.back();
      pending_.pop_back();
      if (piece.node == nullptr) {
        out_ += piece.text;
      } else {
        expand(*piece.node, piece.at_least);
      }
    }
    complete_ = pending_.empty() && out_.size() <= limit;
  }

  bool complete() const { return complete_; }
  std::string& text() { return out_; }
  const std::string& text() const { return out_; }

 private:
  /// A node, in brackets if it binds less tightly than asked, or fixed text.
  struct Piece {
    std::string_view text;
    const Node* node = nullptr;
    Level at_least = Level::conditional;
  };

  void expand(const Node& node, Level at_least) {
    parts_.clear();
    if (names_ != nullptr) {
      if (const auto found = names_->find(&node); found != names_->end()) {
        out_ += found->second;
        return;
      }
    }
    const Level own = level_of(node, names_ == nullptr);
    if (own < at_least) add("(");
    add_form(node, own);
    if (own < at_least) add(")");
    pending_.insert(pending_.end(), parts_.rbegin(), parts_.rend());
  }

  void add(std::string_view text) { parts_.push_back({text}); }
  void add(const Node& node, Level at_least) { parts_.push_back({{}, &node, at_least}); }
  void add_text(const std::string& text) {
    owned_.push_back(text);
    add(std::string_view(owned_.back()));
  }

  void add_form(const Node& node, Level own) {
    const OpInfo& row = info(node.op);
    switch (row.form) {
      case Form::leaf:
        if (node.op == Op::constant) return add_text(constant_text(node));
        return add(node.op == Op::leaf ? name(node.leaf()) : std::string_view(node.param().name));
      case Form::prefix:
        add(row.text);
        if (node.op == Op::logical_not) add(" ");
        return add(*node.operands[0], own);
      case Form::infix:
        return node.op == Op::logical_and && own == Level::comparison ? add_chain(node) : add_infix(node, own);
      case Form::call:
        return node.op == Op::read ? add_read(node) : add_call(node);
    }
  }

  void add_infix(const Node& node, Level own) {
    add(*node.operands[0], own == Level::comparison ? tighter(own) : own);
    add_operator(node);
    add(*node.operands[1], tighter(own));
  }

  void add_chain(const Node& node) {
    std::vector<const Node*> links;
    const Node* left = &node;
    for (; left->op == Op::logical_and; left = left->operands[0].get()) links.push_back(left->operands[1].get());
    add_infix(*left, Level::comparison);
    for (auto link = links.rbegin(); link != links.rend(); ++link) {
      add_operator(**link);
      add(*(*link)->operands[1], tighter(Level::comparison));
    }
  }

  void add_operator(const Node& node) {
    add(" ");
    add(info(node.op).text);
    add(" ");
  }

  void add_read(const Node& node) {
    add(node.capture().name);
    if (node.operands.empty()) return;
    add("[");
    add_list(node);
    add("]");
  }

  void add_call(const Node& node) {
    add(info(node.op).text);
    add("(");
    if (node.op == Op::at) {
      add(node.capture().name);
      add(", ");
    }
    if ((node.op == Op::min || node.op == Op::max) && names_ == nullptr) {
      add_folded(node);
    } else {
      add_list(node);
    }
    add(")");
  }

  /// min(min(a, b), c) is written min(a, b, c).
  void add_folded(const Node& node) {
    std::vector<const Node*> rest;
    const Node* first = &node;
    for (; first->op == node.op; first = first->operands[0].get()) rest.push_back(first->operands[1].get());
    add(*first, Level::conditional);
    for (auto next = rest.rbegin(); next != rest.rend(); ++next) {
      add(", ");
      add(**next, Level::conditional);
    }
  }

  void add_list(const Node& node) {
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      if (i > 0) add(", ");
      add(*node.operands[i], Level::conditional);
    }
  }

  const Names* names_;
  std::string out_;
  std::vector<Piece> pending_;  // the next one last
  std::vector<Piece> parts_;
  std::deque<std::string> owned_;  // does not move
  bool complete_ = false;
};

/// How deep the plain text of a node nests where `named` ones are names; counted in brackets, whether it has them or
/// not.
class Nesting {
 public:
  int of(const Node& node) const {
    const bool from_the_left = info(node.op).form == Form::infix;  // a + b + c has no brackets
    int deepest = 0;
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      deepest = std::max(deepest, below_.at(node.operands[i].get()) + (from_the_left && i == 0 ? 0 : 1));
    }
    return deepest;
  }
  void set(const Node& node, int nesting) { below_[&node] = nesting; }

 private:
  std::unordered_map<const Node*, int> below_;
};

bool nests_deep(std::span<const Node* const> nodes) {
  if (nodes.back()->depth <= kMaxPlainNesting) return false;
  Nesting nesting;
  int deepest = 0;
  for (const Node* node : nodes) {
    const int own = nesting.of(*node);
    nesting.set(*node, own);
    deepest = std::max(deepest, own);
  }
  return deepest > kMaxPlainNesting;
}

/// The next of _1, _2, ... that is neither a capture nor a param.
std::string next_name(const Symbols& symbols, int& number) {
  while (true) {
    std::string name = fmt::format("_{}", ++number);
    if (!symbols.captures.contains(name) && !symbols.params.contains(name)) return name;
  }
}

/// `_1 = ...; _2 = ...; ...`: what is used more than once, and what nests deep, gets a name. Empty if that is longer
/// than `limit`.
std::string print_with_names(const Expr& e, std::span<const Node* const> nodes, std::size_t limit) {
  constexpr int kNestingOfAName = 50;
  std::unordered_map<const Node*, int> uses;
  for (const Node* node : nodes) {
    for (const auto& operand : node->operands) ++uses[operand.get()];
  }
  const Symbols symbols = symbols_of(e);
  Names names;
  Nesting nesting;
  std::string text;
  int number = 0;
  for (const Node* node : nodes) {
    const int own = nesting.of(*node);
    const bool is_root = node == e.node();
    const bool is_named = !is_root && !node->operands.empty() && (uses[node] > 1 || own >= kNestingOfAName);
    nesting.set(*node, is_named ? 0 : own);
    if (!is_named && !is_root) continue;
    const Printer printer(*node, limit, &names);
    text += is_root ? printer.text() : fmt::format("{} = {}; ", next_name(symbols, number), printer.text());
    if (!printer.complete() || text.size() > limit) return {};
    if (is_named) names[node] = fmt::format("_{}", number);
  }
  return text;
}

}  // namespace

std::string quote(const Expr& e) {
  if (e.empty()) return "`` (empty)";
  Printer printer(*e.node(), kQuoteLength);
  if (printer.complete()) return fmt::format("`{}`", printer.text());
  printer.text().resize(kQuoteLength - 4);
  return fmt::format("`{} ...`", printer.text());
}

}  // namespace expr

std::string print(const Expr& e) {
  if (e.empty()) return "";
  const std::vector<const expr::Node*> nodes = expr::post_order(e);
  const bool is_deep = expr::nests_deep(nodes);
  if (!is_deep) {
    expr::Printer plain(*e.node(), expr::kMaxPlainLength);
    if (plain.complete()) return std::move(plain.text());
  }
  std::string text = expr::print_with_names(e, nodes, expr::kMaxTextLength);
  if (text.empty()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the text of this expression is longer than {} bytes: {}",
                                                         expr::kMaxTextLength, expr::quote(e)));
  }
  return text;
}

}  // namespace heddle
