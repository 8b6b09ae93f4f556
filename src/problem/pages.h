// Keys and values that stand in pages, which a table lists for each sequence.
#pragma once

#include "problem/problem.h"

namespace heddle::problem {

/// Keys that a sequence may have: max_pages * page_size. Checks everything of options.page_table but its content.
std::int64_t paged_rows(const AttentionTensors& tensors, const ConstTensorView& page_table);

/// Checks a table on the CPU: each entry that a sequence's keys need must be a page's number.
void check_pages(const AttentionProblem& problem, const ConstTensorView& page_table, std::int64_t pages);

}  // namespace heddle::problem
