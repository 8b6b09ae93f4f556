// Copies tensors into the run's workspace, before a run of an attention kernel that reads them from there.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/gpu/gpu.h"
#include "plan/access/tensor_copies.h"
#include "plan/mods/streamed_read.h"
#include "shared/copied_rows.h"

namespace heddle::gpu {

class CopiedTensors {
 public:
  /// Tensors that may be copied: q, k, v, and the capture that is streamed, as its tiles are found in it.
  struct Tensors {
    ConstTensorView of[4];
  };

  /// Compiles the kernel. Throws as Gpu::load().
  CopiedTensors(const Gpu& gpu, const backend::PrepareArguments& arguments);

  /// The capture is among them.
  bool has_capture() const { return copies_[plan::kCopiedCapture].has_value(); }

  /// Puts the copies in the place of the tensors that are copied; the copies' addresses are in `workspace`.
  Tensors reached(Tensors tensors, void* workspace) const;

  /// Throws Error(invalid_argument) where a run's capture cannot be copied, or its copy has no room.
  void check_capture(const plan::StreamedRead& read, const ConstTensorView& capture,
                     const ConstTensorView& in_tiles) const;

  /// Enqueues the copying on a stream. `sequences`: on the device, null if they do not differ.
  void launch(const Tensors& tensors, const shared::SequenceSpan* sequences, const shared::PageTable& page_table,
              void* workspace, void* stream) const;

  std::int64_t bytes() const;

 private:
  /// The planned copy. For a capture: the copy of this run's tensor, at the planned offset.
  plan::TensorCopy own_copy(std::size_t number, const ConstTensorView& tensor) const;

  plan::TensorCopies copies_;
  std::unique_ptr<Program> program_;
  void* copy_;
  unsigned most_ctas_;
  shared::CopiedRowsParams params_{};  // but for addresses, widths, and a capture's extents
};

}  // namespace heddle::gpu
