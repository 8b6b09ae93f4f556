#include "expr/node.h"

#include <array>
#include <unordered_set>

namespace heddle::expr {
namespace {

constexpr std::array<OpInfo, kOpCount> kOps = {{
#define HEDDLE_OP(name, form, text, arity, kind, ulp) {#name, Form::form, text, arity, Kind::kind, ulp},
#include "expr/ops.def"
}};

constexpr std::array<std::string_view, kLeafCount> kLeafNames = {
    "score", "b", "h", "q_idx", "kv_idx", "q_token", "kv_token", "q_len", "kv_len", "q_start", "kv_start"};

}  // namespace

const OpInfo& info(Op op) { return kOps[static_cast<std::size_t>(op)]; }

std::string_view name(Leaf leaf) { return kLeafNames[static_cast<std::size_t>(leaf)]; }

ExprType read_type(DType dtype) {
  if (is_floating(dtype)) return ExprType::f32;
  return dtype == DType::boolean ? ExprType::boolean : ExprType::i32;
}

std::vector<const Node*> post_order(const Expr& root) { return post_order(std::span(&root, 1)); }

std::vector<const Node*> post_order(std::span<const Expr> roots) {
  struct Visit {
    const Node* node;
    std::size_t next;
  };
  std::vector<const Node*> order;
  std::unordered_set<const Node*> seen;
  std::vector<Visit> path;
  for (const Expr& root : roots) {
    if (root.empty() || !seen.insert(root.node()).second) continue;
    path.push_back({root.node(), 0});
    while (!path.empty()) {
      Visit& top = path.back();
      if (top.next == top.node->operands.size()) {
        order.push_back(top.node);
        path.pop_back();
        continue;
      }
      const Node* below = top.node->operands[top.next++].get();
      if (seen.insert(below).second) path.push_back({below, 0});
    }
  }
  return order;
}

}  // namespace heddle::expr
