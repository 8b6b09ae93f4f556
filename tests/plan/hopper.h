// Problems for the Hopper family and the device that they are planned for, with neither memory nor a GPU.
#pragma once

#include <memory>
#include <optional>

#include "device/caps.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::test {

inline device::CudaCaps h200() {
  return {.index = 0,
          .name = "NVIDIA H200",
          .major = 9,
          .minor = 0,
          .multiprocessors = 132,
          .shared_memory_bytes = 232448,
          .l2_bytes = 52428800,
          .memory_bytes = 150'000'000'000,
          .driver_version = 13000};
}

/// An attention of contiguous tensors on cuda:0.
struct HopperCall {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_rows = 128, kv_rows = 128, dim = 128;
  std::int64_t v_dim = 0;  // of v and o; 0: dim
  Expr mask{};
  DType dtype = DType::bf16;
  bool with_lse = true, shared_kv = false;
  bool values_in_keys = false;  // v is the first columns of k
  AttentionOptions options{};
  std::optional<DType> o_dtype{}, kv_dtype{};  // else dtype
  std::int64_t q_rest = 0, k_rest = 0;         // of dim: columns that stand in tensors of their own

  AttentionTensors tensors() const {
    const std::int64_t kv_batch = shared_kv ? 1 : batch;
    AttentionTensors tensors;
    tensors.q = {nullptr, dtype, Dims{batch, q_heads, q_rows, dim - q_rest}};
    tensors.k = {nullptr, kv_dtype.value_or(dtype), Dims{kv_batch, kv_heads, kv_rows, dim - k_rest}};
    tensors.v = {nullptr, kv_dtype.value_or(dtype), Dims{kv_batch, kv_heads, kv_rows, v_dim == 0 ? dim : v_dim}};
    if (values_in_keys) {
      tensors.v = tensors.k;
      tensors.v.shape = {kv_batch, kv_heads, kv_rows, v_dim};
    }
    tensors.o = {nullptr, o_dtype.value_or(size_of(dtype) == 1 ? DType::bf16 : dtype),
                 Dims{batch, q_heads, q_rows, v_dim == 0 ? dim : v_dim}};
    if (with_lse) tensors.lse = TensorView{nullptr, DType::f32, Dims{batch, q_heads, q_rows}};
    return tensors;
  }
  AttentionOptions all_options() const {
    AttentionOptions all = options;
    if (!mask.empty()) all.mask_mod = mask;
    const AttentionTensors own = tensors();
    const auto beside = [](ConstTensorView view, std::int64_t columns) {
      return ConstTensorView(nullptr, view.dtype, Dims{view.shape[0], view.shape[1], view.shape[2], columns});
    };
    if (q_rest > 0) all.q_rest = beside(own.q, q_rest);
    if (k_rest > 0) all.k_rest = beside(own.k, k_rest);
    return all;
  }
  problem::AttentionProblem problem() const {
    problem::AttentionProblem problem = problem::validate(tensors(), all_options());
    problem.device = {DeviceKind::cuda, 0};
    return problem;
  }
  /// Builds a plan's block mask as the engine does.
  std::shared_ptr<const BlockMask> rows_of(BlockSize block) const {
    if (options.block_mask != nullptr) return options.block_mask;
    if (mask.empty()) return nullptr;
    const problem::AttentionProblem asked = problem();
    return std::make_shared<BlockMask>(
        BlockMask::build(mask, {asked.q_heads, asked.sequences}, block, options.bindings));
  }
};

}  // namespace heddle::test
