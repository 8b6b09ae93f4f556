#include <fmt/format.h>

#include "backend/device_text/key_runs_text.h"
#include "backend/portable/portable_text.h"
#include "expr/key_bounds.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/shared/decode_mma_memory.h"

namespace heddle::decode_mma {
namespace {

// The kernel, to be given the fragments' header and class, launch bounds, what stands before parameters, and the shared
// memory. Its grid is [gangs][tiles].
constexpr const char* kKernel =
    "\n#include \"{0}\"\n"
    "#include \"portable/decode_mma/decode.cuh\"\n\n"
    "extern \"C\" __global__ void {2}\n"
    "    decode_mma({3} heddle::shared::DecodeMmaParamsOf<heddle::kConfig.boxes>::Type params) {{\n"
    "  using namespace heddle;\n"
    "  {4}\n"
    "  if constexpr (kConfig.overlaps) {{\n"
    "    ptx::let_next_begin();\n"
    "    if constexpr (!kConfig.early && !kConfig.shares_elsewhere()) ptx::wait_for_previous();\n"
    "  }}\n"
    "  portable::Decode<kConfig, portable::{1}<kConfig>, GeneratedMods, MaskKeys>(params, memory,\n"
    "                                                                             static_cast<int>(blockIdx.x))\n"
    "      .run(static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));\n"
    "}}\n";

// The kernel of shared keys alone, to be given the same. The kernel behind it may begin when all of its CTAs have seen
// the end of the kernel before.
constexpr const char* kSharedKeysKernel =
    "\n#include \"{0}\"\n"
    "#include \"portable/decode_mma/shared_keys.cuh\"\n\n"
    "extern \"C\" __global__ void {2}\n"
    "    shared_keys({3} heddle::shared::DecodeMmaBoxParams params) {{\n"
    "  using namespace heddle;\n"
    "  {4}\n"
    "  ptx::wait_for_previous();\n"
    "  ptx::let_next_begin();\n"
    "  portable::SharedKeys<kConfig, portable::{1}<kConfig>, GeneratedMods, MaskKeys>(params, memory,\n"
    "                                                                                 static_cast<int>(blockIdx.x))\n"
    "      .run(static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));\n"
    "}}\n";

// Bounds of the keys, as Line takes them.
constexpr const char* kMaskKeys = R"(
namespace heddle {
struct MaskKeys {
  static __device__ __forceinline__ shared::KeyRuns keys(const shared::ModValues& mod, const shared::MaskRows& rows) {
    return mask_keys(mod, rows);
  }
};
}  // namespace heddle
)";
constexpr const char* kNoMaskKeys = "\nnamespace heddle {\nstruct MaskKeys {};\n}  // namespace heddle\n";

}  // namespace

std::string name_of(const shared::ForwardMmaConfig& config) { return portable::name_of("decode_mma", config); }

std::string config_and_mods(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                            const device_text::ModLayout& layout) {
  const std::string text =
      "#include \"portable/decode_mma/own_span.cuh\"\n" + portable::config_and_mods_text(config, mods, layout);
  if (!config.bounded) return text + kNoMaskKeys;
  return text + device_text::key_runs_text("mask", expr::KeyBounds(mods.mask), layout) + kMaskKeys;
}

jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture) {
  const std::string kernel = fmt::format(
      fmt::runtime(config.shares_alone() ? kSharedKeysKernel : kKernel), portable::fragments_header(config.fragments),
      portable::fragments_class(config.fragments), dialect.bounds("heddle::kConfig", 0), dialect.params,
      dialect.memory(shared::decode_mma_memory(config).bytes, config.by_warpgroups() ? 1024 : 128));
  jit::Source source = dialect.source(name_of(config), config_and_mods(config, mods, layout) + kernel, architecture);
  // Kernels of latent attention with masks spill what belongs to the begin of a tile, outside of the loop over blocks.
  // By mma.sync they would take 1.5 times as long.
  if (config.wide() && config.by_warpgroups()) source.bearable_spill_bytes = 512;
  // Likewise where shared keys have a kernel of their own: one kernel for both takes up to twice as long.
  if (config.prefixed() && !config.shares_beside_own()) source.bearable_spill_bytes = 128;
  return source;
}

}  // namespace heddle::decode_mma
