// Rows whose elements threads move eight at a time. Host and device code read this file: no headers, plain integers
// only.
#pragma once

namespace heddle::shared {

inline constexpr int kColumns = 8;  // that a thread takes at a time

}  // namespace heddle::shared
