#include "families/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <ranges>
#include <vector>

#include "backend/amd/launch/amd_gpu.h"
#include "backend/backends.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "base/environment.h"
#include "heddle/error.h"
#include "plan/factors.h"

// A family's folder is in the build where its macro is 1 (HEDDLE_FAMILIES of CMakeLists.txt).
#if HEDDLE_FAMILY_BACKWARD_MMA
#include "families/backward_mma/backward_mma.h"
#endif
#if HEDDLE_FAMILY_BACKWARD_SM90
#include "families/backward_sm90/backward_sm90.h"
#endif
#if HEDDLE_FAMILY_CPU
#include "families/cpu/cpu_choices.h"
#endif
#if HEDDLE_FAMILY_DECODE_MMA
#include "families/decode_mma/decode_mma.h"
#endif
#if HEDDLE_FAMILY_FORWARD_MMA
#include "families/forward_mma/forward_mma.h"
#endif
#if HEDDLE_FAMILY_FORWARD_SM90
#include "families/forward_sm90/forward_sm90.h"
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
    .refuses =
        [](const Request& asked) { return forward_mma_refuses(asked.problem, asked.options, Vendor::caps(asked)); },
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
     .refuses = [](const Request& asked) -> std::string {
       if (!asked.problem.partial_keys) return {};
       return "partial_keys is set; the reference finds o and lse of its keys itself, so all of them are accepted";
     },
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
     .of_few_queries = true,
     .refuses =
         [](const Request& asked) {
           return decode_mma_refuses(asked.problem, asked.tensors, asked.options, Nvidia::caps(asked));
         },
     .candidates =
         [](const Request& asked, const RowsOf& rows_of) {
           return decode_mma(asked.problem, asked.tensors, asked.options, Nvidia::caps(asked), rows_of);
         },
     .settings = [](const Plan& plan) { return decode_mma_settings(plan.part<shared::ForwardMmaConfig>()); },
     .untried = [](const Request& asked, const Plan&) { return portable_untried(Nvidia::caps(asked)); },
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

namespace {

template <class... Arguments>
[[noreturn]] void unsupported(fmt::format_string<Arguments...> sentence, Arguments&&... arguments) {
  throw Error(ErrorCode::unsupported, fmt::format(sentence, std::forward<Arguments>(arguments)...));
}

/// The wanted backend, which must be one of the tensors' device; automatic: the best one there.
BackendChoice resolve(BackendChoice wanted, const Device& device, const device::Machine& machine) {
  const BackendChoice own = backend::backend_of(device.kind);
  if (own == BackendChoice::automatic) {
    unsupported("q is on {}; tensors on the CPU, on a CUDA or on a ROCm device are accepted", problem::name(device));
  }
  if (wanted == BackendChoice::automatic || wanted == own) return own;
  if (wanted == BackendChoice::reference && own == BackendChoice::cpu) return wanted;
  if (wanted == BackendChoice::cpu || wanted == BackendChoice::reference) {
    unsupported("q is on {}; backend {} takes tensors on the CPU", problem::name(device), name(wanted));
  }
  const bool cuda = wanted == BackendChoice::cuda;
  const char* const vendor = cuda ? "CUDA" : "ROCm";
  const std::string& missing = cuda ? machine.cuda_missing : machine.amd_missing;
  const bool there = cuda ? !machine.cuda.empty() : !machine.amd.empty();
  if (there)
    unsupported("q is on {}; backend {} takes tensors on a {} device", problem::name(device), name(wanted), vendor);
  unsupported("q is on {}; backend {} takes tensors on a {} device, and this machine has none: {}",
              problem::name(device), name(wanted), vendor, missing);
}

/// Throws where the tensors' device is not there.
void check_device(const Device& device, const device::Machine& machine) {
  const auto check = [&](const auto& devices, const char* vendor, const std::string& missing) {
    if (devices.empty()) {
      unsupported("q is on {}, but this machine has no {} device: {}", problem::name(device), vendor, missing);
    }
    if (std::ranges::none_of(devices, [&](const auto& caps) { return caps.index == device.index; })) {
      unsupported("q is on {}; this machine has {} {} devices", problem::name(device), devices.size(), vendor);
    }
  };
  if (device.kind == DeviceKind::cuda) check(machine.cuda, "CUDA", machine.cuda_missing);
  if (device.kind == DeviceKind::rocm) check(machine.amd, "ROCm", machine.amd_missing);
}

/// Why a family's plans stand behind those of the family that is chosen.
std::string standing_behind(const Plan& other, const Plan& first) {
  const std::string_view name = other.family->name;
  if (!other.predicted)
    return fmt::format("{}: its time is not predicted, so {} goes before", name, first.family->name);
  if (!first.predicted) return fmt::format("{}: predicted {:.4g} ms", name, other.predicted->seconds * 1e3);
  const double ratio = other.predicted->seconds / first.predicted->seconds;
  if (ratio < 1) {
    return fmt::format("{}: predicted {:.4g} ms, too little faster", name, other.predicted->seconds * 1e3);
  }
  return fmt::format("{}: predicted {:.4g} ms, {:.1f} % slower", name, other.predicted->seconds * 1e3,
                     100 * (ratio - 1));
}

/// The lists of several families, in the order of the table. The list with the least predicted time comes first,
/// if it is enough faster than the table's first, and more so if it yields; lists without a prediction come last, and
/// among them those that yield.
std::vector<Choice> joined(std::vector<std::vector<Choice>> lists) {
  const Family* preferred = lists.front().front().plan.family;
  std::ranges::stable_sort(lists, {}, [&](const std::vector<Choice>& list) {
    const Plan& best = list.front().plan;
    if (!best.predicted) return std::pair(std::numeric_limits<double>::infinity(), best.yields);
    const double gain = best.family == preferred ? 1 : kPlannerFactors.family_gain;
    return std::pair(best.predicted->seconds * gain * (best.yields ? kPlannerFactors.yield_gain : 1), best.yields);
  });
  const std::size_t of_first = lists.front().size();
  std::vector<std::string> behind;
  for (const std::vector<Choice>& list : lists | std::views::drop(1)) {
    behind.push_back(standing_behind(list.front().plan, lists.front().front().plan));
  }
  std::vector<Choice> all;
  for (std::vector<Choice>& list : lists) std::ranges::move(list, std::back_inserter(all));
  for (Choice& choice : all | std::views::take(of_first)) {
    choice.plan.rejected.insert(choice.plan.rejected.end(), behind.begin(), behind.end());
  }
  // Lists of tiles are large: only those of the first are kept.
  for (Choice& choice : all | std::views::drop(1)) choice.plan.schedule.reset();
  return all;
}

/// batch_invariant: the one plan by what knows no batch, the first of a family of few queries, or of the table's first.
std::vector<Choice> invariant(std::vector<std::vector<Choice>> lists) {
  const auto few = std::ranges::find_if(
      lists, [](const std::vector<Choice>& list) { return list.front().plan.family->of_few_queries; });
  const auto taken = few != lists.end() ? few : lists.begin();
  Choice first = std::move(taken->front());
  first.plan.rejected.clear();
  if (taken->size() > 1) {
    first.plan.rejected.push_back(
        fmt::format("{} more of {}: batch_invariant takes one kernel, whatever the compiler "
                    "makes of it, and weighs no times",
                    taken->size() - 1, first.plan.family->name));
  }
  for (const std::vector<Choice>& list : lists) {
    if (&list == &*taken) continue;
    first.plan.rejected.push_back(fmt::format("{}: with batch_invariant {} goes before, whatever the batch",
                                              list.front().plan.family->name, first.plan.family->name));
  }
  std::vector<Choice> one;
  one.push_back(std::move(first));
  return one;
}

/// The family of a GPU that the environment asks for; empty: any. A family of one pass says nothing of the other.
std::string family_asked_for(BackendChoice backend, problem::Pass pass) {
  if (backend != BackendChoice::cuda && backend != BackendChoice::amd) return {};
  std::string name = base::value_of(base::Option::family);
  if (name.empty()) return name;
  const Family* family = family_of(name, backend);
  if (family != nullptr) return family->pass == pass ? name : std::string();
  std::vector<std::string_view> names;
  for (const Family& each : families()) {
    if (each.backend == backend) names.push_back(each.name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is '{}'; backend {} has no kernel family of that name, but {}",
                          base::name_of(base::Option::family), name, heddle::name(backend), fmt::join(names, ", ")));
}

}  // namespace

