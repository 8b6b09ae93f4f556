#include "backend/amd/emit/sources.h"

#include <fmt/format.h>

#include <utility>

#include "backend/backward_mma/text.h"
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

// Of a pass of a backward: its number, its class, a bound of waves, and the bytes of LDS.
constexpr const char* kPass =
    "\nextern \"C\" __global__ void __launch_bounds__(heddle::kPass{0}.threads()) {2}\n"
    "    backward_mma_{0}(const heddle::shared::BackwardMmaParams params) {{\n"
    "  __shared__ __attribute__((aligned(128))) char memory[{3}];\n"
    "  {1}(params, memory)\n"
    "      .run(heddle::amd::workgroup());\n"
    "}}\n";
// Of a kernel around them: its name, and the function.
constexpr const char* kAround =
    "\nextern \"C\" __global__ void __launch_bounds__(heddle::shared::kRowThreads)\n"
    "    backward_mma_{0}(const heddle::shared::BackwardRowsParams params) {{\n"
    "  __shared__ float shares[heddle::portable::kRowShares];\n"
    "  heddle::portable::BackwardRows<heddle::kRows>(params, shares).{1}(heddle::amd::workgroup());\n"
    "}}\n";

/// CDNA has 512 registers a thread, of which half are for matrix instructions alone: with one wave a SIMD the compiler
/// parks sums there, and copies them. Without the bound it takes one wave.
template <class Config>
std::string waves_of(const Config& config) {
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

jit::Source backward_mma(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                         const device_text::ModLayout& layout, const std::string& architecture) {
  std::string text = heddle::backward_mma::config_and_mods_text(kernels, mods, layout);
  for (std::size_t i = 0; i < kernels.passes.size(); ++i) {
    const shared::BackwardMmaConfig& pass = kernels.passes[i];
    text += fmt::format(kPass, i, heddle::backward_mma::pass_class(kernels, i), waves_of(pass),
                        shared::backward_mma_memory(pass).bytes);
  }
  if (heddle::backward_mma::has_rows(kernels)) text += fmt::format(kAround, "rows", "run");
  if (kernels.rows.sinks) text += fmt::format(kAround, "sinks", "sum_sinks");
  return source(heddle::backward_mma::name_of(kernels), text, architecture);
}

}  // namespace heddle::amd::emit
