#include "backend/cuda/emit/forward_sm90.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "backend/cuda/emit/embedded.h"
#include "backend/cuda/emit/wgmma_text.h"
#include "backend/cuda/emit/words.h"
#include "plan/families/forward_sm90_costs.h"

namespace heddle::cuda::emit {
namespace {

constexpr std::array<std::string_view, 3> kFp8 = {"none", "e4m3", "e5m2"};
constexpr std::array<std::string_view, 6> kForms = {"plain", "shifted", "tilted", "distant", "added", "mapped"};
constexpr std::array<std::string_view, 3> kNormalizers = {"softmax", "none", "sigmoid"};
constexpr std::array<std::string_view, 7> kOutputs = {"same", "f64", "f32", "f16", "bf16", "e4m3", "e5m2"};

constexpr std::array<std::string_view, 5> kMaskForms = {"direct", "distance", "values", "both", "stored"};

std::string_view text_of(shared::Fp8 type) { return kFp8[static_cast<std::size_t>(type)]; }

std::string storage_of(const shared::ForwardSm90Config& config) {
  if (!config.fp8()) return config.f16 ? "f16" : "bf16";
  const bool mixed = config.k_fp8 != config.q_fp8 || config.v_fp8 != config.q_fp8;
  return mixed ? fmt::format("{}/{}/{}", text_of(config.q_fp8), text_of(config.k_fp8), text_of(config.v_fp8))
               : std::string(text_of(config.q_fp8));
}

std::string fp8_text(const shared::ForwardSm90Config& config) {
  if (!config.fp8()) return {};
  return fmt::format(
      ",\n    .q_fp8 = heddle::shared::Fp8::{}, .k_fp8 = heddle::shared::Fp8::{}, .v_fp8 = heddle::shared::Fp8::{}, "
      ".weight_exponent = {}",
      text_of(config.q_fp8), text_of(config.k_fp8), text_of(config.v_fp8), config.weight_exponent);
}

/// Kernels that do not pack keep their text.
std::string packed_text(const shared::ForwardSm90Config& config) {
  return config.packs() ? fmt::format(", .packed_queries = {}", config.packed_queries) : std::string();
}

/// Of pages, and rows that TMA does not store; kernels that have none keep their text.
std::string access_text(const shared::ForwardSm90Config& config) {
  if (!config.orders() && !config.odd_o) return {};
  return fmt::format(", .page_rows = {}, .odd_o = {}", config.page_rows, config.odd_o);
}

/// Kernels whose tiles come whole keep their text.
std::string parts_text(const shared::ForwardSm90Config& config) {
  return config.streamed_parts > 1 ? fmt::format(", .streamed_parts = {}", config.streamed_parts) : std::string();
}

/// Kernels that change scores by no number of the key keep their text.
std::string key_numbers_text(const shared::ForwardSm90Config& config) {
  if (!config.computes_keys()) return {};
  return fmt::format(", .key_factor = {}, .key_term = {}, .table_entries = {}", config.key_factor, config.key_term,
                     config.table_entries);
}

std::string config_text(const shared::ForwardSm90Config& config) {
  return fmt::format(
      "constexpr heddle::shared::ForwardSm90Config kConfig = {{\n"
      "    .qk_dim = {}, .v_dim = {}, .warpgroups = {}, .kv_block = {}, .stages = {}, .q_buffers = {}, .o_panels = "
      "{},\n"
      "    .f16 = {}, .lse = {}, .masked = {}, .scores = heddle::shared::ScoreForm::{}, .descending = {}, "
      ".capped = {}, .weighted = {},\n"
      "    .dropped = {}, .safe_headroom = {},\n"
      "    .by_sequence = {}, .device_lengths = {}, .streamed_bytes = {}, .streamed_stages = {}{},\n"
      "    .sinks = {}, .normalizer = heddle::shared::Normalizer::{}, .o_type = heddle::shared::OutputType::{},\n"
      "    .mask = heddle::shared::MaskForm::{}, .mask_range = {}{}{}{}{}}};\n",
      config.qk_dim, config.v_dim, config.warpgroups, config.kv_block, config.stages, config.q_buffers, config.o_panels,
      config.f16, config.lse, config.masked, kForms[static_cast<std::size_t>(config.scores)], config.descending,
      config.capped, config.weighted, config.dropped, config.safe_headroom, config.by_sequence, config.device_lengths,
      config.streamed_bytes, config.streamed_stages, parts_text(config), config.sinks,
      kNormalizers[static_cast<std::size_t>(config.normalizer)], kOutputs[static_cast<std::size_t>(config.o_type)],
      kMaskForms[static_cast<std::size_t>(config.mask)], config.mask_range, access_text(config), fp8_text(config),
      key_numbers_text(config), packed_text(config));
}

/// Of a streamed capture: its storage, and where the tiles of a head and a sequence stand in its other axes.
std::string streamed_text(const plan::StreamedRead& read, const ModLayout& layout) {
  std::string text;
  for (std::size_t i = 0; i < 2; ++i) {
    const Expr index = i < read.others.size() ? read.others[i].index : Expr(0);
    text += mod_text(i == 0 ? "first" : "second", index, layout, TakesScore::no);
  }
  return text +
         fmt::format(
             "namespace heddle {{\n"
             "using StreamedStorage = ops::{};\n"
             "__device__ __forceinline__ int streamed_axis(const shared::ModValues& mod, int axis, int b, int h) {{\n"
             "  if (axis == 0) {{\n"
             "    const FirstUniform u = first_uniform(mod, b, h);\n"
             "    return first_element(mod, u, {{}}, {{}}, b, h, 0, 0);\n"
             "  }}\n"
             "  const SecondUniform u = second_uniform(mod, b, h);\n"
             "  return second_element(mod, u, {{}}, {{}}, b, h, 0, 0);\n"
             "}}\n"
             "}}  // namespace heddle\n",
             storage_text(read.dtype));
}
std::string nothing_streamed_text() {
  return "namespace heddle {\n"
         "struct StreamedStorage {\n  static constexpr int kRead = 4;\n};\n"
         "__device__ __forceinline__ int streamed_axis(const shared::ModValues&, int, int, int) { return 0; }\n"
         "}  // namespace heddle\n";
}

std::string mod_texts(const shared::ForwardSm90Config& config, const plan::KernelMods& mods, const ModLayout& layout) {
  const bool streams = config.streamed_bytes > 0;
  const Streamed streamed = {streams ? mods.streamed->read : Expr()};
  const auto text = [&](const char* name, const Expr& mod, ExprType type) {
    return mod.empty() ? no_mod_text(name, type, TakesScore::no) : mod_text(name, mod, layout, TakesScore::no);
  };
  const bool direct = config.mask == shared::MaskForm::direct;
  const Expr mask = direct ? mods.mask : mods.mask_rest, distance = direct ? Expr() : mods.mask_distance;
  const bool stored = config.stores_mask();
  std::string texts = text("mask", stored ? Expr() : mask, ExprType::boolean) +
                      text("distance", stored || config.mask_range ? Expr() : distance, ExprType::boolean) +
                      text("least", config.mask_range ? mods.mask_least : Expr(), ExprType::i32) +
                      text("most", config.mask_range ? mods.mask_most : Expr(), ExprType::i32) +
                      text("slope", mods.slope, ExprType::f32);
  texts += mods.offset.empty() ? no_mod_text("offset", ExprType::f32, TakesScore::no, true)
                               : mod_text("offset", mods.offset, layout, TakesScore::no, Rounding::exact, streamed);
  texts += mods.score.empty() ? no_mod_text("score", ExprType::f32, TakesScore::yes, true)
                              : mod_text("score", mods.score, layout, TakesScore::yes, Rounding::contracted, streamed);
  const plan::Drops none{}, drops = config.dropped ? *mods.drops : none;
  texts += text("weight", config.weighted ? mods.weight : Expr(), ExprType::f32) +
           text("seed", drops.seed, ExprType::i32) + text("threshold", drops.threshold, ExprType::i32) +
           text("kept", drops.kept, ExprType::f32);
  texts += text("keyfactor", mods.key_factor, ExprType::f32) + text("keyterm", mods.key_term, ExprType::f32) +
           text("queryplace", mods.query_place, ExprType::i32) + text("keyplace", mods.key_place, ExprType::i32) +
           text("entry", mods.table_entry, ExprType::f32);
  return texts + (streams ? streamed_text(*mods.streamed, layout) : nothing_streamed_text());
}

/// "odd o gathers pages of 3"
template <class Add>
void add_access(const shared::ForwardSm90Config& config, const Add& add) {
  add(config.odd_o, "odd o");
  add(config.gathers(), "gathers");
  add(config.page_rows > 0, fmt::format("pages of {}", config.page_rows));
}

std::string name_of(const shared::ForwardSm90Config& config) {
  const std::string_view form = kForms[static_cast<std::size_t>(config.scores)];
  std::string name =
      fmt::format("forward_sm90 {} d{} {}x{}", storage_of(config),
                  plan::to_string(plan::HeadDims{config.qk_dim, config.v_dim}), config.rows(), config.kv_block);
  const auto add = [&](bool there, std::string_view word) {
    if (there) name += fmt::format(" {}", word);
  };
  const bool by_bits = config.mask != shared::MaskForm::direct;
  add(config.packs(), fmt::format("packed {}", config.packed_queries));
  add(config.masked && !by_bits, "masked");
  add(config.masked && by_bits, fmt::format("masked by {}{}", kMaskForms[static_cast<std::size_t>(config.mask)],
                                            config.stores_mask() ? " bits" : ""));
  add(config.mask_range, "in range");
  add(config.scores != shared::ScoreForm::plain, form);
  add(config.key_factor, "key factors");
  add(config.key_term, "key terms");
  add(config.table_entries > 0, fmt::format("table of {}", config.table_entries));
  add(config.streamed_bytes > 0, config.streamed_parts > 1 ? "streamed in halves" : "streamed");
  add(config.capped, "capped");
  add(config.descending, "descending");
  add(config.weighted, "weighted");
  add(config.dropped, "dropped");
  add(config.by_sequence, "by sequence");
  add(config.device_lengths, "device lengths");
  add_access(config, add);
  add(config.sinks, "sinks");
  add(config.normalizer != shared::Normalizer::softmax, kNormalizers[static_cast<std::size_t>(config.normalizer)]);
  add(config.o_type != shared::OutputType::same,
      fmt::format("o {}", kOutputs[static_cast<std::size_t>(config.o_type)]));
  add(config.lse, "lse");
  return name;
}

}  // namespace

jit::Source forward_sm90(const shared::ForwardSm90Config& config, const plan::KernelMods& mods,
                         const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  jit::Source source;
  source.name = name_of(config);
  source.text = fmt::format(
      "#include \"mods/columns.cuh\"\n"
      "#include \"ptx/wgmma.cuh\"\n"
      "#include \"shared/forward_sm90.h\"\n\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}\n{}\n#include \"families/forward_sm90.cuh\"\n",
      config_text(config), wgmma_text(config), mod_texts(config, mods, own));
  source.headers = embedded_headers();
  return source;
}

}  // namespace heddle::cuda::emit
