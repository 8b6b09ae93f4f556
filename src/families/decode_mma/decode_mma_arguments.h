// The parameters of decode_mma's kernels: those that a plan fixes, and those that each run brings.
#pragma once

#include "backend/backend.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/decode_mma/shared/decode_mma_params.h"

namespace heddle::decode_mma {

/// All but addresses and values of mods.
shared::DecodeMmaParams constant_params(const backend::PrepareArguments& arguments);

/// The addresses of a run. Throws Error(invalid_argument), naming the tensor, where one is aligned less than planned.
void set_addresses(const shared::ForwardMmaConfig& config, const backend::RunArguments& arguments, int ctas,
                   shared::DecodeMmaParams& params);

/// config.boxes: all but the maps, for keys `k`.
void set_box_numbers(const shared::ForwardMmaConfig& config, const ConstTensorView& k,
                     shared::DecodeMmaBoxParams& params);

}  // namespace heddle::decode_mma
