#include "backend/portable/portable_text.h"

#include <fmt/format.h>

#include "backend/device_text/config_text.h"
#include "backend/portable/portable_config.h"
#include "heddle/expr.h"

namespace heddle::portable {
namespace {

using device_text::Rounding;
using device_text::TakesScore;
using shared::ForwardMmaConfig;
using shared::ScoreForm;

// A mod's name, its type, and that of its elements are to be given.
constexpr const char* kMember = R"(
  struct {1} {{
    using Mod = {1}Mod;
    template <class... Arguments>
    static __device__ __forceinline__ {2} element(const shared::ModValues& mod, const Arguments&... arguments) {{
      return {0}_element(mod, arguments...);
    }}
  }};)";

}  // namespace

std::string fragments_class(shared::FragmentKind kind) {
  std::string kind_name = name(kind);
  kind_name[0] = static_cast<char>(kind_name[0] - 'a' + 'A');
  return kind_name + "Fragments";
}
std::string fragments_header(shared::FragmentKind kind) { return fmt::format("portable/fragments/{}.cuh", name(kind)); }

void ModTexts::add(const char* name, const char* type, bool there, const Expr& mod, TakesScore takes_score,
                   Rounding rounding, ExprType element) {
  if (!there) {
    members_ += fmt::format("\n  using {} = portable::NoMod;", type);
    return;
  }
  functions_ += device_text::mod_text(name, mod, layout_, takes_score, rounding);
  members_ += fmt::format(kMember, name, type, device_text::type_text(element, layout_.reals));
}

void ModTexts::add_places(const plan::Places& places) {
  const auto add_place = [&](const char* name, const char* type, const Expr& position) {
    add(name, type, !position.empty(), position, TakesScore::no, Rounding::exact, ExprType::i32);
  };
  add_place("queryplace", "Queryplace", places.query);
  add_place("keyplace", "Keyplace", places.key);
}

void ModTexts::name(const char* type, const char* of) { members_ += fmt::format("\n  using {} = {};", type, of); }

std::string ModTexts::text() const {
  return fmt::format("{}\nnamespace heddle {{\nstruct GeneratedMods {{{}\n}};\n}}  // namespace heddle\n", functions_,
                     members_);
}

std::string config_and_mods_text(const ForwardMmaConfig& config, const plan::KernelMods& mods,
                                 const device_text::ModLayout& layout) {
  device_text::ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  if (config.own_blocks && config.device_lengths) {
    own.sequence = config.prefixed() ? "portable::near_span<kConfig>(b)" : "portable::own_span<kConfig>()";
  }
  ModTexts texts(own);
  texts.add("mask", "Mask", config.masked, mods.mask, TakesScore::no, Rounding::exact, ExprType::boolean);
  texts.add("offset", "Offset", config.scores == ScoreForm::added, mods.offset, TakesScore::no, Rounding::exact);
  if (config.scores == ScoreForm::mapped && same(mods.score, leaf::score())) {
    texts.name("Score", "portable::ScoreItself");
  } else {
    texts.add("score", "Score", config.scores == ScoreForm::mapped, mods.score, TakesScore::yes, Rounding::contracted);
  }
  texts.add("weight", "Weight", config.weighted, mods.weight, TakesScore::no, Rounding::exact);
  texts.add_places(mods.places);
  return fmt::format(
      "#include \"portable/rows/row_mods.cuh\"\n"
      "#include \"backend/portable/shared/forward_mma_config.h\"\n\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}",
      device_text::config_text(config, "kConfig"), texts.text());
}

std::string name_of(std::string_view family, const ForwardMmaConfig& config) {
  std::string name =
      fmt::format("{} {} {} d{}", family, shared::name(config.fragments), shared::name(config.storage), config.qk_dim);
  const auto add = [&](bool there, std::string_view word) {
    if (there) name += fmt::format(" {}", word);
  };
  if (config.converts()) {
    if (config.q_fp8 != shared::Fp8::none) name += fmt::format(" q {}", shared::name(config.q_fp8));
    if (config.q_bf16) name += " q bf16";
    name += fmt::format(" k {} v {}", shared::name(config.k_fp8), shared::name(config.v_fp8));
  }
  if (config.v_dim != config.qk_dim) name += fmt::format("/{}", config.v_dim);
  name += fmt::format(" {}x{}", config.rows(), config.kv_block);
  add(config.packs(), fmt::format("packed {}", config.packed_heads));
  add(config.key_waves > 1, fmt::format("{} key waves", config.key_waves));
  add(config.splits_keys(), fmt::format("{} splits", config.splits));
  add(config.rings(), fmt::format("{} of {}", config.own_blocks ? "rings" : "ring", config.stages));
  add(config.chunked(), fmt::format("{} chunks", config.chunks));
  add(config.prefixed(), fmt::format("prefixes of {}", config.prefix_sequences));
  add(config.prefixed() && !config.shares_beside_own(), shared::name(config.shared_tiles));
  add(config.masked, config.bounded ? "masked with bounds" : "masked");
  add(config.tested_heads > 0, "blocks tested");
  add(config.scores != ScoreForm::plain, shared::name(config.scores));
  add(config.weighted, "weighted");
  add(config.placed_queries, "placed queries");
  add(config.placed_keys, "placed keys");
  add(config.by_sequence, "by sequence");
  add(config.device_lengths, "device lengths");
  add(config.page_rows > 0, fmt::format("{}pages of {}", config.listed_pages ? "listed " : "", config.page_rows));
  add(config.boxes, "boxes");
  add(config.q_bytes < 4 || config.kv_bytes < 16 || config.o_bytes < 4,
      fmt::format("rows at {}/{}/{} bytes", config.q_bytes, config.kv_bytes, config.o_bytes));
  add(config.sinks, "sinks");
  add(config.normalizer != shared::Normalizer::softmax, shared::name(config.normalizer));
  add(config.o_type != shared::StorageType::same, fmt::format("o {}", shared::name(config.o_type)));
  add(config.lse, "lse");
  add(config.lse_rest, "lse rest");
  add(config.max_scores, "max_scores");
  return name;
}

std::string describe_score(const plan::KernelMods& mods) {
  switch (mods.form) {
    case shared::ScoreForm::plain:
      return mods.factor == 1 ? "" : fmt::format("plain: t = {} * score, folded into the scale", mods.factor);
    case shared::ScoreForm::added:
      return fmt::format("added: t = {} * score + {}, for each pair", mods.factor, print(mods.offset));
    default:
      return fmt::format("mapped: t = {}, for each pair", print(mods.score));
  }
}

}  // namespace heddle::portable
