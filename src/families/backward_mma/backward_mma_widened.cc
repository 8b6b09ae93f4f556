#include "families/backward_mma/backward_mma_widened.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/device_text/config_text.h"
#include "backend/portable/portable_refuses.h"
#include "plan/access/kernel_types.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;

std::int64_t pitch_of(std::int64_t dim) {
  return (dim + shared::kWidenedRun - 1) / shared::kWidenedRun * shared::kWidenedRun;
}

/// Elements of a copy, of a tensor [batch or 1, heads, rows, dim].
std::int64_t copied(const Dims& shape) { return shape[0] * shape[1] * shape[2] * pitch_of(shape[3]); }

ConstTensorView copy_of(const ConstTensorView& view, DType dtype) {
  const std::int64_t pitch = pitch_of(view.shape[3]), of_head = view.shape[2] * pitch;
  return ConstTensorView(nullptr, dtype, view.shape, Dims{view.shape[1] * of_head, of_head, pitch, 1}, view.device);
}

}  // namespace

bool has_widened(const AttentionProblem& problem) { return keys_become_halves(problem); }

DType product_type(const AttentionProblem& problem, const BackwardTensors& tensors) {
  return fp8_of(problem.q_dtype) == shared::Fp8::none ? problem.q_dtype : tensors.d_o.dtype;
}

BackwardTensors with_copies(const AttentionProblem& problem, const BackwardTensors& tensors) {
  if (!has_widened(problem)) return tensors;
  const DType dtype = product_type(problem, tensors);
  BackwardTensors copies = tensors;
  for (ConstTensorView* view : {&copies.q, &copies.k, &copies.v}) {
    if (fp8_of(view->dtype) != shared::Fp8::none) *view = copy_of(*view, dtype);
  }
  return copies;
}

WidenedCopies widened_copies(const AttentionProblem& problem, const BackwardTensors& tensors) {
  constexpr std::int64_t kAligned = 256;
  WidenedCopies copies;
  if (!has_widened(problem)) return copies;
  const ConstTensorView* views[] = {&tensors.q, &tensors.k, &tensors.v};
  for (std::size_t i = 0; i < 3; ++i) {
    if (fp8_of(views[i]->dtype) == shared::Fp8::none) continue;
    copies.at[i] = copies.bytes;
    copies.bytes += (2 * copied(views[i]->shape) + kAligned - 1) / kAligned * kAligned;
  }
  return copies;
}

shared::MmaWidenParams widen_params(const AttentionProblem& problem, const BackwardTensors& tensors) {
  constexpr std::int64_t kMostCtas = 4096;
  shared::MmaWidenParams params{};
  std::int64_t runs = 0;
  const ConstTensorView* views[] = {&tensors.q, &tensors.k, &tensors.v};
  for (std::size_t i = 0; i < 3 && has_widened(problem); ++i) {
    if (fp8_of(views[i]->dtype) == shared::Fp8::none) continue;
    const Dims &shape = views[i]->shape, &strides = views[i]->strides;
    shared::WidenedTensor& tensor = params.tensors[i];
    for (int axis = 0; axis < 3; ++axis) tensor.stride[axis] = strides[axis];
    tensor.heads = static_cast<int>(shape[1]);
    tensor.rows = static_cast<int>(shape[2]);
    tensor.dim = static_cast<int>(shape[3]);
    tensor.pitch = static_cast<int>(pitch_of(shape[3]));
    tensor.runs = copied(shape) / shared::kWidenedRun;
    runs = std::max<std::int64_t>(runs, tensor.runs);
  }
  const std::int64_t ctas = (runs + shared::kSumThreads - 1) / shared::kSumThreads;
  params.ctas = static_cast<int>(std::clamp<std::int64_t>(ctas, 1, kMostCtas));
  return params;
}

std::string widen_class(const AttentionProblem& problem, shared::Storage storage) {
  const auto type = [](DType dtype) { return device_text::value_text("Fp8", fp8_of(dtype)); };
  return fmt::format("heddle::portable::WidenedRows<{}, {}, {}, {}>", storage == shared::Storage::f16,
                     type(problem.q_dtype), type(problem.k_dtype), type(problem.v_dtype));
}

}  // namespace heddle::plan
