// Structs that begin with struct_size: callers of older and newer versions of c.h bring smaller and larger ones.
#pragma once

#include <cstddef>
#include <string_view>

#include "heddle/c.h"

namespace heddle::capi {

/// Copies what both sides know of the struct at `given` (not null) to `known`, which is zero. `first_size`: of the
/// struct in the version that brought it. Throws Error: invalid_argument for a struct_size that no version can have,
/// unsupported for fields that only a newer version knows and that are not zero.
void copy_known_fields(std::string_view name, const void* given, void* known, std::size_t known_size,
                       std::size_t first_size);

/// Sizes of the structs in the version that brought them. They stay when the structs grow.
template <class Struct>
inline constexpr std::size_t kFirstSize = 0;
template <>
inline constexpr std::size_t kFirstSize<heddle_bindings> = 40;
template <>
inline constexpr std::size_t kFirstSize<heddle_attention_options> = 168;
template <>
inline constexpr std::size_t kFirstSize<heddle_block_mask_options> = 104;
template <>
inline constexpr std::size_t kFirstSize<heddle_attention_tensors> = 48;
template <>
inline constexpr std::size_t kFirstSize<heddle_run_options> = 32;
template <>
inline constexpr std::size_t kFirstSize<heddle_backward_tensors> = 128;

template <>
inline constexpr std::size_t kFirstSize<heddle_append> = 136;

template <>
inline constexpr std::size_t kFirstSize<heddle_partition_options> = 80;
template <>
inline constexpr std::size_t kFirstSize<heddle_communicator> = 56;

/// The struct as this library knows it: what an older caller does not have is zero.
template <class Struct>
Struct known_fields(std::string_view name, const Struct* given) {
  static_assert(kFirstSize<Struct> != 0 && kFirstSize<Struct> <= sizeof(Struct));
  Struct known{};
  copy_known_fields(name, given, &known, sizeof known, kFirstSize<Struct>);
  return known;
}

}  // namespace heddle::capi
