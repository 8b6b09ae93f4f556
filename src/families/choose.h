// Which families compute a problem on its device, in which order their plans are tried, and the kernel of a plan: all
// that planning and preparing ask of the table of families.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"

namespace heddle::plan {

/// The plans that would do, best first, at least one: the engine takes the next where the first cannot be prepared.
/// Automatic is the backend of the tensors' device. Throws Error(unsupported), with the reason of each family, when
/// there is none: never a family on another device. With `variants` the list ends with plans that are only worth
/// measuring.
std::vector<Choice> choose(const Request& request, const RowsOf& rows_of, bool variants = false);

/// The plan with the lists of its tiles over these rows: made anew where it has none.
Plan with_schedule(Plan plan, const Request& request, const BlockMask* block_mask);

/// The kernel of a plan, over the lists of its tiles. Throws backend::Rejected when it is not acceptable but that of
/// another plan may be.
std::unique_ptr<backend::Kernel> prepare_kernel(const Plan& plan, const BlockMask* block_mask, const Request& request,
                                                const Bindings& bindings);

}  // namespace heddle::plan
