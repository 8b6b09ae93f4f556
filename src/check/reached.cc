#include "check/reached.h"

#include <cmath>

#include "reference/row_offsets.h"

namespace heddle::check {
namespace {

using Flags = std::vector<bool>;

std::size_t count_of(const ConstTensorView& view) { return static_cast<std::size_t>(view.count()); }

// By its row-major number.
double element_of(const ConstTensorView& view, std::int64_t number) {
  Dims index = view.shape;
  for (int axis = view.rank() - 1; axis >= 0; --axis) {
    index[axis] = number % view.shape[axis];
    number /= view.shape[axis];
  }
  return get_element(view, index);
}

// Adds the columns of the row that begins at element `begin` and hold something that is not finite.
void add_columns(const ConstTensorView& view, std::int64_t begin, Flags& columns) {
  for (std::size_t d = 0; d < columns.size(); ++d) {
    if (!std::isfinite(element_of(view, begin + static_cast<std::int64_t>(d)))) columns[d] = true;
  }
}
void mark(Flags& flags, std::int64_t begin, const Flags& columns) {
  for (std::size_t d = 0; d < columns.size(); ++d) {
    if (columns[d]) flags[static_cast<std::size_t>(begin) + d] = true;
  }
}

}  // namespace

ReachedByMasked reached_by_masked(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                                  const AttentionOptions& options, const ConstTensorView& d_o) {
  ReachedByMasked reached{Flags(count_of(tensors.q)), Flags(count_of(tensors.k)), Flags(count_of(tensors.v))};
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(b)];
    for (std::int64_t h = 0; h < problem.q_heads; ++h) {
      const auto query = [&](const Dims& shape, std::int64_t i) {
        return reference::row_begin(shape, problem.packed ? 0 : b, h, sequence.q_begin + i);
      };
      const auto key = [&](const Dims& shape, std::int64_t j) {
        return reference::key_begin(shape, problem, options, b, h / problem.group(), j);
      };
      Flags of_k(static_cast<std::size_t>(problem.qk_dim));
      Flags of_q(of_k.size());
      Flags of_d_o(static_cast<std::size_t>(problem.v_dim));
      for (std::int64_t j = 0; j < sequence.kv_len; ++j) add_columns(tensors.k, key(tensors.k.shape, j), of_k);
      for (std::int64_t i = 0; i < sequence.q_len; ++i) {
        add_columns(tensors.q, query(tensors.q.shape, i), of_q);
        add_columns(d_o, query(d_o.shape, i), of_d_o);
      }
      for (std::int64_t i = 0; i < sequence.q_len; ++i) mark(reached.q, query(tensors.q.shape, i), of_k);
      for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
        mark(reached.k, key(tensors.k.shape, j), of_q);
        mark(reached.v, key(tensors.v.shape, j), of_d_o);
      }
    }
  }
  return reached;
}

}  // namespace heddle::check
