// The AMD backend: a family's kernel by the plan's name.
#include <fmt/format.h>

#include "backend/amd/emit/sources.h"
#include "backend/amd/launch/gpu.h"
#include "backend/backends.h"
#include "backend/backward_mma/kernel.h"
#include "backend/forward_mma/kernel.h"
#include "heddle/error.h"

namespace heddle::backend {
namespace {

jit::Source forward_mma_source(int device, const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                               const device_text::ModLayout& layout) {
  return amd::emit::forward_mma(config, mods, layout, amd::architecture_of(device));
}

jit::Source backward_mma_source(int device, const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                                const device_text::ModLayout& layout) {
  return amd::emit::backward_mma(kernels, mods, layout, amd::architecture_of(device));
}

std::unique_ptr<Kernel> prepare(const PrepareArguments& arguments) {
  // Kernels declare their shared memory themselves.
  if (arguments.plan.family == "forward_mma") {
    return forward_mma::prepare(arguments, amd::amd_gpu(), forward_mma_source, 0);
  }
  if (arguments.plan.family == "backward_mma") {
    return backward_mma::prepare(arguments, amd::amd_gpu(), backward_mma_source, false);
  }
  throw Error(ErrorCode::internal, fmt::format("the AMD backend has no family '{}'", arguments.plan.family));
}

}  // namespace

const Backend& amd_backend() {
  static const Backend backend = {.choice = BackendChoice::amd, .prepare = prepare};
  return backend;
}

}  // namespace heddle::backend
