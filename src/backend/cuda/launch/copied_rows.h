// Before a run of forward_sm90 with tensors that TMA does not take: copies of them, in the run's workspace.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/cuda/driver/device.h"
#include "backend/cuda/jit/jit.h"
#include "shared/copied_rows.h"

namespace heddle::cuda {

class CopiedTensors {
 public:
  /// Compiles the kernel. `by_sequence`: sequences' places are known. Throws as jit::build.
  CopiedTensors(const backend::PrepareArguments& arguments, bool by_sequence);

  /// q, k, v with the copies in the place of those that are copied; the copies' addresses are in `workspace`.
  AttentionTensors reached(AttentionTensors tensors, void* workspace) const;

  /// Enqueues the copying of `tensors` on a CUstream of the current context. `params`: of forward_sm90, with the places
  /// of sequences and the table of pages.
  void launch(const AttentionTensors& tensors, const shared::ForwardSm90Params& params, void* workspace,
              void* stream) const;

  std::int64_t bytes() const;

 private:
  plan::TensorCopies copies_;
  std::shared_ptr<const jit::Cubin> cubin_;
  Module module_;
  CUfunction copy_;
  unsigned most_ctas_;
  shared::CopiedRowsParams params_{};  // but for addresses and widths
};

}  // namespace heddle::cuda
