#include "families/table.h"

#include <algorithm>
#include <iterator>

#include "backend/amd/launch/gpu.h"
#include "backend/cuda/launch/gpu.h"

// A family's folder is in the build where its macro is 1 (HEDDLE_FAMILIES of CMakeLists.txt).
#if HEDDLE_FAMILY_BACKWARD_MMA
#include "families/backward_mma/backward_mma_launch.h"
#include "families/backward_mma/backward_mma_plans.h"
#endif
#if HEDDLE_FAMILY_BACKWARD_SM90
#include "families/backward_sm90/backward_sm90_candidates.h"
#include "families/backward_sm90/backward_sm90_launch.h"
#include "families/backward_sm90/backward_sm90_plans.h"
#endif
#if HEDDLE_FAMILY_CPU
#include "families/cpu/cpu_choices.h"
#endif
#if HEDDLE_FAMILY_FORWARD_MMA
#include "families/forward_mma/forward_mma_launch.h"
#include "families/forward_mma/forward_mma_plans.h"
#endif
#if HEDDLE_FAMILY_FORWARD_SM90
#include "families/forward_sm90/forward_sm90_candidates.h"
#include "families/forward_sm90/forward_sm90_launch.h"
#include "families/forward_sm90/forward_sm90_plans.h"
#endif
#if HEDDLE_FAMILY_REFERENCE
#include "families/reference/reference_kernel.h"
#endif
#if HEDDLE_FAMILY_FORWARD_MMA || HEDDLE_FAMILY_BACKWARD_MMA
#include "backend/portable/portable_refuses.h"
#endif
#if HEDDLE_FAMILY_FORWARD_SM90
#include "plan/hopper/sm90_refuses.h"
#endif

