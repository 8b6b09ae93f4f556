// The float64 reference as the table asks for it: both passes, on any problem.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"

namespace heddle::plan {

std::vector<Choice> reference_choices(const Request& request, const RowsOf& rows_of);

}  // namespace heddle::plan

namespace heddle::reference {

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments);

}  // namespace heddle::reference
