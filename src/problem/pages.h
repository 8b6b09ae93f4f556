// Keys and values that stand in pages, which a table lists for each sequence.
#pragma once

#include "problem/problem.h"

namespace heddle::problem {

/// Sets page_rows, listed_pages, page_starts, and kv_rows: the keys that a sequence may have. Checks everything of
/// options.page_table but its content, and of options.page_starts but what the host does not see.
void resolve_pages(const AttentionTensors& tensors, const AttentionOptions& options, AttentionProblem& problem);
/// The table has a row, or the list a part, for each sequence. If the host knows the parts: no sequence has more keys
/// than its pages have rows, and one without a length as many.
void check_pages_of_sequences(const AttentionOptions& options, AttentionProblem& problem);

/// Refuses start i of the parts of a list: it follows `before`.
[[noreturn]] void refuse_page_start(std::int64_t i, std::int64_t start, std::int64_t before, std::int64_t entries);

/// On the CPU: the page of rows from number * page_rows on of sequence b, as it stands in the table.
std::int64_t page_of(const AttentionProblem& problem, const ConstTensorView& page_table, std::int64_t b,
                     std::int64_t number);

/// Checks a table on the CPU: each entry of keys that a query attends, by the masks, must be a page's number. The masks
/// are asked only if an entry is none. `pages`: that k has.
void check_pages(const AttentionProblem& problem, const AttentionOptions& options, const Bindings& bindings,
                 std::int64_t pages);

}  // namespace heddle::problem
