// Mods of a whole sequence over tensors that hold granules of it.
#include <fmt/format.h>

#include <span>

#include "expr/mod_arguments.h"
#include "expr/node.h"
#include "heddle/mods.h"

namespace heddle::mods {
namespace {

constexpr std::int64_t kLastPosition = 1 << 28;

Expr position_of(const Expr& index, const Capture& granules, std::int64_t rows, std::int64_t last) {
  return clip(granules(floor_div(index, rows)), 0, last) * Expr(rows) + index % Expr(rows);
}

}  // namespace

Expr by_granules(const Expr& mod, const Capture& q_granules, const Capture& kv_granules, std::int64_t rows,
                 std::int64_t longest) {
  require_integers("q_granules of by_granules", q_granules, 1, 1);
  require_integers("kv_granules of by_granules", kv_granules, 1, 1);
  literal("rows of by_granules", rows, 1, kLastPosition);
  literal("longest of by_granules", longest, 1, kLastPosition);
  if (mod.empty()) return mod;
  const std::int64_t last = (longest - 1) / rows;
  const Expr q_idx = position_of(leaf::q_idx(), q_granules, rows, last),
             kv_idx = position_of(leaf::kv_idx(), kv_granules, rows, last);
  return expr::rewrite(mod, [&](const expr::Node& node, std::span<const Expr> operands) {
    if (node.op == expr::Op::leaf && node.leaf() == expr::Leaf::q_idx) return q_idx;
    if (node.op == expr::Op::leaf && node.leaf() == expr::Leaf::kv_idx) return kv_idx;
    return expr::with_operands(node, operands);
  });
}

}  // namespace heddle::mods
