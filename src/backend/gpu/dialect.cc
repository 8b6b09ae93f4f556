#include "backend/gpu/dialect.h"

#include <fmt/format.h>

#include <utility>

#include "backend/device_code/headers.h"

namespace heddle::gpu {

const Dialect& cuda_dialect() {
  static constexpr Dialect dialect = {.begin = "",
                                      .params = "const __grid_constant__",
                                      .cta = "static_cast<int>(blockIdx.x)",
                                      .ctas = "static_cast<int>(gridDim.x)",
                                      .kernels_declare_memory = false,
                                      .headers = device_code::cuda_headers};
  return dialect;
}

const Dialect& hip_dialect() {
  static constexpr Dialect dialect = {.begin = "#include \"language/language.cuh\"\n",
                                      .params = "const",
                                      .cta = "heddle::amd::workgroup()",
                                      .ctas = "static_cast<int>(heddle::amd::workgroups())",
                                      .kernels_declare_memory = true,
                                      .headers = device_code::amd_headers};
  return dialect;
}

std::string Dialect::bounds(const std::string& config, int waves) const {
  // AMD: one size of workgroup; for any other the compiler would leave a thread fewer registers.
  if (!kernels_declare_memory) return fmt::format("__launch_bounds__({0}.threads(), {0}.ctas)", config);
  const std::string most = waves > 0 ? fmt::format(" __attribute__((amdgpu_waves_per_eu({0}, {0})))", waves) : "";
  return fmt::format("__launch_bounds__({}.threads()){}", config, most);
}

std::string Dialect::memory(int bytes, int alignment) const {
  if (!kernels_declare_memory) return fmt::format("extern __shared__ __align__({}) char memory[];", alignment);
  return fmt::format("__shared__ __attribute__((aligned({}))) char memory[{}];", alignment, bytes);
}

jit::Source Dialect::source(std::string name, const std::string& text, const std::string& architecture) const {
  return {.name = std::move(name), .text = begin + text, .headers = headers(), .architecture = architecture};
}

}  // namespace heddle::gpu
