#include "backend/cuda/emit/forward_sm90.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "backend/cuda/emit/embedded.h"
#include "backend/cuda/emit/wgmma_text.h"
#include "plan/families/forward_sm90_costs.h"

namespace heddle::cuda::emit {
namespace {

constexpr std::array<std::string_view, 3> kFp8 = {"none", "e4m3", "e5m2"};
constexpr std::array<std::string_view, 6> kForms = {"plain", "shifted", "tilted", "distant", "added", "mapped"};

std::string_view text_of(shared::Fp8 type) { return kFp8[static_cast<std::size_t>(type)]; }

std::string storage_of(const shared::ForwardSm90Config& config) {
  if (!config.fp8()) return config.f16 ? "f16" : "bf16";
  const bool mixed = config.k_fp8 != config.q_fp8 || config.v_fp8 != config.q_fp8;
  return mixed ? fmt::format("{}/{}/{}", text_of(config.q_fp8), text_of(config.k_fp8), text_of(config.v_fp8))
               : std::string(text_of(config.q_fp8));
}

std::string fp8_text(const shared::ForwardSm90Config& config) {
  if (!config.fp8()) return {};
  return fmt::format(
      ",\n    .q_fp8 = heddle::shared::Fp8::{}, .k_fp8 = heddle::shared::Fp8::{}, .v_fp8 = heddle::shared::Fp8::{}, "
      ".weight_exponent = {}",
      text_of(config.q_fp8), text_of(config.k_fp8), text_of(config.v_fp8), config.weight_exponent);
}

std::string config_text(const shared::ForwardSm90Config& config) {
  return fmt::format(
      "constexpr heddle::shared::ForwardSm90Config kConfig = {{\n"
      "    .qk_dim = {}, .v_dim = {}, .warpgroups = {}, .kv_block = {}, .stages = {}, .q_buffers = {}, .o_panels = "
      "{},\n"
      "    .f16 = {}, .lse = {}, .masked = {}, .scores = heddle::shared::ScoreForm::{}, .descending = {}, "
      ".capped = {}, .weighted = {},\n"
      "    .by_sequence = {}{}}};\n",
      config.qk_dim, config.v_dim, config.warpgroups, config.kv_block, config.stages, config.q_buffers, config.o_panels,
      config.f16, config.lse, config.masked, kForms[static_cast<std::size_t>(config.scores)], config.descending,
      config.capped, config.weighted, config.by_sequence, fp8_text(config));
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
      "forward_sm90 {} d{} {}x{}{}{}{}{}{}{}{}", storage_of(config),
      plan::to_string(plan::HeadDims{config.qk_dim, config.v_dim}), config.rows(), config.kv_block,
      config.masked ? " masked" : "", config.scores == shared::ScoreForm::plain ? "" : fmt::format(" {}", form),
      config.capped ? " capped" : "", config.descending ? " descending" : "", config.weighted ? " weighted" : "",
      config.by_sequence ? " by sequence" : "", config.lse ? " lse" : "");
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
      config_text(config), wgmma_text(config), mod_texts(mods, own));
  source.headers = embedded_headers();
  return source;
}

}  // namespace heddle::cuda::emit
