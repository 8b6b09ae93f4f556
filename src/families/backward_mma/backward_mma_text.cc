#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "backend/device_text/config_text.h"
#include "backend/device_text/read_text.h"
#include "backend/portable/portable_text.h"
#include "families/backward_mma/backward_mma.h"

namespace heddle::backward_mma {
namespace {

using device_text::Rounding;
using device_text::TakesScore;
using device_text::value_text;
using shared::BackwardMmaConfig;
using shared::ScoreForm;

// A pass, to be given its number and class, launch bounds, what stands before parameters, the shared memory and the
// number of a CTA.
constexpr const char* kPass =
    "\nextern \"C\" __global__ void {2}\n"
    "    backward_mma_{0}({3} heddle::shared::BackwardMmaParams params) {{\n"
    "  {4}\n"
    "  {1}(params, memory)\n"
    "      .run({5});\n"
    "}}\n";
// A kernel around the passes, to be given its name, the function, what stands before parameters, the number of a CTA
// and the type of reals.
constexpr const char* kAround =
    "\nextern \"C\" __global__ void __launch_bounds__(heddle::shared::kRowThreads)\n"
    "    backward_mma_{0}({2} heddle::shared::BackwardRowsParams params) {{\n"
    "  __shared__ {4} shares[heddle::portable::kRowShares];\n"
    "  heddle::portable::BackwardRows<heddle::kRows>(params, shares).{1}({3});\n"
    "}}\n";

// A kernel around sums, to be given its name, the class, what stands before parameters and the number of a CTA.
constexpr const char* kAroundReads =
    "\nextern \"C\" __global__ void __launch_bounds__(heddle::shared::kSumThreads)\n"
    "    backward_mma_{0}({2} heddle::shared::MmaSumsParams params) {{\n"
    "  {1}::{0}(params, {3});\n"
    "}}\n";
// The kernel that makes dq of the sums that a pass adds to, to be given the number of threads, the class, what stands
// before parameters and the number of a CTA.
constexpr const char* kStoredQueries =
    "\nextern \"C\" __global__ void __launch_bounds__({0})\n"
    "    backward_mma_queries({2} heddle::shared::BackwardRowsParams params) {{\n"
    "  {1}::store(params, {3});\n"
    "}}\n";
// The kernel that widens tensors, to be given the class, what stands before parameters and the number of a CTA.
constexpr const char* kWiden =
    "\nextern \"C\" __global__ void __launch_bounds__(heddle::shared::kSumThreads)\n"
    "    backward_mma_widen({1} heddle::shared::MmaWidenParams params) {{\n"
    "  {0}::run(params, {2});\n"
    "}}\n";
// Takes a read's sum, rows, of_weight and skips_outside.
constexpr const char* kReadConstants =
    "  static constexpr int kSum = {};\n"
    "  static constexpr shared::ReadRows kRows = shared::ReadRows::{};\n"
    "  static constexpr bool kOfWeight = {}, kSkipsOutside = {};\n";

/// The fragments of dq that a pass adds.
std::string queries_class(const BackwardMmaConfig& config, std::size_t pass) {
  if (!config.adds_d_q) return "heddle::portable::NoQueries";
  return fmt::format("heddle::portable::{}<heddle::shared::queries_side(heddle::kPass{})>",
                     portable::fragments_class(config.fragments), pass);
}

/// The type of lse, of sums and of the reals of mods.
std::string_view real_of(const plan::BackwardMmaKernels& kernels) {
  return shared::real_bytes(kernels.rows.storage) == 8 ? "double" : "float";
}

std::string rows_text(const shared::BackwardMmaRows& rows) {
  return device_text::wrapped(fmt::format(
      "constexpr heddle::shared::BackwardMmaRows kRows = {{.storage = {}, .v_dim = {}, .normalizer = {}, .o_type = {}, "
      ".row_bytes = {}, {}.sinks = {}, .d_sinks_type = {}}};\n",
      value_text("Storage", rows.storage), rows.v_dim, value_text("Normalizer", rows.normalizer),
      value_text("StorageType", rows.o_type), rows.row_bytes, rows.lse_rest ? ".lse_rest = true, " : "",
      value_text("", rows.sinks), value_text("StorageType", rows.d_sinks_type)));
}

}  // namespace

std::string config_and_mods_text(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                                 const plan::MmaReads& reads, const device_text::ModLayout& layout) {
  device_text::ModLayout own = layout;
  std::string configs = rows_text(kernels.rows);
  std::string headers;
  for (std::size_t i = 0; i < kernels.passes.size(); ++i) {
    own.by_sequence = kernels.passes[i].by_sequence;
    configs += device_text::config_text(kernels.passes[i], fmt::format("kPass{}", i));
  }
  if (!kernels.passes.empty()) {
    headers = fmt::format("#include \"{}\"\n", portable::fragments_header(kernels.passes.front().fragments));
  }
  portable::ModTexts texts(own);
  const bool mapped = mods.form == ScoreForm::mapped, added = mods.form == ScoreForm::added;
  texts.add("mask", "Mask", !mods.mask.empty(), mods.mask, TakesScore::no, Rounding::exact, ExprType::boolean);
  texts.add("offset", "Offset", added, mods.offset, TakesScore::no, Rounding::exact);
  texts.add("score", "Score", mapped, mods.score, TakesScore::yes, Rounding::contracted);
  texts.add("derivative", "Derivative", mapped, mods.derivative, TakesScore::yes, Rounding::contracted);
  texts.add("weight", "Weight", !mods.weight.empty(), mods.weight, TakesScore::no, Rounding::exact);
  texts.add_places(mods.places);
  std::string of_reads;
  for (std::size_t i = 0; i < reads.reads.size(); ++i) {
    const plan::MmaRead& read = reads.reads[i];
    const std::string constants =
        fmt::format(kReadConstants, read.sum, name(read.rows), read.of_weight, read.skips_outside);
    of_reads += device_text::read_text(i, read.slope, read.indices, constants, own);
  }
  return fmt::format(
      "{}#include \"portable/backward_mma/backward_pass.cuh\"\n"
      "#include \"portable/backward_mma/row_kernels.cuh\"\n"
      "#include \"portable/backward_mma/stored_sums.cuh\"\n{}\n"
      "namespace heddle {{\n{}}}  // namespace heddle\n\n{}{}",
      headers, kernels.widen.empty() ? "" : "#include \"portable/backward_mma/widened_rows.cuh\"\n", configs,
      texts.text(), of_reads);
}

std::string pass_class(const plan::BackwardMmaKernels& kernels, std::size_t pass) {
  const std::string fragments = portable::fragments_class(kernels.passes[pass].fragments);
  std::string reads;
  for (int i = 0; i < shared::kMostMmaReads; ++i) {
    if ((kernels.passes[pass].reads >> i & 1) != 0) reads += fmt::format(", heddle::Read{}", i);
  }
  return fmt::format(
      "heddle::portable::Backward<heddle::kPass{0}, "
      "heddle::portable::{1}<heddle::shared::scores_side(heddle::kPass{0})>, "
      "heddle::portable::{1}<heddle::shared::values_side(heddle::kPass{0})>, {3}, heddle::GeneratedMods{2}>",
      pass, fragments, reads, queries_class(kernels.passes[pass], pass));
}

std::string stored_queries_class(const plan::BackwardMmaKernels& kernels) {
  return fmt::format("heddle::portable::AddedQueries<heddle::kPass0, {}>", queries_class(kernels.passes.front(), 0));
}

std::string sums_class(const plan::BackwardMmaKernels& kernels, const std::vector<shared::StorageType>& types) {
  std::string text = fmt::format("heddle::portable::StoredSums<{}, {}", real_of(kernels), kernels.ordered_sums > 0);
  for (const shared::StorageType type : types) text += fmt::format(", {}", value_text("StorageType", type));
  return text + ">";
}

device_text::ModLayout layout_of(const plan::BackwardMods& mods, const plan::MmaReads& reads, expr::Precision reals) {
  std::vector<Expr> all = mods.all();
  for (const Expr& e : reads.all()) all.push_back(e);
  return device_text::layout_of(all, reals);
}

bool has_rows(const plan::BackwardMmaKernels& kernels) {
  return kernels.rows.normalizer == shared::Normalizer::softmax;
}

jit::Source source(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods, const plan::MmaReads& reads,
                   const std::vector<shared::StorageType>& types, const device_text::ModLayout& layout,
                   const gpu::Dialect& dialect, const std::string& architecture) {
  std::string text = config_and_mods_text(kernels, mods, reads, layout);
  for (std::size_t i = 0; i < kernels.passes.size(); ++i) {
    const BackwardMmaConfig& pass = kernels.passes[i];
    text += fmt::format(kPass, i, pass_class(kernels, i),
                        dialect.bounds(fmt::format("heddle::kPass{}", i), portable::waves_a_simd(pass)), dialect.params,
                        dialect.memory(shared::backward_mma_memory(pass).bytes), dialect.cta);
  }
  const std::string_view real = real_of(kernels);
  if (has_rows(kernels)) text += fmt::format(kAround, "rows", "run", dialect.params, dialect.cta, real);
  if (kernels.rows.sinks) text += fmt::format(kAround, "sinks", "sum_sinks", dialect.params, dialect.cta, real);
  if (!kernels.widen.empty()) text += fmt::format(kWiden, kernels.widen, dialect.params, dialect.cta);
  if (plan::adds_queries(kernels)) {
    text += fmt::format(kStoredQueries, plan::stored_queries_threads(kernels), stored_queries_class(kernels),
                        dialect.params, dialect.cta);
  }
  const auto add_around_sums = [&](const char* name) {
    text += fmt::format(kAroundReads, name, sums_class(kernels, types), dialect.params, dialect.cta);
  };
  if (plan::clears_sums(kernels)) add_around_sums("clear");
  if (reads.any()) add_around_sums("store");
  jit::Source source = dialect.source(name_of(kernels), text, architecture);
  // Gradients, and other values that outlive a sequence's steps, may leave registers between sequences. Of a pass that
  // adds dq addresses may: 220 bytes were not slower than 32 (H100, D 128).
  constexpr int kBearable = 64;
  const auto bears = [](const BackwardMmaConfig& pass) { return pass.all_sequences || pass.adds_d_q; };
  if (std::ranges::any_of(kernels.passes, bears)) source.bearable_spill_bytes = kBearable;
  return source;
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
    add(pass.slices > 1, fmt::format("in {} slices", pass.slices));
    add(pass.all_sequences, "of all sequences");
  }
  add(any.masked, "masked");
  add(any.scores != ScoreForm::plain, shared::name(any.scores));
  add(any.weighted, "weighted");
  add(any.placed_queries, "placed queries");
  add(any.placed_keys, "placed keys");
  add(any.lse_rest, "lse rest");
  add(any.descaled, "of 8 bits");
  add(kernels.sum_elements > 0, kernels.ordered_sums > 0 ? "reads in order" : "reads");
  add(any.by_sequence, "by sequence");
  add(any.device_lengths, "device lengths");
  return name;
}

}  // namespace heddle::backward_mma
