// Where rows of q, k and v stand in a row-major tensor of their shape.
#pragma once

#include <algorithm>

#include "problem/problem.h"

namespace heddle::reference {

/// Row `row` of a [B, H, S, D] shape; a batch of 1 serves all.
inline std::int64_t row_begin(const Dims& shape, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return (((shape[0] == 1 ? 0 : batch) * shape[1] + head) * shape[2] + row) * shape[3];
}

/// The page, of `pages`, that holds key j of sequence b: of its row of the table, or of its part of the list. An entry
/// that no query reads may be no page's number: it counts as the nearest page.
inline std::int64_t page_number(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                std::int64_t b, std::int64_t j, std::int64_t pages) {
  const std::int64_t number = j / problem.page_rows;
  const Dims index =
      problem.listed_pages ? Dims{problem.page_starts[static_cast<std::size_t>(b)] + number} : Dims{b, number};
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(get_element(*options.page_table, index)), 0, pages - 1);
}

/// Key j of sequence b in k's or v's shape; a page may hold it.
inline std::int64_t key_begin(const Dims& shape, const problem::AttentionProblem& problem,
                              const AttentionOptions& options, std::int64_t b, std::int64_t head, std::int64_t j) {
  if (problem.page_rows == 0) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(b)];
    return row_begin(shape, problem.packed ? 0 : b, head, sequence.kv_begin + j);
  }
  return row_begin(shape, page_number(problem, options, b, j, shape[0]), head, j % problem.page_rows);
}

}  // namespace heddle::reference
