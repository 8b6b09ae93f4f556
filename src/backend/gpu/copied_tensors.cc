#include "backend/gpu/copied_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "heddle/error.h"

namespace heddle::gpu {
namespace {

constexpr const char* kText = "#include \"around/copied_rows_kernel.cuh\"\n";

/// The most bytes, up to 16, that divide where each row begins and how long it is.
int width_of(const shared::CopiedRows& rows) {
  constexpr std::int64_t kMost = 16;
  std::int64_t width = std::gcd(kMost, static_cast<std::int64_t>(rows.row_bytes));
  width = std::gcd(width, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.from) % kMost));
  for (const long long step : rows.from_step) width = std::gcd(width, std::abs(step % kMost));
  return static_cast<int>(width);
}

void set_extents(shared::CopiedRows& rows, const plan::TensorCopy& copy, std::int64_t element) {
  rows.to_row_step = copy.row_bytes;
  rows.sequences = static_cast<int>(copy.stored(0));
  rows.heads = static_cast<int>(copy.stored(1));
  rows.rows = static_cast<int>(copy.stored(2));
  rows.row_bytes = static_cast<int>(copy.shape[3] * element);
  rows.shares = shared::copied_shares(rows.sequences, rows.heads, rows.rows);
}

/// Where the rows of a tensor are.
void set_source(shared::CopiedRows& rows, const ConstTensorView& tensor) {
  rows.from = static_cast<const char*>(tensor.data);
  for (int axis = 0; axis < 3; ++axis) {
    rows.from_step[axis] = tensor.shape[axis] == 1 ? 0 : tensor.strides[axis] * size_of(tensor.dtype);
  }
  rows.width = width_of(rows);
}

}  // namespace

CopiedTensors::CopiedTensors(const Gpu& gpu, const backend::PrepareArguments& arguments)
    : copies_(arguments.plan.copies),
      program_(gpu.load(arguments.plan.device, gpu.source(arguments.plan.device, "copy_rows", kText))),
      copy_(program_->function("copy_rows")),
      most_ctas_(static_cast<unsigned>(arguments.plan.multiprocessors * shared::kCopyCtas)) {
  int count = 0;
  for (const std::optional<plan::TensorCopy>& copy : copies_) {
    if (!copy) continue;
    shared::CopiedRows& rows = params_.tensors[count++];
    rows.paged = copy->paged;
    rows.span = copy->span;
  }
  params_.page_rows = static_cast<int>(arguments.problem.page_rows);
}

plan::TensorCopy CopiedTensors::own_copy(std::size_t number, const ConstTensorView& tensor) const {
  plan::TensorCopy copy = *copies_[number];
  if (number != plan::kCopiedCapture) return copy;
  const std::int64_t offset = copy.offset;
  copy = plan::copy_for(tensor);
  copy.offset = offset;
  return copy;
}

CopiedTensors::Tensors CopiedTensors::reached(Tensors tensors, void* workspace) const {
  for (std::size_t number = 0; number < copies_.size(); ++number) {
    if (!copies_[number]) continue;
    ConstTensorView& tensor = tensors.of[number];
    tensor = plan::copy_of(own_copy(number, tensor), tensor.dtype, workspace);
  }
  return tensors;
}

void CopiedTensors::check_capture(const plan::StreamedRead& read, const ConstTensorView& capture,
                                  const ConstTensorView& in_tiles) const {
  const std::int64_t room = copies_[plan::kCopiedCapture]->bytes();
  std::string reason = plan::refuses_copy(read, capture);
  const std::int64_t bytes = own_copy(plan::kCopiedCapture, in_tiles).bytes();
  if (reason.empty() && bytes <= room) return;
  if (reason.empty()) {
    reason = fmt::format("capture '{}' is {} with strides {}, of which a copy takes {} bytes; up to {} are accepted",
                         read.capture, to_string(capture.shape), to_string(capture.strides), bytes, room);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("{} (the plan copies it, as the planned one)", reason));
}

void CopiedTensors::launch(const Tensors& tensors, const shared::SequenceSpan* sequences,
                           const shared::PageTable& page_table, void* workspace, void* stream) const {
  shared::CopiedRowsParams own = params_;
  int count = 0;
  own.shares = 0;
  for (std::size_t number = 0; number < copies_.size(); ++number) {
    if (!copies_[number]) continue;
    shared::CopiedRows& rows = own.tensors[count++];
    const ConstTensorView& tensor = tensors.of[number];
    set_extents(rows, own_copy(number, tensor), size_of(tensor.dtype));
    set_source(rows, tensor);
    rows.to = static_cast<char*>(workspace) + copies_[number]->offset;
    own.shares += rows.shares;
  }
  if (own.shares == 0) return;
  own.sequences = sequences;
  own.page_table = page_table;
  const Launch launch = {.ctas = static_cast<unsigned>(std::min<long long>(own.shares, most_ctas_)),
                         .threads = shared::kCopyThreads};
  program_->launch(copy_, launch, stream, &own, "launching copy_rows");
}

std::int64_t CopiedTensors::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& copy : copies_) bytes += copy ? copy->bytes() : 0;
  return bytes;
}

}  // namespace heddle::gpu
