#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/hopper/wgmma_text.h"
#include "backend/device_code/headers.h"
#include "backend/device_text/config_text.h"
#include "families/backward_sm90/backward_sm90.h"

namespace heddle::backward_sm90 {
namespace {

using device_text::ModLayout;
using device_text::TakesScore;
using shared::BackwardSm90Config;

/// In namespace heddle, of a kernel that is not wide:
///   score_product(float (&d)[32], unsigned long long a, unsigned long long b, int accumulate)
/// d (+)= a b, 64 x 64 x 16, both operands in shared memory, columns contiguous in memory (K-major);
///   held_score_product(float (&d)[32], const unsigned* a, unsigned long long b, int accumulate)
/// the same with a in four registers (d_q_apart);
///   gradient_product(float (&d)[columns / 2], const unsigned* a, unsigned long long b, int accumulate)
/// d (+)= a b, 64 x columns x 16: a in four registers, b in shared memory with its rows contiguous (MN-major);
///   query_product(float (&d)[d_q_columns / 2], unsigned long long a, unsigned long long b, int accumulate)
/// d (+)= a b, 64 x d_q_columns x 16: a K-major, b MN-major.
///
/// A wide kernel has gradient_product() for one panel of columns and for two, query_product() for one.
std::string products_text(const BackwardSm90Config& config) {
  constexpr int kQueries = 64, kStep = 16;
  const std::string types = config.f16 ? "f16.f16" : "bf16.bf16";
  const auto of_two = [&](const char* name, int columns, const char* immediates) {
    const cuda::Product product = {.name = name,
                                   .parameters = "unsigned long long a, unsigned long long b, int accumulate",
                                   .a_operand = cuda::operands(columns / 2, 1),
                                   .inputs = "\"l\"(a), \"l\"(b), \"r\"(accumulate)",
                                   .columns = columns,
                                   .input_count = 3,
                                   .types = types,
                                   .immediates = immediates};
    return cuda::product_text(product, kStep);
  };
  const auto of_registers = [&](const char* name, int columns, const char* immediates) {
    const cuda::Product product = {
        .name = name,
        .parameters = "const unsigned* a, unsigned long long b, int accumulate",
        .a_operand = fmt::format("{{{}}}", cuda::operands(columns / 2, 4)),
        .inputs = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(accumulate)",
        .columns = columns,
        .input_count = 6,
        .types = types,
        .immediates = immediates};
    return cuda::product_text(product, kStep);
  };
  const auto gradient = [&](int columns) { return of_registers("gradient_product", columns, "1, 1, 1"); };
  std::vector<std::string> texts = {of_two("score_product", kQueries, "1, 1, 0, 0")};
  if (config.d_q_apart) texts.push_back(of_registers("held_score_product", kQueries, "1, 1, 0"));
  if (config.wide) {
    for (const int panels : {1, 2}) texts.push_back(gradient(panels * shared::kPanelColumns));
    texts.push_back(of_two("query_product", shared::kPanelColumns, "1, 1, 0, 1"));
  } else {
    texts.push_back(gradient(config.columns));
    texts.push_back(of_two("query_product", config.d_q_columns(), "1, 1, 0, 1"));
  }
  return fmt::format("namespace heddle {{\n\n{}\n}}  // namespace heddle\n", fmt::join(texts, "\n"));
}

std::string mod_texts(const plan::BackwardMods& mods, const ModLayout& layout) {
  const auto text = [&](const char* name, const Expr& mod, ExprType type, TakesScore takes_score,
                        device_text::Rounding rounding = device_text::Rounding::exact) {
    return mod.empty() ? device_text::no_mod_text(name, type, takes_score)
                       : device_text::mod_text(name, mod, layout, takes_score, rounding);
  };
  const plan::Drops none{}, drops = mods.drops.value_or(none);
  constexpr auto kContracted = device_text::Rounding::contracted;
  return text("mask", mods.mask, ExprType::boolean, TakesScore::no) +
         text("offset", mods.offset, ExprType::f32, TakesScore::no) +
         text("score", mods.score, ExprType::f32, TakesScore::yes, kContracted) +
         text("derivative", mods.derivative, ExprType::f32, TakesScore::yes, kContracted) +
         text("weight", mods.drops ? Expr() : mods.weight, ExprType::f32, TakesScore::no) +
         text("seed", drops.seed, ExprType::i32, TakesScore::no) +
         text("threshold", drops.threshold, ExprType::i32, TakesScore::no) +
         text("kept", drops.kept, ExprType::f32, TakesScore::no) +
         text("queryplace", mods.places.query, ExprType::i32, TakesScore::no) +
         text("keyplace", mods.places.key, ExprType::i32, TakesScore::no);
}

}  // namespace

std::string config_text(const BackwardSm90Config& config) {
  return "namespace heddle {\n" + device_text::config_text(config, "kConfig") + "}  // namespace heddle\n";
}

std::string name_of(const BackwardSm90Config& config, std::string_view kernel) {
  std::string name = fmt::format("{} {} d{}", kernel, config.f16 ? "f16" : "bf16", config.qk_dim);
  const auto add = [&](bool there, std::string_view word) {
    if (there) name += fmt::format(" {}", word);
  };
  add(config.v_dim != config.qk_dim, fmt::format("v{}", config.v_dim));
  add(true, fmt::format("{}x64", config.keys()));
  add(config.masked, "masked");
  add(config.scores != shared::ScoreForm::plain, shared::name(config.scores));
  add(config.weighted, "weighted");
  add(config.dropped, "dropped");
  add(config.by_sequence, "by sequence");
  add(config.device_lengths, "device lengths");
  add(config.ordered, "ordered");
  add(config.ring, "ring");
  add(config.shares, "shares");
  add(config.sinks, "sinks");
  add(config.lse_rest, "lse rest");
  add(config.placed_queries, "placed queries");
  add(config.placed_keys, "placed keys");
  add(config.normalizer != shared::Normalizer::softmax, shared::name(config.normalizer));
  add(!config.d_q, "no dq");
  add(config.d_q_apart, config.held ? "dq apart, held" : "dq apart");
  return name;
}

jit::Source source_before_kernel(const BackwardSm90Config& config, const plan::BackwardMods& mods,
                                 const ModLayout& layout, std::string_view kernel) {
  jit::Source source;
  source.name = name_of(config, kernel);
  source.text = fmt::format(
      "#include \"mods/columns.cuh\"\n"
      "#include \"ptx/wgmma.cuh\"\n"
      "#include \"families/backward_sm90/shared/backward_sm90_config.h\"\n\n{}\n{}\n{}\n",
      config_text(config), products_text(config), mod_texts(mods, layout));
  source.headers = device_code::cuda_headers();
  source.architecture = "sm_90a";
  return source;
}

jit::Source main_source(const BackwardSm90Config& config, const plan::BackwardMods& mods, const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  jit::Source source = source_before_kernel(config, mods, own, "backward_sm90");
  source.text += config.wide        ? "#include \"backward_sm90/backward_sm90_wide.cuh\"\n"
                 : config.d_q_apart ? "#include \"backward_sm90/backward_sm90_apart.cuh\"\n"
                                    : "#include \"backward_sm90/backward_sm90_kernel.cuh\"\n";
  // With 256 columns a kernel may keep a word or two of a step in memory, and read it once a step.
  if (config.wide && (config.shares || config.d_o_halves)) source.bearable_spill_bytes = 32;
  return source;
}

jit::Source rows_source(const BackwardSm90Config& config) {
  return {.name = name_of(config, "backward_rows"),
          .text = fmt::format("#include \"families/backward_sm90/shared/backward_sm90_config.h\"\n\n{}\n"
                              "#include \"backward_sm90/backward_rows_kernels.cuh\"\n",
                              config_text(config)),
          .headers = device_code::cuda_headers(),
          .architecture = "sm_90a"};
}

}  // namespace heddle::backward_sm90
