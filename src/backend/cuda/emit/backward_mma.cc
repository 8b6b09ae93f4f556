#include "backend/cuda/emit/backward_mma.h"

#include <fmt/format.h>

#include "backend/backward_mma/text.h"
#include "backend/device_code/headers.h"

namespace heddle::cuda::emit {
namespace {

// Of a pass: its number and its class.
constexpr const char* kPass =
    "\nextern \"C\" __global__ void __launch_bounds__(heddle::kPass{0}.threads(), heddle::kPass{0}.ctas)\n"
    "    backward_mma_{0}(const __grid_constant__ heddle::shared::BackwardMmaParams params) {{\n"
    "  extern __shared__ __align__(128) char memory[];\n"
    "  {1}(params, memory)\n"
    "      .run(static_cast<int>(blockIdx.x));\n"
    "}}\n";
// Of a kernel around them: its name, and the function.
constexpr const char* kAround =
    "\nextern \"C\" __global__ void __launch_bounds__(heddle::shared::kRowThreads)\n"
    "    backward_mma_{0}(const __grid_constant__ heddle::shared::BackwardRowsParams params) {{\n"
    "  __shared__ float shares[heddle::portable::kRowShares];\n"
    "  heddle::portable::BackwardRows<heddle::kRows>(params, shares).{1}(static_cast<int>(blockIdx.x));\n"
    "}}\n";

}  // namespace

jit::Source backward_mma(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                         const device_text::ModLayout& layout, const std::string& architecture) {
  jit::Source source;
  source.name = heddle::backward_mma::name_of(kernels);
  source.text = heddle::backward_mma::config_and_mods_text(kernels, mods, layout);
  for (std::size_t i = 0; i < kernels.passes.size(); ++i) {
    source.text += fmt::format(kPass, i, heddle::backward_mma::pass_class(kernels, i));
  }
  if (heddle::backward_mma::has_rows(kernels)) source.text += fmt::format(kAround, "rows", "run");
  if (kernels.rows.sinks) source.text += fmt::format(kAround, "sinks", "sum_sinks");
  source.headers = device_code::cuda_headers();
  source.architecture = architecture;
  return source;
}

}  // namespace heddle::cuda::emit
