#include "families/cpu/cpu_backward_unread.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "families/cpu/tensor_rows.h"

namespace heddle::cpu {
namespace {

void clear_rows(const TensorView& to, std::int64_t entry, std::int64_t begin, std::int64_t end) {
  const std::size_t bytes = static_cast<std::size_t>(to.shape[3] * size_of(to.dtype));
  for (std::int64_t head = 0; head < to.shape[1]; ++head) {
    for (std::int64_t row = begin; row < end; ++row) std::memset(rows_of<Rows>(to, entry, head, row).data, 0, bytes);
  }
}

/// Zeros the rows of a gradient outside of all sequences; if one entry serves all sequences, the rows past the longest.
void clear_padding(const std::optional<TensorView>& gradient, const problem::AttentionProblem& problem,
                   std::int64_t Sequence::*length) {
  if (!gradient) return;
  const TensorView& to = *gradient;
  for (std::int64_t entry = 0; entry < to.shape[0]; ++entry) {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < problem.batch; ++i) {
      const Sequence& sequence = problem.sequences[static_cast<std::size_t>(i)];
      if (to.shape[0] == 1 || i == entry) longest = std::max(longest, sequence.*length);
    }
    clear_rows(to, entry, longest, to.shape[2]);
  }
}

/// Rows of packed keys that do not count: those behind a sequence's kv_len.
void clear_gaps(const std::optional<TensorView>& gradient, const problem::AttentionProblem& problem) {
  if (!gradient) return;
  std::int64_t end = gradient->shape[2];
  for (auto sequence = problem.sequences.rbegin(); sequence != problem.sequences.rend(); ++sequence) {
    clear_rows(*gradient, 0, sequence->kv_begin + sequence->kv_len, end);
    end = sequence->kv_begin;
  }
}

}  // namespace

void clear_unread(const problem::AttentionProblem& problem, const BackwardTensors& tensors) {
  if (problem.packed) {
    if (tensors.dq && !problem.sequences.empty()) {
      const Sequence& last = problem.sequences.back();
      clear_rows(*tensors.dq, 0, last.q_begin + last.q_len, tensors.dq->shape[2]);
    }
    clear_gaps(tensors.dk, problem);
    clear_gaps(tensors.dv, problem);
    return;
  }
  clear_padding(tensors.dq, problem, &Sequence::q_len);
  clear_padding(tensors.dk, problem, &Sequence::kv_len);
  clear_padding(tensors.dv, problem, &Sequence::kv_len);
}

}  // namespace heddle::cpu
