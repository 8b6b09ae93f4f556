// The CUDA backend: a family's kernel by the plan's name.
#include <fmt/format.h>

#include "backend/backends.h"
#include "backend/backward_mma/kernel.h"
#include "backend/cuda/driver/device.h"
#include "backend/cuda/emit/backward_mma.h"
#include "backend/cuda/emit/forward_mma.h"
#include "backend/cuda/launch/backward_sm90.h"
#include "backend/cuda/launch/forward_sm90.h"
#include "backend/cuda/launch/gpu.h"
#include "backend/forward_mma/kernel.h"
#include "heddle/error.h"
#include "shared/forward_mma_memory.h"

namespace heddle::backend {
namespace {

std::unique_ptr<Kernel> prepare_forward_mma(const PrepareArguments& arguments) {
  const auto source = [](int device, const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                         const device_text::ModLayout& layout) {
    return cuda::emit::forward_mma(config, mods, layout, cuda::architecture_of(device));
  };
  return forward_mma::prepare(arguments, cuda::cuda_gpu(), source,
                              shared::forward_mma_memory(*arguments.plan.forward_mma).bytes);
}

std::unique_ptr<Kernel> prepare_backward_mma(const PrepareArguments& arguments) {
  const auto source = [](int device, const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                         const device_text::ModLayout& layout) {
    return cuda::emit::backward_mma(kernels, mods, layout, cuda::architecture_of(device));
  };
  return backward_mma::prepare(arguments, cuda::cuda_gpu(), source, true);
}

}  // namespace

const Backend& cuda_backend() {
  static const Backend backend = {
      .choice = BackendChoice::cuda, .prepare = [](const PrepareArguments& arguments) -> std::unique_ptr<Kernel> {
        if (arguments.plan.family == "forward_sm90") return cuda::prepare_forward_sm90(arguments);
        if (arguments.plan.family == "forward_mma") return prepare_forward_mma(arguments);
        if (arguments.plan.family == "backward_sm90") return cuda::prepare_backward_sm90(arguments);
        if (arguments.plan.family == "backward_mma") return prepare_backward_mma(arguments);
        throw Error(ErrorCode::internal, fmt::format("the CUDA backend has no family '{}'", arguments.plan.family));
      }};
  return backend;
}

}  // namespace heddle::backend
