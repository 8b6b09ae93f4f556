// The portable backward family's kernels on a GPU: compiled, their lists on the device, ready to launch.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/gpu/gpu.h"
#include "plan/mods/backward_mods.h"

namespace heddle::backward_mma {

/// Makes the text of the kernels for a device of one vendor, with that vendor's launch bounds and shared memory:
/// kernels backward_mma_0 and on, a pass each, which take shared::BackwardMmaParams; with softmax backward_mma_rows,
/// and with d_sinks backward_mma_sinks, which take shared::BackwardRowsParams.
using MakeSource = jit::Source (*)(int device, const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                                   const device_text::ModLayout& layout);

/// `dynamic`: launches ask for the passes' shared memory; else the kernels declare it. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu,
                                         MakeSource make_source, bool dynamic);

}  // namespace heddle::backward_mma
