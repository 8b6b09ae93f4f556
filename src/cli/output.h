// What the verbs write: JSON and text on stdout, files by rename.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "heddle/block_mask.h"
#include "heddle/tensor.h"

namespace heddle::cli {

using Json = nlohmann::ordered_json;

/// Writes to stdout and flushes. Throws Error io when that fails (a full disk, a closed pipe).
void print_text(std::string_view text);
void print_json(const Json& json);

/// Writes to a temporary file beside `path`, then renames it: when anything fails (Error io), an old file stays.
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// "[2, 8, 512, 64] f16"
std::string describe(const ConstTensorView& tensor);
/// {"dtype": "f16", "shape": [2, 8, 512, 64]}
Json to_json(const ConstTensorView& tensor);
/// "12.5 % of 64 blocks of 128x128: 4 full, 4 partial, 56 empty"
std::string describe(const BlockMask& mask);
Json to_json(const BlockMask& mask);
/// "850 us", "12.3 ms", "4.21 s"
std::string describe_seconds(double seconds);

}  // namespace heddle::cli
