// The text of the portable backward's kernels, for any compiler: CUDA's, HIP's, the host's.
#pragma once

#include <string>

#include "backend/device_text/expression_text.h"
#include "backend/gpu/dialect.h"
#include "families/backward_mma/backward_mma_candidates.h"
#include "families/backward_mma/backward_mma_reads.h"
#include "plan/mods/backward_mods.h"

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

/// The class portable::StoredSums of gradients of these types, for the kernels around reads.
std::string sums_class(const plan::BackwardMmaKernels& kernels, const std::vector<shared::OutputType>& types);

/// The layout of the mods and the reads, of the problem's reals.
device_text::ModLayout layout_of(const plan::BackwardMods& mods, const plan::MmaReads& reads, expr::Precision reals);

/// Rows have numbers, which a kernel before the passes finds.
bool has_rows(const plan::BackwardMmaKernels& kernels);

/// The kernels backward_mma_0 and on, a pass each, which take shared::BackwardMmaParams; with softmax
/// backward_mma_rows, and with d_sinks backward_mma_sinks, which take shared::BackwardRowsParams; with reads
/// backward_mma_clear and backward_mma_store, which take shared::MmaSumsParams. For that architecture: "sm_80",
/// "gfx1100". `types`: of the reads' gradients.
jit::Source source(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods, const plan::MmaReads& reads,
                   const std::vector<shared::OutputType>& types, const device_text::ModLayout& layout,
                   const gpu::Dialect& dialect, const std::string& architecture);

}  // namespace heddle::backward_mma
