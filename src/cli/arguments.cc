#include "arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <ranges>

#include "accepted.h"
#include "heddle/error.h"

namespace heddle::cli {
namespace {

/// "2x8" as {2, 8}; empty if a size is no number from `least` to `most`. (CLI11's delimiter would take "2x8x", too.)
std::vector<std::int64_t> sizes_in(std::string_view text, std::int64_t least, std::int64_t most) {
  std::vector<std::int64_t> sizes;
  for (const auto part : std::views::split(text, 'x')) {
    const auto size = number_in<std::int64_t>(std::string_view(part.begin(), part.end()));
    if (!size || *size < least || *size > most) return {};
    sizes.push_back(*size);
  }
  return sizes;
}

bool looks_integral(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

void add_list(CLI::App& verb, const std::string& name, std::vector<std::string>& target, const std::string& kind,
              const std::string& help) {
  verb.add_option(name, target, help)->option_text(kind)->allow_extra_args(false)->group("Names that mods may read");
}

void add_inputs(CLI::App& verb, AttentionArguments& arguments) {
  add_text(verb, "IN.safetensors", arguments.input, " ",
           "holds q [B, Hq, Sq, Dqk], k [B, Hkv, Skv, Dqk], v [B, Hkv, Skv, Dv];\n"
           "[H, S, D] is read as [1, H, S, D]. Mods may read its other tensors\n"
           "by their names");
  for (auto [name, target] : {std::pair{"q", &arguments.q}, {"k", &arguments.k}, {"v", &arguments.v}}) {
    add_text(verb, fmt::format("--{}", name), *target, "FILE.npy", fmt::format("{}, instead of the input's", name))
        ->group("Input");
  }
  add_text(verb, "--dtype", arguments.dtype, "TYPE", "convert q, k and v on load: f64, f32, f16, bf16, e4m3 or e5m2")
      ->check(one_of({"f64", "f32", "f16", "bf16", "e4m3", "e5m2"}))
      ->group("Input");
}

// The groups of options.def.
enum class Group { attention, sequences, descales };
std::string title(Group group) {
  switch (group) {
    case Group::attention:
      return "Attention";
    case Group::sequences:
      return "Sequences (names of tensors, i32 or i64)";
    case Group::descales:
      break;
  }
  return "Descales of fp8 inputs (names of tensors, f32)";
}

// The options of one group that are tensors.
void add_tensors(CLI::App& verb, AttentionArguments& arguments, Group group) {
  const auto add = [&](std::string_view name, std::string& target, Group of, const std::string& help) {
    if (of == group) add_text(verb, flag_of(name), target, "TENSOR", help)->group(title(group));
  };
#define HEDDLE_TENSOR_OPTION(name, group, help) add(#name, arguments.name, Group::group, help);
#define HEDDLE_LENGTHS_OPTION(name, group, help) add(#name, arguments.name, Group::group, help);
#include "heddle/options.def"
}

void add_mods(CLI::App& verb, AttentionArguments& arguments) {
  const std::string group = title(Group::attention);
  add_text(verb, "--score", arguments.score, "EXPR", "score mod: \"score + slopes[h] * (kv_idx - q_idx)\"")
      ->group(group);
  add_text(verb, "--mask", arguments.mask, "EXPR", "mask mod, true attends: \"q_idx >= kv_idx\"")->group(group);
  add_text(verb, "--weight", arguments.weight, "EXPR", "weight mod, multiplies the probability")->group(group);
  add_text(verb, "--scale", arguments.scale, "X", "scale of q.k; default 1/sqrt(Dqk)")->group(group);
  add_tensors(verb, arguments, Group::attention);
  add_text(verb, "--normalizer", arguments.normalizer, "KIND", "softmax (default), none or sigmoid")
      ->check(one_of({"softmax", "none", "sigmoid"}))
      ->group(group);
}

}  // namespace

CLI::Option* add_text(CLI::App& verb, const std::string& name, std::string& target, const std::string& kind,
                      const std::string& help) {
  // An empty text would read as an option that was not given: a mask that a script failed to fill in, as no mask.
  const auto given = [](const std::string& text) -> std::string {
    return text.empty() ? "the text is empty where a value was expected" : "";
  };
  return verb.add_option(name, target, help)->option_text(kind)->check(given, "");
}

void add_name_options(CLI::App& verb, std::vector<std::string>& captures, std::vector<std::string>& params) {
  add_list(verb, "--capture", captures, "NAME=FILE",
           "a tensor: NAME=FILE.npy, or NAME=FILE.safetensors:TENSOR;\nmay be repeated");
  add_list(verb, "--param", params, "NAME=VALUE",
           "a scalar: 3 is i32, 3.0 is f32, true and false are bool;\nmay be repeated");
}

std::string flag_of(std::string_view option) {
  std::string flag = "--" + std::string(option);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

void add_clamp_reads(CLI::App& verb, bool& clamp_reads) {
  const auto add = [&](std::string_view name, const std::string& help) {
    if (name == "clamp_reads") verb.add_flag(flag_of(name), clamp_reads, help);
  };
#define HEDDLE_FLAG_OPTION(name, shown, help) add(#name, help);
#include "heddle/options.def"
}

void add_attention_options(CLI::App& verb, AttentionArguments& arguments) {
  add_inputs(verb, arguments);
  add_mods(verb, arguments);
  add_name_options(verb, arguments.captures, arguments.params);
#define HEDDLE_FLAG_OPTION(name, shown, help) verb.add_flag(flag_of(#name), arguments.name, help);
#include "heddle/options.def"
  add_tensors(verb, arguments, Group::sequences);
  add_tensors(verb, arguments, Group::descales);
  add_text(verb, "--backend", arguments.backend, "NAME",
           "automatic (default: cpu), cpu, reference (float64, slow), or cuda or\n"
           "amd: tensors go to the GPU and results come back")
      ->check(one_of({"automatic", "cpu", "reference", "cuda", "amd"}))
      ->group("Execution");
  verb.add_option("--device", arguments.device,
                  "which GPU, with --backend cuda or amd; default 0 (`heddle devices` lists them)")
      ->option_text("N")
      ->check(whole_from(0, 1023))
      ->group("Execution");
  verb.add_option("--threads", arguments.threads, "CPU threads; 0 (default): all cores. The result is the same")
      ->option_text("N")
      ->check(whole_from(0, 65536))
      ->group("Execution");
}

void add_backward_options(CLI::App& verb, BackwardArguments& arguments) {
  const std::string group = "Backward";
  CLI::Option* tensors = verb.add_option("--backward", arguments.tensors,
                                         "DO=FILE: computes gradients; FILE holds the gradient of o\n"
                                         "[B, Hq, Sq, Dv]. May be repeated: DLSE=FILE, the gradient of lse,\n"
                                         "else 0; O=FILE and LSE=FILE, what the forward stored, else it is\n"
                                         "computed first. FILE is FILE.npy or FILE.safetensors:TENSOR")
                             ->option_text("NAME=FILE")
                             ->allow_extra_args(false)
                             ->group(group);
  add_text(verb, "--gradients", arguments.gradients, "NAMES",
           "which ones, with commas between them: q, k, v, sinks, and names\n"
           "of captures and params; default: all that there are")
      ->needs(tensors)
      ->group(group);
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) \
  verb.add_flag(flag_of(#name), arguments.name, help)->needs(tensors)->option_text(" ")->group(group);
#include "heddle/options.def"
}

std::pair<std::string, std::string> parse_assignment(std::string_view option, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    const std::string_view form = option == "--param" ? "NAME=VALUE" : "NAME=FILE";
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: '{}' is not of the form {}", option, text, form));
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

ParamValue parse_param_value(const std::string& name, const std::string& text) {
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  if (looks_integral(text)) {
    if (const auto value = number_in<std::int32_t>(text)) return *value;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--param: {} = {} does not fit in i32, which holds {} to {}; write {}.0 for f32", name, text,
                    std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(), text));
  }
  if (const auto value = number_in<double>(text)) return *value;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("--param: {} = '{}' is no value; write 3 for i32, 3.0 for f32, true or false for bool", name, text));
}

double parse_number(std::string_view option, const std::string& text) {
  if (const auto value = number_in<double>(text)) return *value;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: '{}' is not a number", option, text));
}

BlockSize parse_block(const std::string& text) {
  const auto sizes = sizes_in(text, 1, std::numeric_limits<std::int64_t>::max());
  if (sizes.empty() || sizes.size() > 2) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--block: '{}' is not of the form QxKV with sizes of at least 1, such as 128x128", text));
  }
  return {sizes.front(), sizes.back()};
}

Dims parse_shape(std::string_view option, const std::string& text) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto sizes = sizes_in(text, 0, kMost);
  if (sizes.size() != 4) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: '{}' is not of the form BxHxSxD with sizes from 0 to {}, such as 2x8x4096x64", option,
                            text, kMost));
  }
  return Dims(sizes);
}

}  // namespace heddle::cli
