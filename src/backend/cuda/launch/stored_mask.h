// The words of a stored mask in the device's memory: found when an attention kernel is prepared.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/cuda/driver/device.h"
#include "backend/cuda/jit/jit.h"
#include "plan/tiles/key_rows.h"
#include "shared/stored_mask.h"
#include "shared/tile_shape.h"

namespace heddle::cuda {

class StoredMask {
 public:
  /// Finds the words, on the legacy stream, and waits for them. `mask` is simplified; `tile` and
  /// `by_sequence` are the attention kernel's; `own` the values of names of the library (mod_values.h), `mod` its
  /// lengths and, where these differ, its sequences. Throws as jit::build, Error(out_of_memory) and Error(device).
  StoredMask(int device, const shared::TileShape& tile, bool by_sequence, const plan::StoredBlocks& blocks,
             const Expr& mask, const Bindings& bindings, const Bindings& own, const shared::ModValues& mod);

  /// Null where no block is partial.
  const shared::MaskWords* words() const { return static_cast<const shared::MaskWords*>(words_.data()); }
  std::int64_t partial_blocks() const { return partial_blocks_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(words_.bytes()); }

 private:
  std::int64_t partial_blocks_;
  DeviceMemory words_;
};

}  // namespace heddle::cuda
