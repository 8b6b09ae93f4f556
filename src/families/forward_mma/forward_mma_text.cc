#include <fmt/format.h>

#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/forward_mma.h"

namespace heddle::forward_mma {
namespace {

// The kernel, to be given the fragments' header and class, launch bounds, what stands before parameters, the shared
// memory, the number of a CTA and how many there are.
constexpr const char* kKernel =
    "\n#include \"{0}\"\n"
    "#include \"portable/forward_mma/forward.cuh\"\n\n"
    "extern \"C\" __global__ void {2}\n"
    "    forward_mma({3} heddle::shared::ForwardMmaParams params) {{\n"
    "  using namespace heddle;\n"
    "  {4}\n"
    "  portable::Forward<kConfig, portable::{1}<kConfig>, GeneratedMods>(params, memory)\n"
    "      .run({5}, {6});\n"
    "}}\n";

}  // namespace

jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture) {
  const std::string kernel =
      fmt::format(kKernel, portable::fragments_header(config.fragments), portable::fragments_class(config.fragments),
                  dialect.bounds("heddle::kConfig", portable::waves_a_simd(config)), dialect.params,
                  dialect.memory(shared::forward_mma_memory(config).bytes), dialect.cta, dialect.ctas);
  return dialect.source(name_of(config), portable::config_and_mods_text(config, mods, layout) + kernel, architecture);
}

std::string name_of(const shared::ForwardMmaConfig& config) { return portable::name_of("forward_mma", config); }

}  // namespace heddle::forward_mma