std::vector<Choice> choose(const Request& request, const RowsOf& rows_of, bool variants) {
  const BackendChoice backend = resolve(request.options.backend, request.problem.device, request.machine);
  check_device(request.problem.device, request.machine);
  std::vector<std::vector<Choice>> lists;
  std::vector<std::string> refused;
  const std::string only = family_asked_for(backend, request.problem.pass);
  for (const Family& family : families()) {
    if (family.backend != backend || family.pass != request.problem.pass) continue;
    if (!only.empty() && family.name != only) {
      refused.push_back(fmt::format("{}: {} asks for {}", family.name, base::name_of(base::Option::family), only));
      continue;
    }
    if (std::string reason = family.refuses == nullptr ? "" : family.refuses(request); !reason.empty()) {
      refused.push_back(fmt::format("{}: {}", family.name, reason));
      continue;
    }
    try {
      lists.push_back(family.candidates(request, rows_of));
    } catch (const Error& error) {  // none of its kernels fits
      if (error.code() != ErrorCode::unsupported) throw;
      refused.push_back(fmt::format("{}: {}", family.name, error.what()));
      continue;
    }
    if (variants && family.variants != nullptr) {
      std::ranges::move(family.variants(request, rows_of), std::back_inserter(lists.back()));
    }
    for (Choice& choice : lists.back()) {
      choice.plan.family = &family;
      if (family.untried != nullptr) choice.plan.untried = family.untried(request, choice.plan);
    }
  }
  if (lists.empty()) {
    unsupported("no kernel family of backend {} computes this {}: {}", name(backend), name(request.problem.pass),
                refused.empty() ? "there is none" : fmt::format("{}", fmt::join(refused, "; ")));
  }
  std::vector<Choice> choices =
      request.problem.batch_invariant ? invariant(std::move(lists)) : joined(std::move(lists));
  for (Choice& choice : choices) {
    choice.plan.rejected.insert(choice.plan.rejected.end(), refused.begin(), refused.end());
  }
  return choices;
}

Plan with_schedule(Plan plan, const Request& request, const BlockMask* block_mask) {
  if (plan.schedule == nullptr && plan.family->schedule != nullptr) {
    plan.schedule = std::make_shared<const TileSchedule>(plan.family->schedule(plan, request, block_mask));
  }
  return plan;
}

std::unique_ptr<backend::Kernel> prepare_kernel(const Plan& plan, const BlockMask* block_mask, const Request& request,
                                                const Bindings& bindings) {
  const Plan listed = with_schedule(plan, request, block_mask);
  return plan.family->prepare(
      {request.problem, listed, request.tensors, request.options, bindings, block_mask, request.backward});
}

}  // namespace heddle::plan
