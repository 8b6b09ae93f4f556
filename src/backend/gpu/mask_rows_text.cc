#include "backend/gpu/mask_rows_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/device_text/words.h"
#include "expr/key_bounds.h"
#include "expr/simplify.h"

namespace heddle::gpu {
namespace {

using expr::Node;

int word_of(const device_text::ModLayout& layout, const char* name) {
  const auto at = std::ranges::find(layout.params, std::pair(std::string(name), ExprType::i32));
  return at == layout.params.end() ? -1 : static_cast<int>(at - layout.params.begin());
}

/// Text that makes zone maps, by the capture's slot.
std::string zone_dispatch(const RowMask& mask) {
  std::string groups, trees;
  for (std::size_t i = 0; i < mask.axes.size(); ++i) {
    if (mask.axes[i] < 0) continue;
    const std::string_view storage = device_text::storage_text(mask.layout.captures[i].dtype, expr::Precision::f32);
    groups += fmt::format("  if (capture == {}) mask_rows::zone_group<ops::{}>(zone, slice, group);\n", i, storage);
    trees += fmt::format("  if (capture == {}) mask_rows::zone_tree<ops::{}>(zone, slice);\n", i, storage);
  }
  return fmt::format(
      "namespace heddle {{\n\n"
      "__device__ __forceinline__ void zone_group_of(int capture, const shared::MaskZone& zone, int slice, int group) "
      "{{\n"
      "{}}}\n"
      "__device__ __forceinline__ void zone_tree_of(int capture, const shared::MaskZone& zone, int slice) {{\n{}}}\n\n"
      "}}  // namespace heddle\n",
      groups, trees);
}

}  // namespace

std::string row_mask_refused(const Expr& mask) {
  for (const Node* node : expr::post_order(mask)) {
    if (expr::info(node->op).ulp > 0) {
      return fmt::format("`{}` may differ in its last bits between the host and a GPU", expr::info(node->op).text);
    }
  }
  return {};
}

RowMask row_mask(const Expr& mask, const plan::KvStart& start) {
  RowMask result;
  // First kv_start: tokens are written with the position.
  result.mask = expr::simplify(expr::with_affine_tokens(plan::by_position(mask, start)), expr::Precision::f32);
  result.layout = device_text::layout_of({result.mask});
  result.axes = device_text::zone_axes(result.mask, result.layout);
  result.q_token_word = word_of(result.layout, expr::kQTokenParam);
  result.kv_token_word = word_of(result.layout, expr::kKvTokenParam);
  return result;
}

std::string mask_rows_text(const RowMask& mask) {
  return fmt::format(
      "#include \"mods/zone_bounds.cuh\"\n\n"
      "constexpr int kQTokenWord = {}, kKvTokenWord = {};\n\n{}\n{}\n{}\n"
      "#include \"around/mask_rows_kernels.cuh\"\n",
      mask.q_token_word, mask.kv_token_word, zone_dispatch(mask),
      device_text::mod_text("mask", mask.mask, mask.layout, device_text::TakesScore::no),
      device_text::range_text("mask", mask.mask, mask.layout, mask.axes));
}

}  // namespace heddle::gpu
