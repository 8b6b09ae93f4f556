// The parameters of the portable forward family, which are the same on every device: what a plan fixes, and what each
// run brings.
#pragma once

#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "shared/forward_mma.h"
#include "shared/sequence_span.h"

namespace heddle::forward_mma {

/// All but addresses, lists of tiles and values of mods.
shared::ForwardMmaParams constant_params(const backend::PrepareArguments& arguments);

/// Where each sequence stands, for kernels whose configuration says that they differ.
std::vector<shared::SequenceSpan> spans_of(const problem::AttentionProblem& problem);

/// Throws Error(invalid_argument) unless `bytes`, which a plan found to divide the address of `name`, still do.
void check_address(std::string_view name, const void* address, int bytes);

/// The addresses of a run. Throws Error(invalid_argument), naming the tensor, where one is aligned less than planned.
void set_addresses(const shared::ForwardMmaConfig& config, const backend::RunArguments& arguments,
                   shared::ForwardMmaParams& params);

}  // namespace heddle::forward_mma