namespace heddle::plan {
namespace {

using backend::PrepareArguments;
using problem::Pass;

/// choose() saw to it that the device is there.
[[maybe_unused]] const device::CudaCaps& cuda_caps(const Request& request) {
  return *std::ranges::find(request.machine.cuda, request.problem.device.index, &device::CudaCaps::index);
}

[[maybe_unused]] const device::AmdCaps& amd_caps(const Request& request) {
  return *std::ranges::find(request.machine.amd, request.problem.device.index, &device::AmdCaps::index);
}

constexpr Family kFamilies[] = {
#if HEDDLE_FAMILY_CPU
    {.name = "cpu_forward",
     .backend = BackendChoice::cpu,
     .pass = Pass::forward,
     .candidates = cpu_forward_choices,
     .variants = cpu_forward_variant_choices,
     .prepare = cpu::prepare_forward},
    {.name = "cpu_backward",
     .backend = BackendChoice::cpu,
     .pass = Pass::backward,
     .candidates = cpu_backward_choices,
     .variants = cpu_backward_variant_choices,
     .prepare = cpu::prepare_backward},
#endif
#if HEDDLE_FAMILY_REFERENCE
    {.name = "reference",
     .backend = BackendChoice::reference,
     .pass = Pass::forward,
     .candidates = reference_choices,
     .prepare = reference::prepare},
    {.name = "reference_backward",
     .backend = BackendChoice::reference,
     .pass = Pass::backward,
     .candidates = reference_choices,
     .prepare = reference::prepare},
#endif
#if HEDDLE_FAMILY_FORWARD_SM90
    {.name = "forward_sm90",
     .backend = BackendChoice::cuda,
     .pass = Pass::forward,
     .refuses = [](const Request& asked) { return sm90_refuses(asked.problem, asked.options, cuda_caps(asked)); },
     .candidates =
         [](const Request& asked, const RowsOf& rows_of) {
           return forward_sm90(asked.problem, asked.tensors, asked.options, cuda_caps(asked), rows_of);
         },
     .schedule =
         [](const Plan& plan, const Request& asked, const BlockMask* rows) {
           const auto& config = plan.part<shared::ForwardSm90Config>();
           return forward_sm90_schedule(asked.problem, config, rows, cuda_caps(asked), plan.order);
         },
     .settings = [](const Plan& plan) { return forward_sm90_settings(plan.part<shared::ForwardSm90Config>()); },
     .prepare = forward_sm90::prepare},
#endif
#if HEDDLE_FAMILY_FORWARD_MMA
    {.name = "forward_mma",
     .backend = BackendChoice::cuda,
     .pass = Pass::forward,
     .refuses = [](const Request& asked) { return portable_refuses(asked.problem, asked.options, cuda_caps(asked)); },
     .candidates =
         [](const Request& asked, const RowsOf& rows_of) {
           return forward_mma(asked.problem, asked.tensors, asked.options, cuda_caps(asked), rows_of);
         },
     .variants =
         [](const Request& asked, const RowsOf& rows_of) {
           return forward_mma_variants(asked.problem, asked.tensors, asked.options, cuda_caps(asked), rows_of);
         },
     .schedule =
         [](const Plan& plan, const Request& asked, const BlockMask* rows) {
           const auto& config = plan.part<shared::ForwardMmaConfig>();
           return forward_mma_schedule(asked.problem, config, rows, cuda_caps(asked), plan.order);
         },
     .settings = [](const Plan& plan) { return forward_mma_settings(plan.part<shared::ForwardMmaConfig>()); },
     .untried = [](const Request& asked) { return portable_untried(cuda_caps(asked)); },
     .prepare = [](const PrepareArguments& arguments) { return forward_mma::prepare(arguments, cuda::cuda_gpu()); }},
    {.name = "forward_mma",
     .backend = BackendChoice::amd,
     .pass = Pass::forward,
     .refuses = [](const Request& asked) { return portable_refuses(asked.problem, asked.options, amd_caps(asked)); },
     .candidates =
         [](const Request& asked, const RowsOf& rows_of) {
           return forward_mma(asked.problem, asked.tensors, asked.options, amd_caps(asked), rows_of);
         },
     .variants =
         [](const Request& asked, const RowsOf& rows_of) {
           return forward_mma_variants(asked.problem, asked.tensors, asked.options, amd_caps(asked), rows_of);
         },
     .schedule =
         [](const Plan& plan, const Request& asked, const BlockMask* rows) {
           const auto& config = plan.part<shared::ForwardMmaConfig>();
           return forward_mma_schedule(asked.problem, config, rows, amd_caps(asked), plan.order);
         },
     .settings = [](const Plan& plan) { return forward_mma_settings(plan.part<shared::ForwardMmaConfig>()); },
     .untried = [](const Request& asked) { return portable_untried(amd_caps(asked)); },
     .prepare = [](const PrepareArguments& arguments) { return forward_mma::prepare(arguments, amd::amd_gpu()); }},
#endif
#if HEDDLE_FAMILY_BACKWARD_SM90
    {.name = "backward_sm90",
     .backend = BackendChoice::cuda,
     .pass = Pass::backward,
     .refuses = [](const Request& asked) { return backward_sm90_refuses(asked, cuda_caps(asked)); },
     .candidates = [](const Request& asked,
                      const RowsOf& rows_of) { return backward_sm90(asked, cuda_caps(asked), rows_of); },
     .settings = [](const Plan& plan) { return backward_sm90_settings(plan.part<shared::BackwardSm90Config>()); },
     .prepare = backward_sm90::prepare},
#endif
#if HEDDLE_FAMILY_BACKWARD_MMA
    {.name = "backward_mma",
     .backend = BackendChoice::cuda,
     .pass = Pass::backward,
     .refuses = [](const Request& asked) { return backward_mma_refuses(asked, cuda_caps(asked)); },
     .candidates = [](const Request& asked,
                      const RowsOf& rows_of) { return backward_mma(asked, cuda_caps(asked), rows_of); },
     .settings = [](const Plan& plan) { return backward_mma_settings(plan.part<BackwardMmaKernels>()); },
     .untried = [](const Request& asked) { return portable_untried(cuda_caps(asked)); },
     .prepare = [](const PrepareArguments& arguments) { return backward_mma::prepare(arguments, cuda::cuda_gpu()); }},
    {.name = "backward_mma",
     .backend = BackendChoice::amd,
     .pass = Pass::backward,
     .refuses = [](const Request& asked) { return backward_mma_refuses(asked, amd_caps(asked)); },
     .candidates = [](const Request& asked,
                      const RowsOf& rows_of) { return backward_mma(asked, amd_caps(asked), rows_of); },
     .settings = [](const Plan& plan) { return backward_mma_settings(plan.part<BackwardMmaKernels>()); },
     .untried = [](const Request& asked) { return portable_untried(amd_caps(asked)); },
     .prepare = [](const PrepareArguments& arguments) { return backward_mma::prepare(arguments, amd::amd_gpu()); }},
#endif
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* family_of(std::string_view name, BackendChoice backend) {
  const auto* at = std::ranges::find_if(
      kFamilies, [&](const Family& family) { return family.name == name && family.backend == backend; });
  return at == std::end(kFamilies) ? nullptr : at;
}

}  // namespace heddle::plan
