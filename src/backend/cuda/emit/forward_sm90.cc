#include "backend/cuda/emit/forward_sm90.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "backend/cuda/emit/embedded.h"
#include "backend/cuda/emit/wgmma_text.h"
#include "plan/families/forward_sm90_costs.h"

namespace heddle::cuda::emit {
namespace {

constexpr std::array<std::string_view, 6> kForms = {"plain", "shifted", "tilted", "distant", "added", "mapped"};

std::string config_text(const shared::ForwardSm90Config& config) {
  return fmt::format(
      "constexpr heddle::shared::ForwardSm90Config kConfig = {{\n"
      "    .qk_dim = {}, .v_dim = {}, .warpgroups = {}, .kv_block = {}, .stages = {}, .q_buffers = {}, .o_panels = "
      "{},\n"
      "    .f16 = {}, .lse = {}, .masked = {}, .scores = heddle::shared::ScoreForm::{}, .descending = {}, "
      ".capped = {}, .weighted = {},\n"
      "    .by_sequence = {}, .device_lengths = {}}};\n",
      config.qk_dim, config.v_dim, config.warpgroups, config.kv_block, config.stages, config.q_buffers, config.o_panels,
      config.f16, config.lse, config.masked, kForms[static_cast<std::size_t>(config.scores)], config.descending,
      config.capped, config.weighted, config.by_sequence, config.device_lengths);
}

/// What the kernel calls must be there, also where it never comes to that.
Expr given(const Expr& mod, const Expr& otherwise) { return mod.empty() ? otherwise : mod; }

std::string mod_texts(const plan::ForwardSm90Mods& mods, const ModLayout& layout) {
  return mod_text("mask", given(mods.mask, true), layout, TakesScore::no) +
         mod_text("offset", given(mods.offset, 0.0), layout, TakesScore::no) +
         mod_text("slope", given(mods.slope, 0.0), layout, TakesScore::no) +
         mod_text("score", given(mods.score, leaf::score()), layout, TakesScore::yes, Rounding::contracted) +
         mod_text("weight", given(mods.weight, 1.0), layout, TakesScore::no);
}

std::string name_of(const shared::ForwardSm90Config& config) {
  const std::string_view form = kForms[static_cast<std::size_t>(config.scores)];
  return fmt::format(
      "forward_sm90 {} d{} {}x{}{}{}{}{}{}{}{}{}", config.f16 ? "f16" : "bf16",
      plan::to_string(plan::HeadDims{config.qk_dim, config.v_dim}), config.rows(), config.kv_block,
      config.masked ? " masked" : "", config.scores == shared::ScoreForm::plain ? "" : fmt::format(" {}", form),
      config.capped ? " capped" : "", config.descending ? " descending" : "", config.weighted ? " weighted" : "",
      config.by_sequence ? " by sequence" : "", config.device_lengths ? " device lengths" : "", config.lse ? " lse" : "");
}

}  // namespace

jit::Source forward_sm90(const shared::ForwardSm90Config& config, const plan::ForwardSm90Mods& mods,
                         const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  jit::Source source;
  source.name = name_of(config);
  source.text = fmt::format(
      "#include \"ptx/wgmma.cuh\"\n"
      "#include \"shared/forward_sm90.h\"\n\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}\n{}\n#include \"families/forward_sm90.cuh\"\n",
      config_text(config), wgmma_text(config.kv_block, config.v_columns(), config.f16), mod_texts(mods, own));
  source.headers = embedded_headers();
  return source;
}

}  // namespace heddle::cuda::emit
