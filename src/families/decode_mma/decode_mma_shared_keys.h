// Two kernels for sequences that share keys: one of these keys alone, and behind it one of the sequences' own keys.
#pragma once

#include <string>

#include "backend/portable/shared/forward_mma_config.h"
#include "device/caps.h"
#include "heddle/tensor.h"
#include "problem/problem.h"

namespace heddle::plan {

/// Whether a kernel can have the shared keys alone, beside one that is configured as `own`: on Hopper, of 16 bits, head
/// dimensions of whole panels, pages of boxes.
bool can_share_alone(const shared::ForwardMmaConfig& own, const AttentionTensors& tensors,
                     const device::CudaCaps& caps);

/// The configuration of the kernel of shared keys. `own`: shares_elsewhere().
shared::ForwardMmaConfig shared_keys_config(const shared::ForwardMmaConfig& own);

/// Its gangs, for which a chip of so many multiprocessors has room. `tiles`: of each sequence.
int shared_keys_gangs(const shared::ForwardMmaConfig& own, int multiprocessors, int tiles);

}  // namespace heddle::plan
