#include "families/table.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "backend/amd/launch/gpu.h"
#include "backend/cuda/launch/gpu.h"

// A family's folder is in the build where its macro is 1 (HEDDLE_FAMILIES of CMakeLists.txt).
#if HEDDLE_FAMILY_BACKWARD_MMA
#include "families/backward_mma/backward_mma_plans.h"
#endif
#if HEDDLE_FAMILY_BACKWARD_SM90
#include "families/backward_sm90/backward_sm90_plans.h"
#endif
#if HEDDLE_FAMILY_CPU
#include "families/cpu/cpu_choices.h"
#endif
#if HEDDLE_FAMILY_DECODE_MMA
#include "families/decode_mma/decode_mma_plans.h"
#endif
#if HEDDLE_FAMILY_FORWARD_MMA
#include "families/forward_mma/forward_mma_plans.h"
#endif
#if HEDDLE_FAMILY_FORWARD_SM90
#include "families/forward_sm90/forward_sm90_plans.h"
#endif
#if HEDDLE_FAMILY_REFERENCE
#include "families/reference/reference_kernel.h"
#endif
#if HEDDLE_FAMILY_DECODE_MMA || HEDDLE_FAMILY_FORWARD_MMA || HEDDLE_FAMILY_BACKWARD_MMA
#include "backend/portable/portable_refuses.h"
#endif
#if HEDDLE_FAMILY_FORWARD_SM90
#include "plan/hopper/sm90_refuses.h"
#endif

namespace heddle::plan {
namespace {

using backend::PrepareArguments;
using problem::Pass;

/// The entry of a request's device. choose() saw to it that it is there.
template <class Caps>
const Caps& caps_of(const Request& request, const std::vector<Caps>& devices) {
  return *std::ranges::find(devices, request.problem.device.index, &Caps::index);
}

// A vendor, to families that run on the GPUs of several.
struct Nvidia {
  static constexpr BackendChoice kBackend = BackendChoice::cuda;
  static const device::CudaCaps& caps(const Request& asked) { return caps_of(asked, asked.machine.cuda); }
  static const gpu::Gpu& gpu() { return cuda::cuda_gpu(); }
};
struct Amd {
  static constexpr BackendChoice kBackend = BackendChoice::amd;
  static const device::AmdCaps& caps(const Request& asked) { return caps_of(asked, asked.machine.amd); }
  static const gpu::Gpu& gpu() { return amd::amd_gpu(); }
};

#if HEDDLE_FAMILY_FORWARD_MMA
template <class Vendor>
constexpr Family kForwardMma = {
    .name = "forward_mma",
    .backend = Vendor::kBackend,
    .pass = Pass::forward,
    .refuses = [](const Request& asked) { return portable_refuses(asked.problem, asked.options, Vendor::caps(asked)); },
    .candidates =
        [](const Request& asked, const RowsOf& rows_of) {
          return forward_mma(asked.problem, asked.tensors, asked.options, Vendor::caps(asked), rows_of);
        },
    .variants =
        [](const Request& asked, const RowsOf& rows_of) {
          return forward_mma_variants(asked.problem, asked.tensors, asked.options, Vendor::caps(asked), rows_of);
        },
    .schedule =
        [](const Plan& plan, const Request& asked, const BlockMask* rows) {
          const auto& config = plan.part<shared::ForwardMmaConfig>();
          return forward_mma_schedule(asked.problem, config, rows, Vendor::caps(asked), plan.order);
        },
    .settings = [](const Plan& plan) { return forward_mma_settings(plan.part<shared::ForwardMmaConfig>()); },
    .untried = [](const Request& asked, const Plan&) { return portable_untried(Vendor::caps(asked)); },
    .prepare = [](const PrepareArguments& arguments) { return forward_mma::prepare(arguments, Vendor::gpu()); }};
#endif
#if HEDDLE_FAMILY_BACKWARD_MMA
template <class Vendor>
constexpr Family kBackwardMma = {
    .name = "backward_mma",
    .backend = Vendor::kBackend,
    .pass = Pass::backward,
    .refuses = [](const Request& asked) { return backward_mma_refuses(asked, Vendor::caps(asked)); },
    .candidates = [](const Request& asked,
                     const RowsOf& rows_of) { return backward_mma(asked, Vendor::caps(asked), rows_of); },
    .settings = [](const Plan& plan) { return backward_mma_settings(plan.part<BackwardMmaKernels>()); },
    .untried = [](const Request& asked, const Plan&) { return portable_untried(Vendor::caps(asked)); },
    .prepare = [](const PrepareArguments& arguments) { return backward_mma::prepare(arguments, Vendor::gpu()); }};
#endif

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
     .refuses = [](const Request& asked) { return sm90_refuses(asked.problem, asked.options, Nvidia::caps(asked)); },
     .candidates =
         [](const Request& asked, const RowsOf& rows_of) {
           return forward_sm90(asked.problem, asked.tensors, asked.options, Nvidia::caps(asked), rows_of);
         },
     .schedule =
         [](const Plan& plan, const Request& asked, const BlockMask* rows) {
           const auto& config = plan.part<shared::ForwardSm90Config>();
           return forward_sm90_schedule(asked.problem, config, rows, Nvidia::caps(asked), plan.order);
         },
     .settings = [](const Plan& plan) { return forward_sm90_settings(plan.part<shared::ForwardSm90Config>()); },
     .prepare = forward_sm90::prepare},
#endif
#if HEDDLE_FAMILY_DECODE_MMA
    {.name = "decode_mma",
     .backend = BackendChoice::cuda,
     .pass = Pass::forward,
     .refuses =
         [](const Request& asked) {
           return decode_mma_refuses(asked.problem, asked.tensors, asked.options, Nvidia::caps(asked));
         },
     .candidates =
         [](const Request& asked, const RowsOf& rows_of) {
           return decode_mma(asked.problem, asked.tensors, asked.options.bindings, Nvidia::caps(asked), rows_of);
         },
     .settings = [](const Plan& plan) { return decode_mma_settings(plan.part<shared::ForwardMmaConfig>()); },
     .untried =
         [](const Request& asked, const Plan& plan) {
           return decode_mma_untried(plan.part<shared::ForwardMmaConfig>(), Nvidia::caps(asked));
         },
     .prepare = [](const PrepareArguments& arguments) { return decode_mma::prepare(arguments, cuda::cuda_gpu()); }},
#endif
#if HEDDLE_FAMILY_FORWARD_MMA
    kForwardMma<Nvidia>,
    kForwardMma<Amd>,
#endif
#if HEDDLE_FAMILY_BACKWARD_SM90
    {.name = "backward_sm90",
     .backend = BackendChoice::cuda,
     .pass = Pass::backward,
     .refuses = [](const Request& asked) { return backward_sm90_refuses(asked, Nvidia::caps(asked)); },
     .candidates = [](const Request& asked,
                      const RowsOf& rows_of) { return backward_sm90(asked, Nvidia::caps(asked), rows_of); },
     .settings = [](const Plan& plan) { return backward_sm90_settings(plan.part<shared::BackwardSm90Config>()); },
     .prepare = backward_sm90::prepare},
#endif
#if HEDDLE_FAMILY_BACKWARD_MMA
    kBackwardMma<Nvidia>,
    kBackwardMma<Amd>,
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
