#include "expr/order.h"

#include <algorithm>
#include <compare>
#include <tuple>

namespace heddle::expr {
namespace {

std::strong_ordering compare(const Payload& x, const Payload& y) {
  if (x.index() != y.index()) return x.index() <=> y.index();
  if (const auto* real = std::get_if<double>(&x)) {
    return std::strong_order(*real, std::get<double>(y));
  }
  if (const auto* integer = std::get_if<std::int32_t>(&x)) return *integer <=> std::get<std::int32_t>(y);
  if (const auto* boolean = std::get_if<bool>(&x)) return *boolean <=> std::get<bool>(y);
  if (const auto* leaf = std::get_if<Leaf>(&x)) return *leaf <=> std::get<Leaf>(y);
  if (const auto* param = std::get_if<ParamDecl>(&x)) return param->name <=> std::get<ParamDecl>(y).name;
  if (const auto* capture = std::get_if<CaptureDecl>(&x)) {
    const auto& other = std::get<CaptureDecl>(y);
    return std::tie(capture->name, capture->dtype, capture->rank) <=> std::tie(other.name, other.dtype, other.rank);
  }
  return std::strong_ordering::equal;
}

/// By what the nodes themselves are, operands aside.
std::strong_ordering compare_here(const Node& x, const Node& y) {
  const auto key = [](const Node& node) {
    return std::tuple(node.op == Op::constant, node.depth, node.op, node.type, node.operands.size());
  };
  const auto order = key(x) <=> key(y);
  return std::is_neq(order) ? order : compare(x.payload, y.payload);
}

}  // namespace

bool stands_before(const Node& x, const Node& y) {
  const Node* a = &x;
  const Node* b = &y;
  while (a != b) {
    const std::strong_ordering order = compare_here(*a, *b);
    if (std::is_neq(order)) return std::is_lt(order);
    // Equal so far, and different nodes: some operand differs, and the first such decides.
    const auto [in_a, in_b] = std::mismatch(a->operands.begin(), a->operands.end(), b->operands.begin());
    a = in_a->get();
    b = in_b->get();
  }
  return false;
}

}  // namespace heddle::expr
