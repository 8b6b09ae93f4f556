// heddle mask: the block mask of a mask mod, as figures and as a picture.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "accepted.h"
#include "arguments.h"
#include "heddle/block_mask.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/files.h"
#include "named_values.h"
#include "output.h"
#include "progress_bar.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

struct MaskArguments {
  std::int64_t q_len = 0, kv_len = 0, q_start = 0, kv_start = 0;
  std::int64_t batch = 1, heads = 1;
  std::string mask;
  std::string block = "128x128";
  std::vector<std::string> captures, params;
  std::int64_t batch_entry = 0, head = 0;  // which one is drawn
  std::string svg;
  bool clamp_reads = false, text = false, json = false;
};

MaskShape shape_of(const MaskArguments& arguments) {
  MaskShape shape = MaskShape::uniform(arguments.batch, arguments.heads, arguments.q_len, arguments.kv_len);
  for (Sequence& sequence : shape.sequences) {
    sequence.q_start = arguments.q_start;
    sequence.kv_start = arguments.kv_start;
  }
  return shape;
}

void check_picture(const MaskArguments& arguments) {
  if (!arguments.svg.empty()) {
    std::vector<InputFile> inputs;
    add_named_files("--capture", arguments.captures, inputs);
    check_output("--svg", arguments.svg, inputs);
    report_beside(arguments.svg);
  }
  if (arguments.batch_entry >= arguments.batch) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--entry: {} is not below --batch {}", arguments.batch_entry, arguments.batch));
  }
  if (arguments.head >= arguments.heads) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--head: {} is not below --heads {}", arguments.head, arguments.heads));
  }
}

int draw(const MaskArguments& arguments) {
  check_picture(arguments);
  const BlockSize block = parse_block(arguments.block);
  Progress progress("build the mask");
  Names names;
  names.add_captures(arguments.captures);
  names.add_params(arguments.params);
  const Expr mask = names.parse("--mask", arguments.mask);
  const Bindings bindings = names.bindings({mask});
  const auto start = std::chrono::steady_clock::now();
  const BlockMask built =
      BlockMask::build(mask, shape_of(arguments), block, bindings, 0, DType::f32, arguments.clamp_reads);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!arguments.svg.empty()) save_text(path_of(arguments.svg), built.svg(arguments.batch_entry, arguments.head));
  progress.finish();

  if (arguments.json) {
    Json json = {{"verb", "mask"}, {"heddle", version()}, {"mask", print(mask)}};
    json.update(to_json(built));
    json["seconds"] = seconds;
    if (!arguments.svg.empty()) json["svg"] = arguments.svg;
    if (arguments.text) json["text"] = built.text(arguments.batch_entry, arguments.head);
    print_json(json);
    return 0;
  }
  const BlockMask::Statistics statistics = built.statistics();
  std::string text =
      fmt::format("{}\n{} runs in {} bytes, {} blocks evaluated, built in {}\n", describe(built), statistics.runs,
                  statistics.bytes, statistics.evaluated_tiles, describe_seconds(seconds));
  if (arguments.text) text += built.text(arguments.batch_entry, arguments.head);
  if (!arguments.svg.empty()) text += fmt::format("{}: the picture\n", arguments.svg);
  print_text(text);
  return 0;
}

// Mods count in i32.
constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

void add_options(CLI::App& verb, MaskArguments& arguments) {
  const auto add_count = [&](const std::string& name, std::int64_t& target, std::int64_t least,
                             const std::string& help) {
    return verb.add_option(name, target, help)->option_text("N")->check(whole_from(least, kLargest));
  };
  const std::string shape = "Shape";
  add_count("--q-len", arguments.q_len, 0, "number of queries")->required()->group(shape);
  add_count("--kv-len", arguments.kv_len, 0, "number of keys")->required()->group(shape);
  add_count("--q-start", arguments.q_start, kLeast, "added to q_idx, may be negative; default 0")->group(shape);
  add_count("--kv-start", arguments.kv_start, kLeast, "added to kv_idx, may be negative; default 0")->group(shape);
  add_count("--heads", arguments.heads, 1, "query heads; default 1")->group(shape);
  add_count("--batch", arguments.batch, 1, "batch entries; default 1")->group(shape);
  add_text(verb, "--mask", arguments.mask, "EXPR", "mask mod, true attends")->required();
  add_text(verb, "--block", arguments.block, "QxKV", "block of queries x keys; default 128x128");
  add_name_options(verb, arguments.captures, arguments.params);
  add_clamp_reads(verb, arguments.clamp_reads);
  const std::string result = "Result";
  add_text(verb, "--svg", arguments.svg, "FILE.svg", "writes a picture")->group(result);
  verb.add_flag("--text", arguments.text, "draws with characters: # full, + partial, . empty")->group(result);
  add_count("--head", arguments.head, 0, "which head is drawn; default 0")->group(result);
  add_count("--entry", arguments.batch_entry, 0, "which batch entry is drawn; default 0")->group(result);
  verb.add_flag("--json", arguments.json, "prints the figures as JSON")->group(result);
}

}  // namespace

void add_mask(CLI::App& app, Work& chosen) {
  auto arguments = std::make_shared<MaskArguments>();
  CLI::App* verb = app.add_subcommand("mask", "Builds the block mask of a mask mod: figures and picture.");
  add_options(*verb, *arguments);
  verb->footer(
      "Example: a sliding window over a million tokens\n"
      "  heddle mask --q-len 1000000 --kv-len 1000000 --text \\\n"
      "      --mask \"q_idx >= kv_idx and q_idx - kv_idx < window\" --param window=200000");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return draw(*arguments); }; });
}

}  // namespace heddle::cli
