// The words of a stored mask in the device's memory: found when an attention kernel is prepared.
#pragma once

#include <cstdint>
#include <string>

#include "backend/device_text/expression_text.h"
#include "backend/gpu/gpu.h"
#include "plan/tiles/key_rows.h"
#include "shared/stored_mask.h"
#include "shared/tile_shape.h"

namespace heddle::gpu {

/// Kernel store_mask, which takes shared::StoredMaskParams: `mask` over the values of that layout.
std::string stored_mask_text(const Expr& mask, const device_text::ModLayout& layout);

class StoredMask {
 public:
  /// Finds the words, on the device's default stream, and waits for them. `mask` is simplified; `tile` and
  /// `by_sequence` are the attention kernel's; `own` the values of names of the library (set_mod_values.h), `mod` its
  /// lengths and, where these differ, its sequences. Throws as Gpu::load(), Error(out_of_memory) and Error(device).
  StoredMask(const Gpu& gpu, int device, const shared::TileShape& tile, bool by_sequence,
             const plan::StoredBlocks& blocks, const Expr& mask, const Bindings& bindings, const Bindings& own,
             const shared::ModValues& mod);

  /// Null where no block is partial.
  const shared::MaskWords* words() const { return static_cast<const shared::MaskWords*>(words_.data()); }
  std::int64_t partial_blocks() const { return partial_blocks_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(words_.bytes()); }

 private:
  std::int64_t partial_blocks_;
  Memory words_;
};

}  // namespace heddle::gpu
