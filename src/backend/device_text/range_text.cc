#include "backend/device_text/range_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backend/device_text/range_steps.h"
#include "backend/device_text/words.h"
#include "expr/range_program.h"
#include "heddle/error.h"

namespace heddle::device_text {
namespace {

using expr::Kind;
using expr::Leaf;
using expr::Node;

/// The axes of a read whose index changes inside a block.
std::vector<int> moving_axes(const Node& read) {
  std::vector<int> axes;
  for (int axis = 0; axis < read.capture().rank; ++axis) {
    const expr::LeafSet uses = read.operands[static_cast<std::size_t>(axis)]->uses;
    if (uses.intersects({Leaf::q_idx, Leaf::kv_idx, Leaf::q_token, Leaf::kv_token})) axes.push_back(axis);
  }
  return axes;
}

}  // namespace

ZoneAxes zone_axes(const Expr& mask, const ModLayout& layout) {
  ZoneAxes axes(layout.captures.size(), -1);
  for (const Node* node : expr::post_order(mask)) {
    if (expr::info(node->op).kind != Kind::read) continue;
    int& axis = axes[capture_slot(layout, node->capture())];
    const std::vector<int> moving = moving_axes(*node);
    if (moving.size() == 1 && axis < 0) axis = moving[0];
  }
  return axes;
}

std::string range_text(const std::string& name, const Expr& mod, const ModLayout& layout, const ZoneAxes& axes) {
  if (mod.type() != ExprType::boolean) throw Error(ErrorCode::internal, "intervals are asked of a mod that is no mask");
  const expr::RangeProgram program(mod, expr::Precision::f32, nullptr, false);
  const LeafTexts leaves = {.b = "shared::point(b)",
                            .h = "shared::point(h)",
                            .q_idx = "q_idx",
                            .kv_idx = "kv_idx",
                            .q_len = "shared::point(mod.q_len)",
                            .kv_len = "shared::point(mod.kv_len)",
                            .q_start = "shared::point(mod.q_start)"};
  const RangeSteps steps(program, layout, axes, leaves);
  return fmt::format(
      "#include \"mods/mask_ranges.cuh\"\n\nnamespace heddle {{\n\n"
      "__device__ __noinline__ shared::Truth {}_range(const shared::ModValues& mod,\n"
      "    const shared::ZoneCell* const* zones, int b, int h, shared::Interval q_idx, shared::Interval kv_idx) {{\n"
      "{}  return s{};\n}}\n\n}}  // namespace heddle\n",
      name, fmt::join(steps.declarations(), ""), steps.declarations().size() - 1);
}

}  // namespace heddle::device_text
