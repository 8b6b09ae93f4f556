// The names of an expression: what they are, and whether a run gives them values.
#include <fmt/format.h>

#include "expr/interpret.h"
#include "expr/node.h"
#include "heddle/error.h"

namespace heddle {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

ExprType type_of(const ParamValue& value) {
  return std::holds_alternative<double>(value)         ? ExprType::f32
         : std::holds_alternative<std::int32_t>(value) ? ExprType::i32
                                                       : ExprType::boolean;
}

void add_capture(Symbols& symbols, const expr::CaptureDecl& decl) {
  const auto [known, added] = symbols.captures.try_emplace(decl.name, Symbols::CaptureDecl{decl.dtype, decl.rank});
  if (!added && (known->second.dtype != decl.dtype || known->second.rank != decl.rank)) {
    refuse(fmt::format("capture '{}' is read as {} of rank {} and as {} of rank {} in one expression", decl.name,
                       name(known->second.dtype), known->second.rank, name(decl.dtype), decl.rank));
  }
}

void add_param(Symbols& symbols, const std::string& param, ExprType type) {
  const auto [known, added] = symbols.params.try_emplace(param, type);
  if (!added && known->second != type) {
    refuse(fmt::format("param '{}' is read as {} and as {} in one expression", param, name(known->second), name(type)));
  }
}

void check_capture(const std::string& capture, const Symbols::CaptureDecl& decl, const Bindings& bindings) {
  const auto bound = bindings.captures.find(capture);
  if (bound == bindings.captures.end()) refuse(fmt::format("capture '{}' was given no tensor", capture));
  const ConstTensorView& view = bound->second;
  if (view.dtype != decl.dtype || view.rank() != decl.rank) {
    refuse(fmt::format("capture '{}' must be {} of rank {}, but was given {} of rank {}", capture, name(decl.dtype),
                       decl.rank, name(view.dtype), view.rank()));
  }
  if (view.data == nullptr && view.count() > 0) refuse(fmt::format("capture '{}' was given a null pointer", capture));
}

void check_param(const std::string& param, ExprType type, const Bindings& bindings) {
  const auto bound = bindings.params.find(param);
  if (bound == bindings.params.end()) refuse(fmt::format("param '{}' was given no value", param));
  if (type_of(bound->second) != type) {
    refuse(fmt::format("param '{}' must be {}, but was given {}", param, name(type), name(type_of(bound->second))));
  }
}

}  // namespace

Symbols::Symbols(const Bindings& bindings) {
  for (const auto& [capture, view] : bindings.captures) captures[capture] = {view.dtype, view.rank()};
  for (const auto& [param, value] : bindings.params) params[param] = type_of(value);
}

Symbols symbols_of(const Expr& e) {
  Symbols symbols;
  for (const expr::Node* node : expr::post_order(e)) {
    if (const auto* capture = std::get_if<expr::CaptureDecl>(&node->payload)) add_capture(symbols, *capture);
    if (const auto* param = std::get_if<expr::ParamDecl>(&node->payload)) add_param(symbols, param->name, node->type);
  }
  for (const auto& [param, type] : symbols.params) {
    if (symbols.captures.contains(param)) {
      refuse(fmt::format("'{}' is both a param and a capture in one expression", param));
    }
  }
  return symbols;
}

namespace expr {

void check_bound(const Expr& e, const Bindings& bindings) { check_bound(symbols_of(e), bindings); }

void check_bound(const Symbols& symbols, const Bindings& bindings) {
  for (const auto& [capture, decl] : symbols.captures) check_capture(capture, decl, bindings);
  for (const auto& [param, type] : symbols.params) check_param(param, type, bindings);
}

Expr bind_params(const Expr& e, const Bindings& bindings) {
  if (e.empty()) return e;
  return rewrite(e, [&bindings](const Node& node, std::span<const Expr> operands) {
    if (node.op != Op::param) return with_operands(node, operands);
    check_param(node.param().name, node.type, bindings);
    return std::visit([](auto value) { return Expr(value); }, bindings.params.at(node.param().name));
  });
}

}  // namespace expr
}  // namespace heddle
