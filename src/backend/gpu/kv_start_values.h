// The value behind kv_start in a kernel's mods (plan/mods/kv_start.h).
#pragma once

#include <optional>
#include <span>

#include "backend/gpu/gpu.h"
#include "heddle/block_mask.h"
#include "plan/mods/kv_start.h"

namespace heddle::gpu {

/// Where the host knows the starts, they are uploaded here, once. `there`: else, the caller's vector, which each run
/// reads.
class KvStartValues {
 public:
  KvStartValues(const backend::DeviceInterface& devices, int device, const plan::KvStart& start,
                std::span<const Sequence> sequences, const std::optional<ConstTensorView>& there);
  /// The param or capture plan::kKvStartName; empty where mods need none.
  const Bindings& bindings() const { return bindings_; }

 private:
  Memory memory_;
  Bindings bindings_;
};

}  // namespace heddle::gpu
