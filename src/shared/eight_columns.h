// Rows whose elements threads move eight at a time. Host and device code read this file: no headers, plain integers
// only.
#pragma once

namespace heddle::shared {

/// Storage of elements; `mixed`: not alike in all tensors of a kind, or none is there.
enum class StorageType : int { f64, f32, f16, bf16, e4m3, e5m2, mixed };

inline constexpr int kColumns = 8;  // that a thread takes at a time

}  // namespace heddle::shared
