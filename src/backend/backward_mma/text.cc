#include "backend/backward_mma/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "backend/device_text/words.h"
#include "backend/forward_mma/text.h"
#include "plan/families/backward_mma_config.h"

namespace heddle::backward_mma {
namespace {

using device_text::Rounding;
using device_text::TakesScore;
using shared::BackwardMmaConfig;
using shared::ScoreForm;

std::string value_text(std::string_view, int value) { return fmt::format("{}", value); }
std::string value_text(std::string_view, bool value) { return value ? "true" : "false"; }
template <class Enum>
std::string value_text(std::string_view type, Enum value) {
  return fmt::format("heddle::shared::{}::{}", type, name(value));
}

/// Without the fields that are at their default.
std::string pass_text(const BackwardMmaConfig& pass, std::size_t number) {
  const BackwardMmaConfig defaults;
  std::vector<std::string> fields;
  plan::for_each_backward_mma_field([&](std::string_view name, std::string_view type, auto field) {
    if (pass.*field == defaults.*field) return;
    fields.push_back(fmt::format(".{} = {}", name, value_text(type, pass.*field)));
  });
  return device_text::wrapped(
      fmt::format("constexpr heddle::shared::BackwardMmaConfig kPass{} = {{{}}};\n", number, fmt::join(fields, ", ")));
}
std::string rows_text(const shared::BackwardMmaRows& rows) {
  return device_text::wrapped(fmt::format(
      "constexpr heddle::shared::BackwardMmaRows kRows = {{.storage = {}, .v_dim = {}, .normalizer = {}, .o_type = {}, "
      "{}.sinks = {}, .d_sinks_type = {}}};\n",
      value_text("Storage", rows.storage), rows.v_dim, value_text("Normalizer", rows.normalizer),
      value_text("OutputType", rows.o_type), rows.lse_rest ? ".lse_rest = true, " : "", value_text("", rows.sinks),
      value_text("OutputType", rows.d_sinks_type)));
}

}  // namespace

std::string config_and_mods_text(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                                 const device_text::ModLayout& layout) {
  device_text::ModLayout own = layout;
  std::string configs = rows_text(kernels.rows);
  std::string headers;
  for (std::size_t i = 0; i < kernels.passes.size(); ++i) {
    own.by_sequence = kernels.passes[i].by_sequence;
    configs += pass_text(kernels.passes[i], i);
  }
  if (!kernels.passes.empty()) {
    headers = fmt::format("#include \"{}\"\n", forward_mma::fragments_header(kernels.passes.front().fragments));
  }
  forward_mma::ModTexts texts(own);
  const bool mapped = mods.form == ScoreForm::mapped, added = mods.form == ScoreForm::added;
  texts.add("mask", "Mask", !mods.mask.empty(), mods.mask, TakesScore::no, Rounding::exact, "bool");
  texts.add("offset", "Offset", added, mods.offset, TakesScore::no, Rounding::exact, "float");
  texts.add("score", "Score", mapped, mods.score, TakesScore::yes, Rounding::contracted, "float");
  texts.add("derivative", "Derivative", mapped, mods.derivative, TakesScore::yes, Rounding::contracted, "float");
  texts.add("weight", "Weight", !mods.weight.empty(), mods.weight, TakesScore::no, Rounding::exact, "float");
  return fmt::format(
      "{}#include \"portable/backward/backward.cuh\"\n"
      "#include \"portable/backward/rows.cuh\"\n\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}",
      headers, configs, texts.text());
}

std::string pass_class(const plan::BackwardMmaKernels& kernels, std::size_t pass) {
  const std::string fragments = forward_mma::fragments_class(kernels.passes[pass].fragments);
  return fmt::format(
      "heddle::portable::Backward<heddle::kPass{0}, "
      "heddle::portable::{1}<heddle::shared::scores_side(heddle::kPass{0})>, "
      "heddle::portable::{1}<heddle::shared::values_side(heddle::kPass{0})>, heddle::GeneratedMods>",
      pass, fragments);
}

bool has_rows(const plan::BackwardMmaKernels& kernels) {
  return kernels.rows.normalizer == shared::Normalizer::softmax;
}

std::string name_of(const plan::BackwardMmaKernels& kernels) {
  std::string name = fmt::format("backward_mma {}", shared::name(kernels.rows.storage));
  const auto add = [&](bool there, std::string_view word) {
    if (there) name += fmt::format(" {}", word);
  };
  add(kernels.rows.sinks, "sinks");
  add(kernels.rows.normalizer != shared::Normalizer::softmax, shared::name(kernels.rows.normalizer));
  if (kernels.passes.empty()) return name;
  const BackwardMmaConfig& any = kernels.passes.front();
  add(true, fmt::format("{} d{}", shared::name(any.fragments), any.qk_dim));
  if (any.v_dim != any.qk_dim) name += fmt::format("/{}", any.v_dim);
  for (const BackwardMmaConfig& pass : kernels.passes) {
    add(true, fmt::format("{} {}x{}", plan::name_of_pass(pass), pass.rows(), pass.step));
  }
  add(any.masked, "masked");
  add(any.scores != ScoreForm::plain, shared::name(any.scores));
  add(any.weighted, "weighted");
  add(any.lse_rest, "lse rest");
  add(any.by_sequence, "by sequence");
  add(any.device_lengths, "device lengths");
  return name;
}

}  // namespace heddle::backward_mma
