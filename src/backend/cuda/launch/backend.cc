// The CUDA backend: a family's kernel by the plan's name.
#include "backend/backend.h"

#include <fmt/format.h>

#include "backend/cuda/launch/forward_sm90.h"
#include "backend/cuda/launch/mask_rows.h"
#include "heddle/error.h"

namespace heddle::backend {

const Backend& cuda_backend() {
  static const Backend backend = {
      .choice = BackendChoice::cuda,
      .refuses = [](const problem::AttentionProblem&) { return std::string(); },
      .prepare = [](const PrepareArguments& arguments) -> std::unique_ptr<Kernel> {
        if (arguments.plan.family == "forward_sm90") return cuda::prepare_forward_sm90(arguments);
        throw Error(ErrorCode::internal, fmt::format("the CUDA backend has no family '{}'", arguments.plan.family));
      }};
  return backend;
}

BuiltMask build_mask_on_cuda(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                             DType reals, std::shared_ptr<DeviceMaskRows>& rows) {
  return cuda::build_mask(mask, shape, block, bindings, reals, rows);
}

}  // namespace heddle::backend
