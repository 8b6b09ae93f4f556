#include "families/forward_mma/forward_mma_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "backend/device_text/words.h"
#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_memory.h"
#include "families/forward_mma/forward_mma_candidates.h"
#include "heddle/expr.h"

namespace heddle::forward_mma {
namespace {

using device_text::Rounding;
using device_text::TakesScore;
using shared::ForwardMmaConfig;
using shared::ScoreForm;

// The kernel, to be given the fragments' header and class, launch bounds, what stands before parameters, the shared
// memory, the number of a CTA and how many there are.
constexpr const char* kKernel =
    "\n#include \"{0}\"\n"
    "#include \"portable/forward_mma/forward.cuh\"\n\n"
    "extern \"C\" __global__ void {2}\n"
    "    forward_mma({3} heddle::shared::ForwardMmaParams params) {{\n"
    "  using namespace heddle;\n"
    "  {4}\n"
    "  portable::Forward<kConfig, portable::{1}<kConfig>, GeneratedMods>(params, memory)\n"
    "      .run({5}, {6});\n"
    "}}\n";

/// Without the fields that are at their default.
std::string config_text(const ForwardMmaConfig& config) {
  const ForwardMmaConfig defaults;
  std::vector<std::string> fields;
  plan::for_each_mma_field([&](std::string_view name, std::string_view type, auto field) {
    if (config.*field == defaults.*field) return;
    fields.push_back(fmt::format(".{} = {}", name, portable::value_text(type, config.*field)));
  });
  return device_text::wrapped(
      fmt::format("constexpr heddle::shared::ForwardMmaConfig kConfig = {{{}}};\n", fmt::join(fields, ", ")));
}

}  // namespace

std::string config_and_mods_text(const ForwardMmaConfig& config, const plan::KernelMods& mods,
                                 const device_text::ModLayout& layout) {
  device_text::ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  portable::ModTexts texts(own);
  texts.add("mask", "Mask", config.masked, mods.mask, TakesScore::no, Rounding::exact, "bool");
  texts.add("offset", "Offset", config.scores == ScoreForm::added, mods.offset, TakesScore::no, Rounding::exact,
            "float");
  if (config.scores == ScoreForm::mapped && same(mods.score, leaf::score())) {
    texts.name("Score", "portable::ScoreItself");
  } else {
    texts.add("score", "Score", config.scores == ScoreForm::mapped, mods.score, TakesScore::yes, Rounding::contracted,
              "float");
  }
  texts.add("weight", "Weight", config.weighted, mods.weight, TakesScore::no, Rounding::exact, "float");
  return fmt::format(
      "#include \"portable/forward_mma/mods.cuh\"\n"
      "#include \"backend/portable/shared/forward_mma_config.h\"\n\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}",
      config_text(config), texts.text());
}

jit::Source source(const ForwardMmaConfig& config, const plan::KernelMods& mods, const device_text::ModLayout& layout,
                   const gpu::Dialect& dialect, const std::string& architecture) {
  const std::string kernel =
      fmt::format(kKernel, portable::fragments_header(config.fragments), portable::fragments_class(config.fragments),
                  dialect.bounds("heddle::kConfig", portable::waves_a_simd(config)), dialect.params,
                  dialect.memory(shared::forward_mma_memory(config).bytes), dialect.cta, dialect.ctas);
  return dialect.source(name_of(config), config_and_mods_text(config, mods, layout) + kernel, architecture);
}

std::string name_of(const ForwardMmaConfig& config) {
  std::string name =
      fmt::format("forward_mma {} {} d{}", shared::name(config.fragments), shared::name(config.storage), config.qk_dim);
  const auto add = [&](bool there, std::string_view word) {
    if (there) name += fmt::format(" {}", word);
  };
  if (config.v_dim != config.qk_dim) name += fmt::format("/{}", config.v_dim);
  name += fmt::format(" {}x{}", config.rows(), config.kv_block);
  add(config.packs(), fmt::format("packed {}", config.packed_heads));
  add(config.key_waves > 1, fmt::format("{} key waves", config.key_waves));
  add(config.splits_keys(), fmt::format("{} splits", config.splits));
  add(config.rings(), fmt::format("ring of {}", config.stages));
  add(config.masked, "masked");
  add(config.scores != ScoreForm::plain, shared::name(config.scores));
  add(config.weighted, "weighted");
  add(config.by_sequence, "by sequence");
  add(config.device_lengths, "device lengths");
  add(config.page_rows > 0, fmt::format("pages of {}", config.page_rows));
  add(config.q_bytes < 4 || config.kv_bytes < 16 || config.o_bytes < 4,
      fmt::format("rows at {}/{}/{} bytes", config.q_bytes, config.kv_bytes, config.o_bytes));
  add(config.sinks, "sinks");
  add(config.normalizer != shared::Normalizer::softmax, shared::name(config.normalizer));
  add(config.o_type != shared::OutputType::same, fmt::format("o {}", shared::name(config.o_type)));
  add(config.lse, "lse");
  add(config.lse_rest, "lse rest");
  return name;
}

}  // namespace heddle::forward_mma
