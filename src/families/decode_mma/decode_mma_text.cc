#include "families/decode_mma/decode_mma_text.h"

#include <fmt/format.h>

#include "backend/portable/portable_text.h"
#include "families/decode_mma/shared/decode_mma_memory.h"

namespace heddle::decode_mma {
namespace {

// The kernel, to be given the fragments' header and class, launch bounds, what stands before parameters, and the shared
// memory. Its grid is [gangs][tiles].
constexpr const char* kKernel =
    "\n#include \"{0}\"\n"
    "#include \"portable/decode_mma/decode.cuh\"\n"
    "#include \"ptx/dependent_launch.cuh\"\n\n"
    "extern \"C\" __global__ void {2}\n"
    "    decode_mma({3} heddle::shared::DecodeMmaParams params) {{\n"
    "  using namespace heddle;\n"
    "  {4}\n"
    "  if constexpr (kConfig.overlaps) {{\n"
    "    ptx::let_next_begin();\n"
    "    ptx::wait_for_previous();\n"
    "  }}\n"
    "  portable::Decode<kConfig, portable::{1}<kConfig>, GeneratedMods>(params, memory, static_cast<int>(blockIdx.x))\n"
    "      .run(static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));\n"
    "}}\n";

}  // namespace

std::string name_of(const shared::ForwardMmaConfig& config) { return portable::name_of("decode_mma", config); }

jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture) {
  const std::string kernel = fmt::format(
      kKernel, portable::fragments_header(config.fragments), portable::fragments_class(config.fragments),
      dialect.bounds("heddle::kConfig", 0), dialect.params, dialect.memory(shared::decode_mma_memory(config).bytes));
  return dialect.source(name_of(config), portable::config_and_mods_text(config, mods, layout) + kernel, architecture);
}

}  // namespace heddle::decode_mma
