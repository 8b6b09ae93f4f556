// Block masks whose rows are found on a GPU, in whose memory the captures are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/device.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/kv_start_values.h"
#include "backend/gpu/mask_rows_text.h"
#include "mask/build.h"
#include "shared/mask_rows.h"

namespace heddle::gpu {

/// The rows of one mask on one device, and the kernels that find them. The rows stay there until the next find().
class MaskRows final : public backend::DeviceMaskRows {
 public:
  /// `simplified` as mask::FindRows gets it. Throws Error(unsupported) and jit::Rejected as Gpu::load() does.
  MaskRows(const Gpu& gpu, int device, const Expr& simplified, const plan::KvStart& start = {});

  /// Finds the rows anew and waits for them; memory is kept where it is large enough. Throws Error(out_of_memory).
  void find(const MaskShape& shape, BlockSize block, std::span<const mask::Matrix> matrices, const Bindings& bindings);
  /// The rows that were found, on the host.
  mask::Rows on_host() const;

  const shared::MaskRowsParams& params() const { return params_; }
  /// Bytes of device memory that are held, and of the rows among them.
  std::int64_t bytes() const;
  std::int64_t row_bytes() const;

 private:
  void set_zones(const Bindings& bindings);
  void set_matrices(const MaskShape& shape, BlockSize block, std::span<const mask::Matrix> matrices);
  void launch(void* function, unsigned grid, unsigned height, unsigned threads);

  const Gpu& gpu_;
  int device_;
  plan::KvStart start_;
  std::optional<KvStartValues> starts_;  // of the last find()
  RowMask mask_;
  std::unique_ptr<Program> program_;
  void *zone_groups_, *zone_trees_, *find_rows_, *scan_counts_;
  shared::MaskRowsParams params_{};
  std::int64_t run_count_ = 0;
  Memory zones_, rows_, runs_;  // trees; matrices and offsets; runs
};

/// Why the rows of this mask cannot be found on a GPU, but can on the host: a sentence. Empty when they can.
std::string mask_rows_refused(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                              DType reals, bool clamp_reads);

/// DeviceInterface::build_mask().
backend::BuiltMask build_mask(const Gpu& gpu, int device, const Expr& mask, const MaskShape& shape, BlockSize block,
                              const Bindings& bindings, DType reals, bool clamp_reads,
                              std::shared_ptr<backend::DeviceMaskRows>& rows);

}  // namespace heddle::gpu
