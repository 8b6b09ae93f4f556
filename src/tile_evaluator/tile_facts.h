// Facts about each node of an expression that lowering starts from: over what it varies within a tile, and how.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "tile_evaluator/tile_program.h"

namespace heddle::cpu {

struct Fact {
  Extent extent = Extent::scalar;
  /// An i32 that is a scalar + row * per_row + column * per_column, modulo 2^32.
  bool linear = false;
  std::uint32_t per_row = 0, per_column = 0;
  int users = 0;
};

inline bool varies_by_row(Extent extent) { return extent != Extent::scalar && extent != Extent::column; }
inline bool varies_by_column(Extent extent) { return extent != Extent::scalar && extent != Extent::row; }
inline bool is_comparison(expr::Op op) { return expr::info(op).kind == expr::Kind::cmp; }
inline bool is_equality(expr::Op op) { return op == expr::Op::eq || op == expr::Op::ne; }

class Facts {
 public:
  /// `diagonal_comparisons` as in lower().
  Facts(const Expr& root, bool diagonal_comparisons);

  const Fact& operator[](const expr::Node& node) const { return facts_.at(&node); }
  const Fact& operand(const expr::Node& node, std::size_t i) const { return facts_.at(node.operands[i].get()); }

  /// An ordered comparison that is a diagonal although its sides are not.
  bool needs_guard(const expr::Node& node) const;

 private:
  Fact learn(const expr::Node& node) const;
  void collect(const expr::Node& node, Fact& fact) const;
  void compare(const expr::Node& node, Fact& fact) const;

  bool diagonal_comparisons_;
  std::unordered_map<const expr::Node*, Fact> facts_;
};

}  // namespace heddle::cpu
