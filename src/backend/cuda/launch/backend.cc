// The CUDA backend: a family's kernel by the plan's name.
#include <fmt/format.h>

#include "backend/backends.h"
#include "backend/cuda/launch/backward_sm90.h"
#include "backend/cuda/launch/forward_mma.h"
#include "backend/cuda/launch/forward_sm90.h"
#include "heddle/error.h"

namespace heddle::backend {

const Backend& cuda_backend() {
  static const Backend backend = {
      .choice = BackendChoice::cuda, .prepare = [](const PrepareArguments& arguments) -> std::unique_ptr<Kernel> {
        if (arguments.plan.family == "forward_sm90") return cuda::prepare_forward_sm90(arguments);
        if (arguments.plan.family == "forward_mma") return cuda::prepare_forward_mma(arguments);
        if (arguments.plan.family == "backward_sm90") return cuda::prepare_backward_sm90(arguments);
        throw Error(ErrorCode::internal, fmt::format("the CUDA backend has no family '{}'", arguments.plan.family));
      }};
  return backend;
}

}  // namespace heddle::backend
