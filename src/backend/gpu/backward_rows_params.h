// Parameters of the kernel that finds each row's numbers before a backward's passes, as far as all families set them
// alike: the caller's tensors and the unit of scores. Lists, and buffers in the workspace, are each family's own.
#pragma once

#include "backend/backend.h"
#include "shared/backward_tiles.h"

namespace heddle::gpu {

/// Parameters that all runs of a plan share.
shared::BackwardRowsParams backward_rows_params(const backend::PrepareArguments& arguments);

/// Sets a run's own parameters: the addresses of its tensors.
void set_row_addresses(const backend::RunArguments& arguments, shared::BackwardRowsParams& rows);

}  // namespace heddle::gpu
