// Panels: tensors in shared memory as TMA writes them and tensor cores read them, in rows of 128 bytes with the
// 128-byte swizzle. Host and device code read this file: no headers, plain integers only.
#pragma once

namespace heddle::shared {

inline constexpr int kPanelColumns = 64;         // of 16 bits
inline constexpr int kBoxRows = 8;               // after which the swizzle repeats
inline constexpr int kStreamedRestColumns = 16;  // of a panel of what is left of a streamed tile's columns

}  // namespace heddle::shared
