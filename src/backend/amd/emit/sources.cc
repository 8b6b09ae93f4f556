#include "backend/amd/emit/sources.h"

#include <fmt/format.h>

#include <utility>

#include "backend/device_code/headers.h"
#include "backend/forward_mma/text.h"
#include "shared/forward_mma_memory.h"

namespace heddle::amd::emit {
namespace {

// Of the fragments' header and class, a bound of waves, and the bytes of LDS. One size of workgroup: for any other the
// compiler would leave a thread fewer registers.
constexpr const char* kKernel =
    "\n#include \"{0}\"\n"
    "#include \"portable/forward/forward.cuh\"\n\n"
    "extern \"C\" __global__ void __launch_bounds__(heddle::kConfig.threads()) {2}\n"
    "    forward_mma(const heddle::shared::ForwardMmaParams params) {{\n"
    "  using namespace heddle;\n"
    "  __shared__ __attribute__((aligned(128))) char memory[{3}];\n"
    "  portable::Forward<kConfig, portable::{1}<kConfig>, GeneratedMods>(params, memory)\n"
    "      .run(amd::workgroup(), static_cast<int>(amd::workgroups()));\n"
    "}}\n";

/// CDNA has 512 registers a thread, of which half are for matrix instructions alone: with one wave a SIMD the compiler
/// parks sums there, and copies them. Without the bound it takes one wave.
std::string waves_of(const shared::ForwardMmaConfig& config) {
  if (config.fragments != shared::FragmentKind::gfx9) return "";
  return fmt::format("__attribute__((amdgpu_waves_per_eu({0}, {0})))", config.ctas);
}

}  // namespace

jit::Source source(std::string name, const std::string& text, const std::string& architecture) {
  return {.name = std::move(name),
          .text = "#include \"language.cuh\"\n" + text,
          .headers = device_code::amd_headers(),
          .architecture = architecture};
}

jit::Source forward_mma(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                        const device_text::ModLayout& layout, const std::string& architecture) {
  const std::string kernel = fmt::format(kKernel, heddle::forward_mma::fragments_header(config.fragments),
                                         heddle::forward_mma::fragments_class(config.fragments), waves_of(config),
                                         shared::forward_mma_memory(config).bytes);
  return source(heddle::forward_mma::name_of(config),
                heddle::forward_mma::config_and_mods_text(config, mods, layout) + kernel, architecture);
}

}  // namespace heddle::amd::emit
