// The portable forward family on NVIDIA's and AMD's GPUs: what it refuses, its configurations of a problem, its plans,
// and the text of one kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/gpu/dialect.h"
#include "backend/gpu/gpu.h"
#include "backend/portable/portable_config.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "backend/portable/shared/forward_params.h"
#include "plan/mods/kernel_mods.h"
#include "plan/plan.h"
#include "plan/setting.h"

namespace heddle::plan {

/// A sentence where the family does not take the problem: it names the given value and the accepted ones. Empty: it
/// does.
std::string forward_mma_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                const device::CudaCaps& caps);
std::string forward_mma_refuses(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                const device::AmdCaps& caps);

/// The queries of the longest sequence.
std::int64_t forward_mma_longest_queries(const problem::AttentionProblem& problem);

/// The kernels for a problem on a GPU, best first: those for few queries before the others. What depends on the
/// strides is as `tensors` and `options` have them. `shared_memory_bytes`: that a CTA may have. `splits` stays 1.
std::vector<shared::ForwardMmaConfig> forward_mma_configs(const problem::AttentionProblem& problem,
                                                          const KernelMods& mods, const AttentionTensors& tensors,
                                                          const AttentionOptions& options,
                                                          std::int64_t shared_memory_bytes, MmaTarget target);

/// Why the kernel does not fit: a sentence without a subject. Empty when it does. `places`: of its mods. `callers`: the
/// block mask that was given.
std::string forward_mma_misfit(const shared::ForwardMmaConfig& config, const problem::AttentionProblem& problem,
                               const Places& places, std::int64_t shared_memory_bytes, const BlockMask* callers);

/// explain()'s lines about a kernel.
std::vector<Setting> forward_mma_settings(const shared::ForwardMmaConfig& config);

/// The family's plans, best first, at least one. Throws Error(unsupported) when no kernel fits.
std::vector<Choice> forward_mma(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of);
std::vector<Choice> forward_mma(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                const AttentionOptions& options, const device::AmdCaps& caps, const RowsOf& rows_of);

/// Variants of plans in which CTAs share a tile's steps, or could: half and twice as many CTAs.
std::vector<Choice> forward_mma_variants(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::CudaCaps& caps,
                                         const RowsOf& rows_of);
std::vector<Choice> forward_mma_variants(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                         const AttentionOptions& options, const device::AmdCaps& caps,
                                         const RowsOf& rows_of);

TileSchedule forward_mma_schedule(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config,
                                  const BlockMask* block_mask, const device::GpuCaps& caps, const TileOrder& order);

}  // namespace heddle::plan

namespace heddle::forward_mma {

/// "forward_mma bf16 d128 64x64 masked lse"
std::string name_of(const shared::ForwardMmaConfig& config);

/// Parameters of the first slice of the values' columns become those of slice `number`, of config.value_slices.
/// `v_dim`: of the whole values; `o_dtype`: of o.
void stand_at_slice(const shared::ForwardMmaConfig& config, int number, std::int64_t v_dim, DType o_dtype,
                    shared::ForwardParams& params);

/// Kernel forward_mma, which takes shared::ForwardMmaParams, for that architecture: "sm_80", "gfx1100". `layout`: of
/// the mods' params and captures.
jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture);

/// The kernel of a plan: compiled, its lists on the device, ready to launch. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::forward_mma
