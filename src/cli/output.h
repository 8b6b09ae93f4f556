// Output of the verbs: reports (JSON or text) on stdout, and the files that they must not write over.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "heddle/block_mask.h"
#include "heddle/tensor.h"

namespace heddle::cli {

using Json = nlohmann::ordered_json;

/// "-" names the standard output.
std::string path_of(const std::string& output);
/// From now on reports go to stderr where `output` is the standard output, under whatever name: they would stand in the
/// middle of the file.
void report_beside(const std::string& output);

/// Writes to stdout, or where report_beside() says, and flushes. Throws Error io when that fails (a full disk, a closed
/// pipe).
void print_text(std::string_view text);
void print_json(const Json& json);

/// A file that the command reads.
struct InputFile {
  std::string given_as;  // the option; empty for the verb's own argument
  std::string path;      // empty: not given
};

/// Checks `output` before hours of work. Throws Error invalid_argument if it is one of the inputs, under any name, and
/// io if it cannot be written.
void check_output(std::string_view option, const std::string& output, const std::vector<InputFile>& inputs);
/// The files of --capture, or of another option of NAME=FILE.
void add_named_files(const std::string& option, const std::vector<std::string>& assignments,
                     std::vector<InputFile>& inputs);

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
