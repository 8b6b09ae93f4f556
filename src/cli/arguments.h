// Arguments of an attention on the command line, still as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "heddle/block_mask.h"
#include "heddle/expr.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace heddle::cli {

/// The arguments that run, check and explain share. Empty: not given.
struct AttentionArguments {
  std::string input;                      // .safetensors with q, k, v and captures
  std::string q, k, v;                    // .npy
  std::string q_shape, k_shape, v_shape;  // of explain: BxHxSxD, for tensors that need not be there
  std::vector<std::string> captures;      // NAME=FILE.npy or NAME=FILE.safetensors:TENSOR
  std::vector<std::string> params;        // NAME=VALUE
  std::string score, mask, weight;        // text mods
  std::string scale;
  std::string normalizer = "softmax";
  std::string dtype;
  std::string backend = "automatic";
  std::optional<int> device;  // of the cuda and the amd backend; default 0
  int threads = 0;
  // The rows of options.def. Tensors by name, among the file's others and the captures.
#define HEDDLE_TENSOR_OPTION(name, group, help) std::string name;
#define HEDDLE_LENGTHS_OPTION(name, group, help) std::string name;
#define HEDDLE_FLAG_OPTION(name, shown, help) bool name = false;
#include "heddle/options.def"
};

/// Arguments of a backward, for run, check and explain.
struct BackwardArguments {
  std::vector<std::string> tensors;  // DO=FILE, DLSE=FILE, O=FILE, LSE=FILE; none: there is no backward
  std::string gradients;             // names with commas between them; empty: all that there are
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) bool name = false;
#include "heddle/options.def"
};

/// An option that takes a text of at least one character. `kind` stands in the help.
CLI::Option* add_text(CLI::App& verb, const std::string& name, std::string& target, const std::string& kind,
                      const std::string& help);
/// Declares the options that fill `arguments`, which must outlive the parse.
void add_attention_options(CLI::App& verb, AttentionArguments& arguments);
/// Declares the options of a backward.
void add_backward_options(CLI::App& verb, BackwardArguments& arguments);
/// The flag for reads outside of tensors.
void add_clamp_reads(CLI::App& verb, bool& clamp_reads);
/// The flag of an option: "--clamp-reads" of "clamp_reads".
std::string flag_of(std::string_view option);
/// The options for captures and params alone.
void add_name_options(CLI::App& verb, std::vector<std::string>& captures, std::vector<std::string>& params);

// Each throws Error invalid_argument that names the option and what it accepts.

/// "a=b" split at the first '='.
std::pair<std::string, std::string> parse_assignment(std::string_view option, const std::string& text);
/// The literal's own type: true and false boolean, 3 i32, 3.0 and inf f32.
ParamValue parse_param_value(const std::string& name, const std::string& text);
double parse_number(std::string_view option, const std::string& text);
/// "128x64" (queries x keys), or "128" for both.
BlockSize parse_block(const std::string& text);
/// "2x8x4096x64" as [2, 8, 4096, 64].
Dims parse_shape(std::string_view option, const std::string& text);

}  // namespace heddle::cli
