#include <fmt/format.h>

#include <optional>
#include <span>

#include "expr/mod_arguments.h"
#include "expr/node.h"
#include "heddle/mods.h"

namespace heddle::mods {
namespace {

using expr::Leaf;
using expr::Node;
using expr::Op;

/// The argument in a leaf's place; null if the leaf stays.
const std::optional<Expr>* place_of(const Arguments& arguments, Leaf leaf) {
  switch (leaf) {
    case Leaf::score:
      return &arguments.score;
    case Leaf::b:
      return &arguments.b;
    case Leaf::h:
      return &arguments.h;
    case Leaf::q_idx:
      return &arguments.q_idx;
    case Leaf::kv_idx:
      return &arguments.kv_idx;
    default:
      return nullptr;
  }
}

Expr fitting(Leaf leaf, const Expr& given) {
  const ExprType wanted = leaf == Leaf::score ? ExprType::f32 : ExprType::i32;
  if (given.empty())
    refuse(fmt::format("{} of a mod is empty; an expression of {} is accepted", name(leaf), name(wanted)));
  if (given.type() == wanted) return given;
  if (leaf == Leaf::score && given.type() == ExprType::i32) return to_f32(given);
  refuse(fmt::format("{} of a mod must be {}, but {} is {}", name(leaf), name(wanted), expr::quote(given),
                     name(given.type())));
}

}  // namespace

Expr with_arguments(const Expr& mod, const Arguments& arguments) {
  if (mod.empty()) return mod;
  return expr::rewrite(mod, [&](const Node& node, std::span<const Expr> operands) {
    if (node.op != Op::leaf) return expr::with_operands(node, operands);
    const std::optional<Expr>* place = place_of(arguments, node.leaf());
    return place == nullptr || !*place ? expr::with_operands(node, operands) : fitting(node.leaf(), **place);
  });
}

}  // namespace heddle::mods
