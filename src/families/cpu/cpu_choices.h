// The CPU families as the table asks for them.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"

namespace heddle::plan {

// The planned tile, with its predicted time; and the others, which only a measurement would put before it.
std::vector<Choice> cpu_forward_choices(const Request& request, const RowsOf& rows_of);
std::vector<Choice> cpu_forward_variant_choices(const Request& request, const RowsOf& rows_of);
std::vector<Choice> cpu_backward_choices(const Request& request, const RowsOf& rows_of);
std::vector<Choice> cpu_backward_variant_choices(const Request& request, const RowsOf& rows_of);

}  // namespace heddle::plan

namespace heddle::cpu {

std::unique_ptr<backend::Kernel> prepare_forward(const backend::PrepareArguments& arguments);
std::unique_ptr<backend::Kernel> prepare_backward(const backend::PrepareArguments& arguments);

}  // namespace heddle::cpu
