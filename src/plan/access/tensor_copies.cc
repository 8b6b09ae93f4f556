#include "plan/access/tensor_copies.h"

#include <algorithm>

#include "plan/access/tma_refuses.h"
#include "shared/sequences.h"

namespace heddle::plan {
namespace {

constexpr std::int64_t kCopyAlignment = shared::kLineBytes;

std::int64_t aligned(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

/// Bytes that a run copies. Padded sequences copy their real rows, as far as the host knows their lengths.
double copied_bytes(const problem::AttentionProblem& problem, const TensorCopy& copy) {
  if (copy.span == shared::CopiedSpan::all || problem.device_lengths) return static_cast<double>(copy.bytes());
  std::int64_t rows = 0;
  for (const Sequence& sequence : problem.sequences) {
    rows += copy.span == shared::CopiedSpan::queries ? sequence.q_len : sequence.kv_len;
  }
  return static_cast<double>(rows * copy.stored(1) * copy.row_bytes);
}

}  // namespace

TensorCopy copy_for(const ConstTensorView& tensor) {
  const auto shared = [&](int axis) { return tensor.shape[axis] > 1 && tensor.strides[axis] == 0; };
  return {.shape = tensor.shape,
          .shared = {shared(0), shared(1), shared(2)},
          .row_bytes = aligned(tensor.shape[3] * size_of(tensor.dtype), kTmaBytes)};
}

ConstTensorView copy_of(const TensorCopy& copy, DType dtype, const void* workspace) {
  const std::int64_t row = copy.row_bytes / size_of(dtype), head = copy.stored(2) * row,
                     sequence = copy.stored(1) * head;
  const char* data = workspace == nullptr ? nullptr : static_cast<const char*>(workspace) + copy.offset;
  return {data, dtype, copy.shape,
          Dims{copy.shared[0] ? 0 : sequence, copy.shared[1] ? 0 : head, copy.shared[2] ? 0 : row, 1}};
}

std::int64_t room_of(const TensorCopies& copies) {
  std::int64_t bytes = 0;
  for (const std::optional<TensorCopy>& copy : copies) {
    if (copy) bytes += aligned(copy->bytes(), kCopyAlignment);
  }
  return bytes;
}

CopyWork place_copies(TensorCopies& copies, const problem::AttentionProblem& problem, std::int64_t before) {
  const std::int64_t first = aligned(before, kCopyAlignment);
  CopyWork work;
  for (std::optional<TensorCopy>& copy : copies) {
    if (!copy) continue;
    copy->offset += first;
    work.bytes += 2 * copied_bytes(problem, *copy);
    work.shares += static_cast<double>(shared::copied_shares(copy->stored(0), copy->stored(1), copy->stored(2)));
  }
  const std::int64_t room = room_of(copies);
  work.workspace_bytes = room == 0 ? before : first + room;
  return work;
}

}  // namespace heddle::plan
