// decode_mma, the portable family for few queries on NVIDIA's GPUs: what it refuses, its configurations of a problem,
// its plans, and the text of one kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/gpu/dialect.h"
#include "backend/gpu/gpu.h"
#include "backend/portable/portable_config.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "device/caps.h"
#include "plan/mods/kernel_mods.h"
#include "plan/plan.h"
#include "plan/setting.h"

namespace heddle::plan {

/// A sentence where the family does not take the problem: it names the given value and the accepted ones. Empty: it
/// does.
std::string decode_mma_refuses(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                               const AttentionOptions& options, const device::CudaCaps& caps);

/// The kernels for a problem that is not refused, best first: those whose CTAs fit a multiprocessor. What depends on
/// the strides is as `tensors` and `options` have them.
std::vector<shared::ForwardMmaConfig> decode_mma_configs(const problem::AttentionProblem& problem,
                                                         const KernelMods& mods, const AttentionTensors& tensors,
                                                         const AttentionOptions& options, const device::CudaCaps& caps);

/// Which sequences' keys a kernel reads once, if the caller says that sequences share keys: a sentence for explain().
std::string decode_mma_prefixes(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config);

/// Tiles of each sequence.
int decode_mma_tiles(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config);
/// Tiles that have queries of the same heads.
int decode_mma_query_tiles(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config);

/// Units of all sequences, as long as they may be.
std::int64_t decode_mma_units(const problem::AttentionProblem& problem, const shared::ForwardMmaConfig& config);

/// explain()'s lines about a kernel.
std::vector<Setting> decode_mma_settings(const shared::ForwardMmaConfig& config);

/// The family's plans, best first, at least one. Throws Error(unsupported) when no kernel fits, and where the mask
/// leaves few of the keys within the bounds that it has: the kernels read all keys there. Planning weighs with the
/// values of the options' bindings.
std::vector<Choice> decode_mma(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                               const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of);

}  // namespace heddle::plan

namespace heddle::decode_mma {

/// "decode_mma bf16 d128 16x128 packed 4"
std::string name_of(const shared::ForwardMmaConfig& config);

/// The kernel's configuration and mods: what Decode is made of, but for the architecture's fragments. `layout`: of the
/// mods' params and captures.
std::string config_and_mods(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                            const device_text::ModLayout& layout);

/// Kernel decode_mma, which takes shared::DecodeMmaParams, for that architecture: "sm_80".
jit::Source source(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                   const device_text::ModLayout& layout, const gpu::Dialect& dialect, const std::string& architecture);

/// The kernel of a plan: compiled, ready to launch. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::decode_mma
