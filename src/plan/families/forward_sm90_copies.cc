#include "plan/families/forward_sm90_copies.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/families/forward_sm90_costs.h"
#include "shared/sequences.h"

namespace heddle::plan {
namespace {

constexpr std::int64_t kStrideEnd = std::int64_t{1} << 40;  // of what TMA takes, in bytes
constexpr std::int64_t kCopyAlignment = shared::kLineBytes;

std::int64_t aligned(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

/// That a run copies: of padded sequences the rows that there are, as far as the host knows.
double copied_bytes(const problem::AttentionProblem& problem, const TensorCopy& copy) {
  if (copy.span == shared::CopiedSpan::all || problem.device_lengths) return static_cast<double>(copy.bytes());
  std::int64_t rows = 0;
  for (const Sequence& sequence : problem.sequences) {
    rows += copy.span == shared::CopiedSpan::queries ? sequence.q_len : sequence.kv_len;
  }
  return static_cast<double>(rows * copy.stored(1) * copy.row_bytes);
}

}  // namespace

std::string tma_refuses(const ConstTensorView& view) {
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] == 1) continue;
    const std::int64_t stride = view.strides[axis], unit = kTmaBytes / size_of(view.dtype),
                       end = kStrideEnd / size_of(view.dtype);
    if (stride >= 0 && stride % unit == 0 && stride < end) continue;
    return fmt::format("its strides are {}, and TMA takes multiples of {} elements, from 0 on and below {}",
                       to_string(view.strides), unit, end);
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % kTmaBytes == 0) return {};
  return fmt::format("its address is no multiple of {}, as TMA takes", kTmaBytes);
}

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

void add_copies(Plan& plan, const problem::AttentionProblem& problem, const TensorCopies& copies) {
  plan.copies = copies;
  const std::int64_t room = room_of(copies);
  if (room == 0) return;
  const std::int64_t before = aligned(plan.workspace_bytes, kCopyAlignment);
  double moved = 0, shares = 0;
  for (std::optional<TensorCopy>& copy : plan.copies) {
    if (!copy) continue;
    copy->offset += before;
    moved += 2 * copied_bytes(problem, *copy);
    shares += static_cast<double>(shared::copied_shares(copy->stored(0), copy->stored(1), copy->stored(2)));
  }
  plan.workspace_bytes = before + room;
  plan.predicted->bytes += moved;
  plan.predicted->seconds += kSm90Rates.copy_seconds + std::max(moved / kSm90Rates.memory_bytes_per_second,
                                                                shares * kSm90Rates.copied_share_seconds);
}

}  // namespace heddle::plan
