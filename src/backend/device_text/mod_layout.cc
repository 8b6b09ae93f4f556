#include "backend/device_text/mod_layout.h"

#include <fmt/format.h>

#include <map>

#include "expr/node.h"
#include "heddle/error.h"
#include "plan/mods/kv_start.h"
#include "shared/mod_values.h"

namespace heddle::device_text {
namespace {

/// Adds `from` to `all`; a name must mean the same in both.
template <class Decl, class Same, class Text>
void merge(std::map<std::string, Decl>& all, const std::map<std::string, Decl>& from, Same&& same, Text&& text) {
  for (const auto& [name, decl] : from) {
    const auto [known, added] = all.try_emplace(name, decl);
    if (added || same(known->second, decl)) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' is {} in one mod and {} in another", name, text(known->second), text(decl)));
  }
}

template <class Decl>
void require_at_most(const std::map<std::string, Decl>& all, int limit, std::string_view what) {
  if (all.size() <= static_cast<std::size_t>(limit)) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("the mods read {} {}{}, but a CUDA kernel takes at most {}", all.size(), what,
                          all.contains(plan::kKvStartName) ? ", that of kv_start among them" : "", limit));
}

}  // namespace

ModLayout layout_of(const std::vector<Expr>& mods, expr::Precision reals) {
  std::map<std::string, ExprType> params;
  std::map<std::string, Symbols::CaptureDecl> captures;
  for (const Expr& mod : mods) {
    if (mod.empty()) continue;
    const Symbols symbols = symbols_of(mod);
    merge(
        params, symbols.params, [](ExprType x, ExprType y) { return x == y; },
        [](ExprType type) { return fmt::format("a param of type {}", name(type)); });
    merge(
        captures, symbols.captures, [](const auto& x, const auto& y) { return x.dtype == y.dtype && x.rank == y.rank; },
        [](const auto& decl) { return fmt::format("a capture of {} with rank {}", name(decl.dtype), decl.rank); });
  }
  require_at_most(params, shared::kModParams, "params");
  require_at_most(captures, shared::kModCaptures, "captures");
  ModLayout layout;
  layout.reals = reals;
  layout.params.assign(params.begin(), params.end());
  for (const auto& [name, decl] : captures) {
    if (decl.rank > 4) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("capture '{}' has rank {}, but a CUDA kernel reads captures of rank 4 at most", name, decl.rank));
    }
    layout.captures.push_back({name, decl.dtype, decl.rank});
  }
  return layout;
}

}  // namespace heddle::device_text
