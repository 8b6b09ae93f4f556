#include "plan/mods/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "expr/node.h"

namespace heddle::plan {
namespace {

using expr::Leaf;
using expr::Node;
using expr::Op;
using problem::AttentionProblem;

std::vector<Expr> mods_of(const AttentionProblem& problem) {
  std::vector<Expr> mods = {problem.score_mod, problem.mask_mod, problem.weight_mod};
  std::erase_if(mods, [](const Expr& mod) { return mod.empty(); });
  return mods;
}

bool is_index(const Node& node, Leaf leaf) { return node.op == Op::leaf && node.leaf() == leaf; }

/// The constant of a node; 0 for any other node.
std::int32_t constant_of(const Node& node) {
  return node.op == Op::constant && node.type == ExprType::i32 ? node.i32() : 0;
}

/// `of_granule` reads nothing but b and index // rows.
bool reads_granules_alone(const Expr& of_granule, Leaf index, std::int32_t rows) {
  const Expr without = expr::rewrite(of_granule, [&](const Node& node, std::span<const Expr> operands) {
    const bool divides = node.op == Op::floor_div && is_index(*node.operands[0], index);
    return divides && constant_of(*node.operands[1]) == rows ? Expr(0) : expr::with_operands(node, operands);
  });
  constexpr std::array kOthers = {Leaf::score,    Leaf::h,     Leaf::q_idx,  Leaf::kv_idx,  Leaf::q_token,
                                  Leaf::kv_token, Leaf::q_len, Leaf::kv_len, Leaf::q_start, Leaf::kv_start};
  return std::ranges::none_of(kOthers, [&](Leaf leaf) { return without.node()->uses.has(leaf); });
}

/// Rows of a granule, if the node is of_granule * rows + index % rows; else 0.
std::int32_t granule_of(const Node& node, Leaf index) {
  if (node.op != Op::add || node.type != ExprType::i32) return 0;
  for (const std::size_t i : {0, 1}) {
    const Node &product = *node.operands[i], &rest = *node.operands[1 - i];
    if (product.op != Op::mul || rest.op != Op::mod || !is_index(*rest.operands[0], index)) continue;
    const std::int32_t rows = constant_of(*rest.operands[1]);
    if (rows <= 0 || rows % kPlacedRows != 0) continue;
    for (const std::size_t j : {0, 1}) {
      if (constant_of(*product.operands[j]) == rows &&
          reads_granules_alone(expr::operand(product, 1 - j), index, rows)) {
        return rows;
      }
    }
  }
  return 0;
}

Expr with_leaf(const Expr& mod, const Expr& position, const Expr& leaf) {
  if (mod.empty() || position.empty()) return mod;
  return expr::rewrite(mod, [&](const Node& node, std::span<const Expr> operands) {
    return &node == position.node() ? leaf : expr::with_operands(node, operands);
  });
}

struct Place {
  Expr position;
  int rows = 0;
};
/// The one position by which all mods read an index. `token`: the row's number in its tensor, which kernels work out
/// from the index, so no mod may read it.
Place place_of(std::span<const Expr> mods, Leaf index, Leaf token) {
  for (const Node* node : expr::post_order(mods)) {
    if (node->uses.has(token)) return {};
  }
  for (const Node* node : expr::post_order(mods)) {
    const std::int32_t rows = granule_of(*node, index);
    if (rows == 0) continue;
    const Expr position = expr::with_operands(*node, std::array{expr::operand(*node, 0), expr::operand(*node, 1)});
    const bool reads_all = std::ranges::none_of(
        mods, [&](const Expr& mod) { return with_leaf(mod, position, 0).node()->uses.has(index); });
    return reads_all ? Place{position, rows} : Place{};
  }
  return {};
}

}  // namespace

Places places_of(const AttentionProblem& problem) {
  // Forms that no batch changes know no place of a batch's.
  if (problem.batch_invariant || problem.device_kv_starts) return {};
  const std::vector<Expr> mods = mods_of(problem);
  Places places;
  const auto begins_at_0 = [&](std::int64_t Sequence::*start) {
    return std::ranges::all_of(problem.sequences, [&](const Sequence& sequence) { return sequence.*start == 0; });
  };
  if (!problem.device_starts && begins_at_0(&Sequence::q_start)) {
    const Place of_queries = place_of(mods, Leaf::q_idx, Leaf::q_token);
    places.query = of_queries.position;
    places.query_rows = of_queries.rows;
  }
  if (begins_at_0(&Sequence::kv_start)) {
    const Place of_keys = place_of(mods, Leaf::kv_idx, Leaf::kv_token);
    places.key = of_keys.position;
    places.key_rows = of_keys.rows;
  }
  return places;
}

AttentionProblem at_places(const AttentionProblem& problem, const Places& places) {
  AttentionProblem result = problem;
  for (Expr* mod : {&result.score_mod, &result.mask_mod, &result.weight_mod}) {
    *mod = with_leaf(with_leaf(*mod, places.query, leaf::q_idx()), places.key, leaf::kv_idx());
  }
  return result;
}

expr::LeafRanges at_places(expr::LeafRanges leaves, const Places& places) {
  const auto range_of = [&](const Expr& position, Leaf index) {
    if (position.empty()) return leaves[index];
    return expr::RangeAnalysis(position, expr::Precision::f32, nullptr)(leaves);
  };
  const expr::Range query = range_of(places.query, Leaf::q_idx), key = range_of(places.key, Leaf::kv_idx);
  leaves[Leaf::q_idx] = query;
  leaves[Leaf::kv_idx] = key;
  return leaves;
}

std::string describe_places(const Places& places) {
  const auto side = [](const char* name, int rows) { return fmt::format("{} by granules of {} rows", name, rows); };
  if (places.query.empty()) return places.key.empty() ? "" : side("keys", places.key_rows);
  if (places.key.empty()) return side("queries", places.query_rows);
  return side("queries", places.query_rows) + ", " + side("keys", places.key_rows);
}

}  // namespace heddle::plan
