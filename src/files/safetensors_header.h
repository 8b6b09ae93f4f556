// The JSON header of a safetensors file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "files/byte_source.h"
#include "heddle/tensor.h"

namespace heddle::files {

/// One tensor as the header states it; nothing but the JSON's form is checked.
struct SafetensorsEntry {
  std::string dtype;
  Dims shape;               // the first kMaxRank extents
  std::size_t axes = 0;     // as many as stated
  std::uint64_t begin = 0;  // bytes after the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads the JSON as it comes, without a tree of it, so that a hostile header costs no more than a small multiple of
/// its own size. Throws io (through `source`, which names the file) for anything that the format does not allow.
SafetensorsHeader parse_safetensors_header(std::string_view json, const ByteSource& source);

}  // namespace heddle::files
