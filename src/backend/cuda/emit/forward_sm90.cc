#include "backend/cuda/emit/forward_sm90.h"

#include <fmt/format.h>

#include "backend/cuda/emit/embedded.h"
#include "backend/cuda/emit/wgmma_text.h"

namespace heddle::cuda::emit {
namespace {

std::string config_text(const shared::ForwardSm90Config& config) {
  return fmt::format(
      "constexpr heddle::shared::ForwardSm90Config kConfig = {{\n"
      "    .head_dim = {}, .warpgroups = {}, .kv_block = {}, .stages = {}, .q_buffers = {}, .o_panels = {},\n"
      "    .f16 = {}, .lse = {}, .masked = {}}};\n",
      config.head_dim, config.warpgroups, config.kv_block, config.stages, config.q_buffers, config.o_panels, config.f16,
      config.lse, config.masked);
}

}  // namespace

jit::Source forward_sm90(const shared::ForwardSm90Config& config, const Expr& mask, const ModLayout& layout) {
  jit::Source source;
  source.name = fmt::format("forward_sm90 {} d{} {}x{}{}{}", config.f16 ? "f16" : "bf16", config.head_dim,
                            config.rows(), config.kv_block, config.masked ? " masked" : "", config.lse ? " lse" : "");
  source.text = fmt::format(
      "#include \"ptx/wgmma.cuh\"\n"
      "#include \"shared/forward_sm90.h\"\n\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}\n{}\n#include \"families/forward_sm90.cuh\"\n",
      config_text(config), wgmma_text(config.kv_block, config.head_dim, config.f16),
      mod_text("mask", mask.empty() ? Expr(true) : mask, layout, TakesScore::no));
  source.headers = embedded_headers();
  return source;
}

}  // namespace heddle::cuda::emit
