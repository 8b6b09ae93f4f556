// Tables and lists of pages, as kernels look them up.
#pragma once

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
#include "shared/paging.h"

namespace heddle::gpu {

/// Where the parts of a list begin, if they are on the GPU; else null.
shared::PageStarts page_starts_view(const AttentionOptions& options);

/// A plan's table: all but addresses on the GPU. `pages`: that k and v have.
shared::PageTable planned_table(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                std::int64_t pages);
/// The addresses of a run. Starts that the host knows stay the plan's.
void set_table(const AttentionOptions& options, shared::PageTable& table);

/// Starts that the host knows are uploaded here, once, and `table` points to them. Empty if it knows none.
Memory upload_page_starts(const backend::DeviceInterface& devices, int device, const problem::AttentionProblem& problem,
                          shared::PageTable& table);

}  // namespace heddle::gpu
