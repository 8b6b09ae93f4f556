#include "backend/cuda/launch/copied_rows.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "backend/cuda/emit/copied_rows.h"

namespace heddle::cuda {
namespace {

constexpr std::size_t kQueries = 0;

const ConstTensorView& view_of(const AttentionTensors& tensors, std::size_t number) {
  return number == kQueries ? tensors.q : number == 1 ? tensors.k : tensors.v;
}
ConstTensorView& view_of(AttentionTensors& tensors, std::size_t number) {
  return number == kQueries ? tensors.q : number == 1 ? tensors.k : tensors.v;
}

/// The most bytes, up to 16, that divide where each row begins and how long it is.
int width_of(const shared::CopiedRows& rows) {
  constexpr std::int64_t kMost = 16;
  std::int64_t width = std::gcd(kMost, static_cast<std::int64_t>(rows.row_bytes));
  width = std::gcd(width, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.from) % kMost));
  for (const long long step : rows.from_step) width = std::gcd(width, std::abs(step % kMost));
  return static_cast<int>(width);
}

}  // namespace

CopiedTensors::CopiedTensors(const backend::PrepareArguments& arguments, bool by_sequence)
    : copies_(arguments.plan.copies),
      cubin_(jit::build(emit::copied_rows())),
      module_(arguments.plan.device, cubin_->bytes, jit::compiler_number()),
      copy_(module_.function("copy_rows", 0)),
      most_ctas_(static_cast<unsigned>(arguments.plan.multiprocessors * shared::kCopyCtas)) {
  const problem::AttentionProblem& problem = arguments.problem;
  int count = 0;
  for (std::size_t number = 0; number < copies_.size(); ++number) {
    if (!copies_[number]) continue;
    const plan::TensorCopy& copy = *copies_[number];
    const ConstTensorView& view = view_of(arguments.tensors, number);
    shared::CopiedRows& rows = params_.tensors[count++];
    const std::int64_t element = size_of(view.dtype);
    for (int axis = 0; axis < 3; ++axis) {
      rows.from_step[axis] = view.shape[axis] == 1 ? 0 : view.strides[axis] * element;
    }
    rows.to_row_step = copy.row_bytes;
    rows.sequences = static_cast<int>(copy.shape[0]);
    rows.heads = static_cast<int>(copy.shape[1]);
    rows.rows = static_cast<int>(copy.shape[2]);
    rows.row_bytes = static_cast<int>(copy.shape[3] * element);
    rows.paged = copy.paged;
    // Keys in pages are each sequence's own, though queries may be packed; others may be one batch entry's for all.
    const bool own = by_sequence && (copy.paged || (!problem.packed && copy.shape[0] == problem.batch));
    if (own) rows.span = number == kQueries ? shared::CopiedSpan::queries : shared::CopiedSpan::keys;
    rows.shares = shared::copied_shares(rows);
    params_.shares += rows.shares;
  }
  params_.page_rows = static_cast<int>(problem.page_rows);
}

AttentionTensors CopiedTensors::reached(AttentionTensors tensors, void* workspace) const {
  for (std::size_t number = 0; number < copies_.size(); ++number) {
    if (!copies_[number]) continue;
    ConstTensorView& view = view_of(tensors, number);
    view = plan::copy_of(*copies_[number], view.dtype, workspace);
  }
  return tensors;
}

void CopiedTensors::launch(const AttentionTensors& tensors, const shared::ForwardSm90Params& params, void* workspace,
                           void* stream) const {
  if (params_.shares == 0) return;
  shared::CopiedRowsParams own = params_;
  int count = 0;
  for (std::size_t number = 0; number < copies_.size(); ++number) {
    if (!copies_[number]) continue;
    shared::CopiedRows& rows = own.tensors[count++];
    rows.from = static_cast<const char*>(view_of(tensors, number).data);
    rows.to = static_cast<char*>(workspace) + copies_[number]->offset;
    rows.width = width_of(rows);
  }
  own.sequences = params.mod.sequences;
  own.page_table = params.page_table;
  const Launch launch = {.ctas = static_cast<unsigned>(std::min<long long>(own.shares, most_ctas_)),
                         .threads = shared::kCopyThreads};
  void* parameters[] = {&own};
  launch_kernel(copy_, launch, stream, parameters, "launching copy_rows");
}

std::int64_t CopiedTensors::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& copy : copies_) bytes += copy ? copy->bytes() : 0;
  return bytes;
}

}  // namespace heddle::cuda
