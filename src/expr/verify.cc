#include "expr/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "heddle/error.h"

namespace heddle::expr {
namespace {

using Operands = std::span<const std::shared_ptr<const Node>>;

[[noreturn]] void broken(Op op, Operands operands, std::string_view rule) {
  std::string given;
  for (const auto& operand : operands) {
    if (!given.empty()) given += ", ";
    given += operand == nullptr ? "nothing" : fmt::format("{} ({})", quote(Expr(operand)), name(operand->type));
  }
  throw Error(ErrorCode::internal, fmt::format("operation {} {}; its operands are: {}", info(op).name, rule,
                                               given.empty() ? "none" : given));
}

bool all_of_type(Operands operands, ExprType type) {
  return std::all_of(operands.begin(), operands.end(), [type](const auto& x) { return x->type == type; });
}

/// The type of a node without operands, from its payload.
ExprType leaf_type(Op op, ExprType type, Operands operands, const Payload& payload) {
  if (op == Op::leaf) {
    const Leaf* leaf = std::get_if<Leaf>(&payload);
    if (leaf == nullptr) broken(op, operands, "carries no leaf");
    return *leaf == Leaf::score ? ExprType::f32 : ExprType::i32;
  }
  if (op == Op::param) {
    if (!std::holds_alternative<ParamDecl>(payload)) broken(op, operands, "carries no param");
    return type;
  }
  if (std::holds_alternative<double>(payload)) return ExprType::f32;
  if (std::holds_alternative<std::int32_t>(payload)) return ExprType::i32;
  if (std::holds_alternative<bool>(payload)) return ExprType::boolean;
  broken(op, operands, "carries no constant");
}

ExprType read_result(Op op, Operands operands, const Payload& payload) {
  const CaptureDecl* capture = std::get_if<CaptureDecl>(&payload);
  if (capture == nullptr) broken(op, operands, "carries no capture");
  const auto rank = static_cast<std::size_t>(capture->rank);
  if (operands.size() != rank + (op == Op::at ? 1 : 0)) broken(op, operands, "has not one index a dimension");
  if (!all_of_type(operands.first(rank), ExprType::i32)) broken(op, operands, "needs i32 indices");
  const ExprType type = read_type(capture->dtype);
  if (op == Op::at && operands.back()->type != type) broken(op, operands, "needs a fill of the capture's type");
  return type;
}

ExprType cast_result(Op op, Operands operands) {
  const ExprType to = op == Op::to_f32 ? ExprType::f32 : ExprType::i32;
  if (operands[0]->type == to) broken(op, operands, "is not a conversion");
  return to;
}

std::string_view name(Role role) {
  return role == Role::score ? "score_mod" : role == Role::mask ? "mask_mod" : "weight_mod";
}

/// The smallest operation of `e` that reads the score, or the score itself.
Expr reader_of_score(const Expr& e) {
  for (const Node* node : post_order(e)) {
    for (const auto& below : node->operands) {
      if (below->op != Op::leaf || below->leaf() != Leaf::score) continue;
      return with_operands(*node, std::vector<Expr>(node->operands.begin(), node->operands.end()));
    }
  }
  return e;
}

}  // namespace

ExprType result_type(Op op, ExprType type, Operands operands, const Payload& payload) {
  const OpInfo& row = info(op);
  if (std::any_of(operands.begin(), operands.end(), [](const auto& x) { return x == nullptr; })) {
    broken(op, operands, "lacks an operand");
  }
  if (row.kind == Kind::read) return read_result(op, operands, payload);
  if (static_cast<int>(operands.size()) != row.arity) broken(op, operands, fmt::format("takes {}", row.arity));
  if (row.arity == 0) return leaf_type(op, type, operands, payload);
  if (!std::holds_alternative<std::monostate>(payload)) broken(op, operands, "carries a payload");
  switch (row.kind) {
    case Kind::num:
      if (operands[0]->type == ExprType::boolean || !all_of_type(operands, operands[0]->type)) {
        broken(op, operands, "needs all i32 or all f32");
      }
      return operands[0]->type;
    case Kind::real:
      if (!all_of_type(operands, ExprType::f32)) broken(op, operands, "needs f32");
      return ExprType::f32;
    case Kind::bits:
      if (!all_of_type(operands, ExprType::i32)) broken(op, operands, "needs i32");
      return ExprType::i32;
    case Kind::test:
      if (!all_of_type(operands, ExprType::f32)) broken(op, operands, "needs f32");
      return ExprType::boolean;
    case Kind::cmp:
      if (operands[0]->type == ExprType::boolean || !all_of_type(operands, operands[0]->type)) {
        broken(op, operands, "compares two i32 or two f32");
      }
      return ExprType::boolean;
    case Kind::logic:
      if (!all_of_type(operands, ExprType::boolean)) broken(op, operands, "needs bool");
      return ExprType::boolean;
    case Kind::where:
      if (operands[0]->type != ExprType::boolean || operands[1]->type != operands[2]->type) {
        broken(op, operands, "needs a bool and two of one type");
      }
      return operands[1]->type;
    case Kind::cast:
      return cast_result(op, operands);
    case Kind::random:
      if (!all_of_type(operands, ExprType::i32)) broken(op, operands, "needs i32");
      return ExprType::f32;
    case Kind::read:
      break;
  }
  broken(op, operands, "is of no known kind");
}

void verify(const Expr& e) {
  for (const Node* node : post_order(e)) {
    const ExprType type = result_type(node->op, node->type, node->operands, node->payload);
    if (node->type != type) {
      broken(node->op, node->operands, fmt::format("is {} but says {}", heddle::name(type), heddle::name(node->type)));
    }
    int depth = 1;
    LeafSet uses = node->op == Op::leaf ? LeafSet{node->leaf()} : LeafSet{};
    for (const auto& below : node->operands) {
      depth = std::max(depth, below->depth + 1);
      uses = uses | below->uses;
    }
    if (node->depth != depth || !(node->uses == uses)) broken(node->op, node->operands, "has a wrong depth or uses");
  }
}

Expr as_role(const Expr& e, Role role) {
  if (e.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("the {} is empty", name(role)));
  const bool boolean = e.type() == ExprType::boolean;
  if (boolean != (role == Role::mask)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a {} must be {}, but {} is {}{}", name(role), role == Role::mask ? "bool" : "f32 or i32", quote(e),
                    heddle::name(e.type()),
                    boolean ? "; convert it with f32(...) or choose with where(...)" : "; compare it with something"));
  }
  if (role != Role::score && e.node()->uses.has(Leaf::score)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a {} cannot read the score, but {} does", name(role), quote(reader_of_score(e))));
  }
  return e.type() == ExprType::i32 ? to_f32(e) : e;
}

}  // namespace heddle::expr
