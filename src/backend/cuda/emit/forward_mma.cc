#include "backend/cuda/emit/forward_mma.h"

#include <fmt/format.h>

#include "backend/device_code/headers.h"
#include "backend/forward_mma/text.h"

namespace heddle::cuda::emit {
namespace {

// Of the fragments' header and class.
constexpr const char* kKernel =
    "\n#include \"{0}\"\n"
    "#include \"portable/forward/forward.cuh\"\n\n"
    "extern \"C\" __global__ void __launch_bounds__(heddle::kConfig.threads(), heddle::kConfig.ctas)\n"
    "    forward_mma(const __grid_constant__ heddle::shared::ForwardMmaParams params) {{\n"
    "  using namespace heddle;\n"
    "  extern __shared__ __align__(128) char memory[];\n"
    "  portable::Forward<kConfig, portable::{1}<kConfig>, GeneratedMods>(params, memory)\n"
    "      .run(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));\n"
    "}}\n";

}  // namespace

jit::Source forward_mma(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                        const device_text::ModLayout& layout, const std::string& architecture) {
  jit::Source source;
  source.name = heddle::forward_mma::name_of(config);
  source.text = heddle::forward_mma::config_and_mods_text(config, mods, layout) +
                fmt::format(kKernel, heddle::forward_mma::fragments_header(config.fragments),
                            heddle::forward_mma::fragments_class(config.fragments));
  source.headers = device_code::cuda_headers();
  source.architecture = architecture;
  return source;
}

}  // namespace heddle::cuda::emit
