// Arguments that all kernels over the portable fragments have: where sequences stand, and addresses.
#pragma once

#include <string_view>
#include <vector>

#include "problem/problem.h"
#include "shared/sequence_span.h"

namespace heddle::portable {

/// Where each sequence stands, for kernels whose configuration says that they differ.
std::vector<shared::SequenceSpan> spans_of(const problem::AttentionProblem& problem);

/// Throws Error(invalid_argument) unless `bytes`, which a plan found to divide the address of `name`, still do.
void check_address(std::string_view name, const void* address, int bytes);

}  // namespace heddle::portable
