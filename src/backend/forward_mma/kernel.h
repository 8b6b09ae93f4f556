// The portable forward family's kernel on a GPU: compiled, its lists on the device, ready to launch.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/device_text/expression_text.h"
#include "backend/gpu/gpu.h"
#include "plan/mods/kernel_mods.h"
#include "shared/forward_mma_config.h"

namespace heddle::forward_mma {

/// Makes the text of a kernel for a device of one vendor, with that vendor's launch bounds and shared memory: kernel
/// forward_mma, which takes shared::ForwardMmaParams.
using MakeSource = jit::Source (*)(int device, const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                                   const device_text::ModLayout& layout);

/// `shared_bytes`: of dynamic shared memory that a launch asks for. Throws as Gpu::load().
std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu,
                                         MakeSource make_source, int shared_bytes);

}  // namespace heddle::forward_mma
