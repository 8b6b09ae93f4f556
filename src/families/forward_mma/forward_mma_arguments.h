// The parameters of the portable forward family, which are the same on every device: those that a plan fixes,
// and those that each run brings.
#pragma once

#include "backend/backend.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/shared/forward_mma_params.h"

namespace heddle::forward_mma {

/// All but addresses, lists of tiles and values of mods.
shared::ForwardMmaParams constant_params(const backend::PrepareArguments& arguments);

/// The addresses of a run. Throws Error(invalid_argument), naming the tensor, where one is aligned less than planned.
void set_addresses(const shared::ForwardMmaConfig& config, const backend::RunArguments& arguments,
                   shared::ForwardMmaParams& params);

}  // namespace heddle::forward_mma
