#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "backend/cuda/hopper/wgmma_text.h"
#include "backend/device_code/headers.h"
#include "backend/device_text/config_text.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"

namespace heddle::forward_sm90 {
namespace {

using device_text::ModLayout;
using device_text::TakesScore;

std::string storage_of(const shared::ForwardSm90Config& config) {
  if (!config.fp8()) return config.f16 ? "f16" : "bf16";
  const bool mixed = config.k_fp8 != config.q_fp8 || config.v_fp8 != config.q_fp8;
  return mixed ? fmt::format("{}/{}/{}", name(config.q_fp8), name(config.k_fp8), name(config.v_fp8))
               : std::string(name(config.q_fp8));
}

std::string type_of(shared::Fp8 fp8, bool f16) {
  if (fp8 == shared::Fp8::none) return f16 ? "f16" : "bf16";
  return fp8 == shared::Fp8::e4m3 ? "e4m3" : "e5m2";
}

/// In namespace heddle:
///   qk_product(float (&d)[kv_block / 2], unsigned long long a, unsigned long long b, int accumulate)
/// d (+)= a b, 64 x kv_block x 16: both operands in shared memory, columns contiguous in memory (K-major);
///   pv_product(float (&d)[v_columns / 2], const unsigned* a, unsigned long long b, int accumulate)
/// d (+)= a b, 64 x v_columns x 16: a in four registers, b in shared memory with its rows contiguous (MN-major).
/// In 8 bits 32 takes the place of 16, and b is K-major in both.
std::string products_text(const shared::ForwardSm90Config& config) {
  const int kv_block = config.kv_block, v_columns = config.v_columns();
  const std::string q = type_of(config.q_fp8, config.f16), k = type_of(config.k_fp8, config.f16),
                    v = type_of(config.v_fp8, config.f16);
  const cuda::Product qk = {.name = "qk_product",
                            .parameters = "unsigned long long a, unsigned long long b, int accumulate",
                            .a_operand = cuda::operands(kv_block / 2, 1),
                            .inputs = "\"l\"(a), \"l\"(b), \"r\"(accumulate)",
                            .columns = kv_block,
                            .input_count = 3,
                            .types = fmt::format("{}.{}", q, k),
                            .immediates = config.fp8() ? "1, 1" : "1, 1, 0, 0"};
  const cuda::Product pv = {.name = "pv_product",
                            .parameters = "const unsigned* a, unsigned long long b, int accumulate",
                            .a_operand = fmt::format("{{{}}}", cuda::operands(v_columns / 2, 4)),
                            .inputs = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(accumulate)",
                            .columns = v_columns,
                            .input_count = 6,
                            .types = fmt::format("{}.{}", q, v),
                            .immediates = config.fp8() ? "1, 1" : "1, 1, 1"};
  return fmt::format("namespace heddle {{\n\n{}\n{}\n}}  // namespace heddle\n",
                     cuda::product_text(qk, config.product_step()), cuda::product_text(pv, config.product_step()));
}

/// Text of a streamed capture: its storage, and where the tiles of a head and a sequence stand in its other axes.
std::string streamed_text(const plan::StreamedRead& read, const ModLayout& layout) {
  std::string text;
  for (std::size_t i = 0; i < 2; ++i) {
    const Expr index = i < read.others.size() ? read.others[i].index : Expr(0);
    text += device_text::mod_text(i == 0 ? "first" : "second", index, layout, TakesScore::no);
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
             device_text::storage_text(read.dtype, expr::Precision::f32));
}
std::string nothing_streamed_text() {
  return "namespace heddle {\n"
         "struct StreamedStorage {\n  static constexpr int kRead = 4;\n};\n"
         "__device__ __forceinline__ int streamed_axis(const shared::ModValues&, int, int, int) { return 0; }\n"
         "}  // namespace heddle\n";
}

std::string mod_texts(const shared::ForwardSm90Config& config, const plan::KernelMods& mods, const ModLayout& layout) {
  const bool streams = config.streamed_bytes > 0;
  const device_text::Streamed streamed = {streams ? mods.streamed->read : Expr()};
  const auto text = [&](const char* name, const Expr& mod, ExprType type) {
    return mod.empty() ? device_text::no_mod_text(name, type, TakesScore::no)
                       : device_text::mod_text(name, mod, layout, TakesScore::no);
  };
  const bool direct = config.mask == shared::MaskForm::direct;
  const Expr mask = direct ? mods.mask : mods.mask_rest, distance = direct ? Expr() : mods.mask_distance;
  const bool stored = config.stores_mask();
  std::string texts = text("mask", stored ? Expr() : mask, ExprType::boolean) +
                      text("distance", stored || config.mask_range ? Expr() : distance, ExprType::boolean) +
                      text("least", config.mask_range ? mods.mask_least : Expr(), ExprType::i32) +
                      text("most", config.mask_range ? mods.mask_most : Expr(), ExprType::i32) +
                      text("slope", mods.slope, ExprType::f32);
  texts += mods.offset.empty() ? device_text::no_mod_text("offset", ExprType::f32, TakesScore::no, true)
                               : device_text::mod_text("offset", mods.offset, layout, TakesScore::no,
                                                       device_text::Rounding::exact, streamed);
  texts += mods.score.empty() ? device_text::no_mod_text("score", ExprType::f32, TakesScore::yes, true)
                              : device_text::mod_text("score", mods.score, layout, TakesScore::yes,
                                                      device_text::Rounding::contracted, streamed);
  const plan::Drops none{}, drops = config.dropped ? *mods.drops : none;
  texts += text("weight", config.weighted ? mods.weight : Expr(), ExprType::f32) +
           text("seed", drops.seed, ExprType::i32) + text("threshold", drops.threshold, ExprType::i32) +
           text("kept", drops.kept, ExprType::f32);
  texts += text("keyfactor", mods.key_factor, ExprType::f32) + text("keyterm", mods.key_term, ExprType::f32) +
           text("queryindex", mods.query_index, ExprType::i32) + text("keyindex", mods.key_index, ExprType::i32) +
           text("entry", mods.table_entry, ExprType::f32);
  texts += text("queryplace", config.placed_queries ? mods.places.query : Expr(), ExprType::i32) +
           text("keyplace", config.placed_keys ? mods.places.key : Expr(), ExprType::i32);
  return texts + (streams ? streamed_text(*mods.streamed, layout) : nothing_streamed_text());
}

/// "odd o gathers pages of 3"
template <class Add>
void add_access(const shared::ForwardSm90Config& config, const Add& add) {
  add(config.odd_o, "odd o");
  add(config.gathers(), "gathers");
  add(config.page_rows > 0, fmt::format("{}pages of {}", config.listed_pages ? "listed " : "", config.page_rows));
}

std::string name_of(const shared::ForwardSm90Config& config) {
  const std::string_view form = shared::name(config.scores);
  std::string name =
      fmt::format("forward_sm90 {} d{} {}x{}", storage_of(config),
                  plan::to_string(plan::HeadDims{config.qk_dim, config.v_dim}), config.rows(), config.kv_block);
  const auto add = [&](bool there, std::string_view word) {
    if (there) name += fmt::format(" {}", word);
  };
  const bool by_bits = config.mask != shared::MaskForm::direct;
  add(config.packs(), fmt::format("packed {}", config.packed_queries));
  add(config.masked && !by_bits, "masked");
  add(config.masked && by_bits,
      fmt::format("masked by {}{}", shared::name(config.mask), config.stores_mask() ? " bits" : ""));
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
  add(config.normalizer != shared::Normalizer::softmax, shared::name(config.normalizer));
  add(config.o_type != shared::StorageType::same, fmt::format("o {}", shared::name(config.o_type)));
  add(config.lse, "lse");
  add(config.max_scores, "max_scores");
  add(config.lse_rest, "lse rest");
  add(config.placed_queries, "placed queries");
  add(config.placed_keys, "placed keys");
  return name;
}

}  // namespace

jit::Source source(const shared::ForwardSm90Config& config, const plan::KernelMods& mods, const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  jit::Source source;
  source.name = name_of(config);
  source.text = fmt::format(
      "#include \"mods/columns.cuh\"\n"
      "#include \"ptx/wgmma.cuh\"\n"
      "#include \"families/forward_sm90/shared/forward_sm90_config.h\"\n\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}\n{}\n#include \"forward_sm90/forward_sm90_kernel.cuh\"\n",
      device_text::config_text(config, "kConfig"), products_text(config), mod_texts(config, mods, own));
  source.headers = device_code::cuda_headers();
  source.architecture = "sm_90a";
  return source;
}

}  // namespace heddle::forward_sm90
