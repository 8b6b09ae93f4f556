// The portable backward family on NVIDIA's and AMD's GPUs: which problems it takes, its kernels of a problem, its
// plans, what its workspace holds, and the text of the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/gpu/dialect.h"
#include "backend/gpu/gpu.h"
#include "backend/portable/portable_config.h"
#include "families/backward_mma/backward_mma_reads.h"
#include "families/backward_mma/backward_mma_widened.h"
#include "families/backward_mma/shared/backward_mma_config.h"
#include "plan/config_fields.h"
#include "plan/mods/backward_mods.h"
#include "plan/plan.h"
#include "plan/setting.h"
#include "plan/tiles/backward_schedule.h"
#include "shared/backward_lists.h"

namespace heddle::plan {

/// The kernels of backward_mma: its passes in the order of their launches, and what the kernels around them are.
struct BackwardMmaKernels {
  std::vector<shared::BackwardMmaConfig> passes;
  shared::BackwardMmaRows rows;
  std::int64_t sum_elements = 0;  // of gradients of captures and params
  int ordered_sums = 0;           // how many of them are sums of integers, in any order; 0: of reals
  WidenedCopies copies;           // of tensors of 8 bits
  std::string widen;              // the class of the kernel that makes them; empty: there are none
};

/// The kernels for a problem on a GPU, best first. What depends on strides is as `tensors` have them.
std::vector<BackwardMmaKernels> backward_mma_kernels(const problem::AttentionProblem& problem, const BackwardMods& mods,
                                                     const MmaReads& reads, const BackwardTensors& tensors,
                                                     MmaTarget target);

/// The name of a pass in kernels' names and in explain(): "dq, dk and dv", "dk and dv", "dk", "dv", "dq" (also of a
/// pass that only sums reads); "largest parts by keys" or "by queries".
std::string_view name_of_pass(const shared::BackwardMmaConfig& pass);

/// explain()'s lines about the kernels.
std::vector<Setting> backward_mma_settings(const BackwardMmaKernels& kernels);

/// Empty if the family takes the problem; else a sentence that names the given value and the accepted ones. Any strides
/// are taken.
std::string backward_mma_refuses(const Request& request, const device::CudaCaps& caps);
std::string backward_mma_refuses(const Request& request, const device::AmdCaps& caps);

/// The family's plans, best first, at least one. Throws Error(unsupported) when no kernel fits.
std::vector<Choice> backward_mma(const Request& request, const device::CudaCaps& caps, const RowsOf& rows_of);
std::vector<Choice> backward_mma(const Request& request, const device::AmdCaps& caps, const RowsOf& rows_of);

/// Why the kernels do not fit; empty when they do.
std::string backward_mma_misfit(const BackwardMmaKernels& kernels, std::int64_t shared_memory_bytes);

/// The schedule of a pass. `block_mask` null: everything attends. Else its blocks are multiples of 64 x 64.
BackwardSchedule backward_mma_schedule(const problem::AttentionProblem& problem, const shared::BackwardMmaConfig& pass,
                                       const BlockMask* block_mask);

/// CTAs of a pass whose schedule has `items` items.
int backward_mma_ctas(const problem::AttentionProblem& problem, const shared::BackwardMmaConfig& pass,
                      std::int64_t items);

/// The one pass gives dq, dk and dv, and adds dq to sums in the workspace.
bool adds_queries(const BackwardMmaKernels& kernels);
/// Threads of a CTA of the kernel that makes dq of them.
int stored_queries_threads(const BackwardMmaKernels& kernels);
/// Sums in the workspace become 0 before the passes.
bool clears_sums(const BackwardMmaKernels& kernels);

/// Sequences differ: kernels read where each stands.
bool has_spans(const BackwardMmaKernels& kernels);

/// Offsets in bytes in a run's workspace.
struct BackwardMmaWorkspace {
  std::int64_t numbers;   // softmax: portable_numbers() of each block and head
  std::int64_t sinks;     // a real of each block and head
  std::int64_t lists;     // lengths on the device: what backward_lists_memory() says, without tiles
  std::int64_t sums;      // reals of the gradients of captures and params
  std::int64_t largest;   // ordered_sums: a word of 64 bits of each, and behind them, at
  std::int64_t integers;  // this offset, the words of their elements
  std::int64_t d_q;       // adds_queries(): d_q_floats() of each block and head
  std::int64_t copies;    // of tensors of 8 bits
  std::int64_t bytes;
};
BackwardMmaWorkspace backward_mma_workspace(const problem::AttentionProblem& problem,
                                            const BackwardMmaKernels& kernels);
shared::BackwardListsMemory backward_mma_lists(const problem::AttentionProblem& problem);

}  // namespace heddle::plan

namespace heddle::backward_mma {

/// "backward_mma mma bf16 d128 dk and dv 64x32, dq 128x32 masked"
std::string name_of(const plan::BackwardMmaKernels& kernels);

/// In namespace heddle: kPass0 and on, kRows, and the class GeneratedMods. It includes the headers of
/// kernels/common/mods, src/shared and kernels/portable that it needs, also those of the kernels. With reads: the
/// structs Read0 and on.
std::string config_and_mods_text(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                                 const plan::MmaReads& reads, const device_text::ModLayout& layout);

/// Pass number `pass`: the class portable::Backward with its arguments, to be constructed.
std::string pass_class(const plan::BackwardMmaKernels& kernels, std::size_t pass);

/// The class portable::AddedQueries, where the pass adds dq: its store() makes dq of the sums.
std::string stored_queries_class(const plan::BackwardMmaKernels& kernels);

/// The class portable::StoredSums of gradients of these types, for the kernels around reads.
std::string sums_class(const plan::BackwardMmaKernels& kernels, const std::vector<shared::StorageType>& types);

/// The layout of the mods and the reads, of the problem's reals.
device_text::ModLayout layout_of(const plan::BackwardMods& mods, const plan::MmaReads& reads, expr::Precision reals);

/// Rows have numbers, which a kernel before the passes finds.
bool has_rows(const plan::BackwardMmaKernels& kernels);

/// The kernels backward_mma_0 and on, a pass each, which take shared::BackwardMmaParams; with softmax
/// backward_mma_rows, and with d_sinks backward_mma_sinks, which take shared::BackwardRowsParams; with sums
/// backward_mma_clear, with reads backward_mma_store, which take shared::MmaSumsParams; where dq is added
/// backward_mma_queries, which takes shared::BackwardRowsParams; beside tensors of 8 bits
/// backward_mma_widen, which takes shared::MmaWidenParams. For that architecture: "sm_80",
/// "gfx1100". `types`: of the reads' gradients.
jit::Source source(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods, const plan::MmaReads& reads,
                   const std::vector<shared::StorageType>& types, const device_text::ModLayout& layout,
                   const gpu::Dialect& dialect, const std::string& architecture);

/// The kernels of a plan: compiled, their lists on the device, ready to launch. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu);

}  // namespace heddle::backward_mma

#define HEDDLE_CONFIG BackwardMmaConfig
#define HEDDLE_CONFIG_FIELDS "families/backward_mma/shared/backward_mma_config.def"
#include "plan/config_fields.inc"
