// The parameters of the portable families' forward kernels, which are the same on every device: those that a plan
// fixes, and those that each run brings.
#pragma once

#include "backend/backend.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "backend/portable/shared/forward_params.h"

namespace heddle::portable {

/// All but addresses and values of mods.
void set_constants(const backend::PrepareArguments& arguments, shared::ForwardParams& params);

/// The addresses of a run. Throws Error(invalid_argument), naming the tensor, where one is aligned less than planned.
void set_addresses(const shared::ForwardMmaConfig& config, const backend::RunArguments& arguments,
                   shared::ForwardParams& params);

/// The factors of a run's queries, keys and values of 8 bits.
shared::Descales descales_of(const AttentionOptions& options);

}  // namespace heddle::portable
