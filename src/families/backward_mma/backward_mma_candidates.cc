#include <algorithm>
#include <span>

#include "families/backward_mma/backward_mma.h"
#include "plan/access/kernel_types.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::BackwardMmaConfig;
using shared::FragmentKind;

/// A row of the table for one pass. No waves: there is no such pass.
struct PassShape {
  int row_waves, row_fragments, step;
  bool shared_rows;
  int stages, ctas;
};
/// Kernels for head dims up to `most_dim`, at the last bound CTAs share columns. With `values` dk and dv have a pass
/// each.
struct BackwardKernels {
  int most_dim;
  PassShape keys, values, queries;
};
constexpr PassShape kNone = {};
constexpr int kSharedColumns = 576;  // the bound of head dims whose columns CTAs share

// For each bound of head dims the best first. Chosen by registers and shared memory, not measured: two fragments of
// rows a warp halve what a warp reads of a step for each product, but dk and dv of them take twice the registers.
/// f16, bf16.
constexpr BackwardKernels kMmaKernels[] = {
    {64, {4, 2, 32, true, 2, 2}, kNone, {4, 2, 32, true, 2, 2}},
    {64, {4, 1, 64, true, 2, 2}, kNone, {4, 2, 32, true, 2, 2}},
    {64, {4, 1, 32, true, 2, 2}, kNone, {4, 1, 32, true, 2, 2}},
    {64, {4, 1, 16, true, 1, 1}, kNone, {4, 1, 16, true, 1, 1}},
    {128, {4, 1, 64, true, 2, 2}, kNone, {4, 2, 32, true, 2, 2}},
    {128, {4, 1, 64, true, 1, 2}, kNone, {4, 2, 32, true, 2, 2}},
    {128, {4, 1, 32, true, 2, 2}, kNone, {4, 2, 16, true, 2, 2}},
    {128, {4, 1, 32, true, 1, 1}, kNone, {4, 1, 32, true, 1, 1}},
    {128, {4, 1, 16, true, 1, 1}, kNone, {4, 1, 16, true, 1, 1}},
    {128, {4, 2, 32, true, 2, 2}, {4, 2, 32, true, 1, 2}, {4, 2, 16, true, 2, 2}},
    {256, {4, 1, 32, true, 2, 1}, {4, 1, 32, true, 1, 1}, {4, 1, 32, true, 2, 1}},
    {256, {4, 1, 16, true, 2, 1}, {4, 1, 32, true, 1, 1}, {4, 1, 16, true, 2, 1}},
    {256, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}},
    {kSharedColumns, {4, 1, 32, true, 1, 1}, {4, 1, 32, true, 1, 1}, {4, 1, 32, true, 1, 1}},
    {kSharedColumns, {4, 1, 16, true, 1, 1}, {4, 1, 32, true, 1, 1}, {4, 1, 16, true, 1, 1}},
    {kSharedColumns, {2, 1, 16, true, 1, 1}, {2, 1, 32, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {kSharedColumns, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
};
/// A pass of five products that gives all gradients.
struct OnePass {
  int most_dim;
  PassShape shape;
  int step_waves = 1;
};
constexpr OnePass kMmaOnePasses[] = {
    {64, {4, 2, 32, true, 2, 2}},     {64, {4, 1, 32, true, 2, 2}},     {128, {4, 2, 64, true, 2, 1}, 2},
    {128, {4, 2, 64, true, 1, 1}, 2}, {128, {4, 1, 64, true, 2, 1}, 2}, {128, {4, 1, 64, true, 1, 1}, 2},
    {128, {4, 1, 32, true, 1, 2}},
};
/// f32: each wave adds dq of its own keys.
constexpr OnePass kWideOnePasses[] = {
    {64, {4, 2, 32, true, 1, 2}},  {64, {8, 1, 64, true, 1, 1}},  {64, {4, 1, 64, true, 1, 2}},
    {64, {4, 1, 32, true, 1, 2}},  {128, {8, 1, 64, true, 1, 1}}, {128, {4, 1, 32, true, 1, 2}},
    {128, {4, 1, 64, true, 1, 1}}, {128, {2, 1, 32, true, 1, 1}},
};
/// f32 as outer products.
constexpr BackwardKernels kOuterKernels[] = {
    {64, {4, 2, 32, true, 1, 2}, kNone, {4, 2, 32, true, 1, 2}},
    {64, {8, 1, 64, true, 1, 1}, kNone, {8, 1, 64, true, 1, 1}},
    {64, {4, 1, 32, true, 1, 2}, kNone, {4, 1, 32, true, 1, 2}},
    {128, {8, 1, 64, true, 1, 1}, kNone, {8, 1, 64, true, 1, 1}},
    {128, {4, 1, 32, true, 1, 2}, kNone, {4, 1, 32, true, 1, 2}},
    {128, {2, 1, 32, true, 1, 1}, kNone, {2, 1, 32, true, 1, 1}},
    {256, {4, 1, 32, true, 1, 1}, {4, 1, 32, true, 1, 1}, {4, 1, 32, true, 1, 1}},
    {kSharedColumns, {2, 1, 32, true, 1, 1}, {2, 1, 32, true, 1, 1}, {2, 1, 32, true, 1, 1}},
};
/// f32 by products of tf32.
constexpr BackwardKernels kTf32Kernels[] = {
    {64, {4, 2, 32, true, 1, 2}, kNone, {4, 2, 32, true, 1, 2}},
    {64, {4, 1, 32, true, 1, 2}, kNone, {4, 1, 32, true, 1, 2}},
    {128, {8, 1, 64, true, 1, 1}, kNone, {8, 1, 64, true, 1, 1}},
    {128, {4, 1, 32, true, 1, 2}, kNone, {4, 1, 32, true, 1, 2}},
    {128, {2, 1, 32, true, 1, 1}, kNone, {2, 1, 32, true, 1, 1}},
    {256, {4, 1, 32, true, 1, 1}, {4, 1, 32, true, 1, 1}, {4, 1, 32, true, 1, 1}},
    {256, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {kSharedColumns, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {kSharedColumns, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
};
/// Plain multiply-adds: f32, and AMD's 16-bit types without matrix instructions.
constexpr BackwardKernels kFmaKernels[] = {
    {64, {4, 1, 32, true, 1, 1}, kNone, {4, 1, 32, true, 1, 1}},
    {64, {4, 1, 16, true, 1, 1}, kNone, {4, 1, 16, true, 1, 1}},
    {128, {2, 1, 32, true, 1, 1}, kNone, {4, 1, 16, true, 1, 1}},
    {128, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {256, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {256, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
    {kSharedColumns, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {kSharedColumns, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
};
/// f64: a row takes twice the registers and twice the shared memory.
constexpr BackwardKernels kF64Kernels[] = {
    {64, {4, 1, 32, true, 1, 1}, kNone, {4, 1, 32, true, 1, 1}},
    {64, {4, 1, 16, true, 1, 1}, kNone, {4, 1, 16, true, 1, 1}},
    {64, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {128, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}},
    {128, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {128, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
    {kSharedColumns, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {kSharedColumns, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
};
/// f64 by tensor cores. At D 64 dk and dv of steps of 32 spill 180 to 520 bytes.
constexpr BackwardKernels kDmmaKernels[] = {
    {64, {4, 1, 16, true, 1, 1}, kNone, {4, 1, 32, true, 1, 1}},
    {64, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}},
    {128, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}},
    {128, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {128, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
    {kSharedColumns, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
    {kSharedColumns, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}, {1, 1, 16, true, 1, 1}},
};
/// AMD's fragments of 16 rows; of 32 rows and 32 keys.
constexpr BackwardKernels kWmmaKernels[] = {
    {64, {4, 1, 32, true, 1, 1}, kNone, {4, 1, 32, true, 1, 1}},
    {64, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}},
    {128, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}, {4, 1, 16, true, 1, 1}},
    {256, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}, {2, 1, 16, true, 1, 1}},
};
constexpr BackwardKernels kMfmaKernels[] = {
    {64, {2, 1, 32, true, 1, 1}, {2, 1, 32, true, 1, 1}, {2, 1, 32, true, 1, 1}},
    {128, {1, 1, 32, true, 1, 1}, {1, 1, 32, true, 1, 1}, {1, 1, 32, true, 1, 1}},
};

std::span<const BackwardKernels> kernels_of(shared::Storage storage, FragmentKind fragments) {
  if (fragments == FragmentKind::dmma) return kDmmaKernels;
  if (storage == shared::Storage::f64) return kF64Kernels;
  switch (shared::fragments_of(fragments).tables) {
    case FragmentKind::fma:
      return kFmaKernels;
    case FragmentKind::outer:
      return kOuterKernels;
    case FragmentKind::tf32:
      return kTf32Kernels;
    case FragmentKind::gfx11:
      return kWmmaKernels;
    case FragmentKind::gfx9:
      return kMfmaKernels;
    default:
      return kMmaKernels;
  }
}

/// Columns of a gradient whose sums the registers of one CTA hold.
int most_columns(shared::Storage storage) { return storage == shared::Storage::f64 ? 128 : 256; }

BackwardMmaConfig shaped(BackwardMmaConfig config, const PassShape& shape) {
  const int most = most_columns(config.storage);
  if (!(config.d_qk && config.d_v)) config.slices = ((config.d_qk ? config.qk_dim : config.v_dim) + most - 1) / most;
  config.row_waves = shape.row_waves;
  config.row_fragments = shape.row_fragments;
  config.step = shape.step;
  config.shared_rows = shape.shared_rows;
  config.stages = config.d_qk ? shape.stages : 1;
  config.ctas = shape.ctas;
  return config;
}

/// The tensor serves all sequences.
bool serves_all(const AttentionProblem& problem, const ConstTensorView& tensor) {
  return !problem.packed && problem.batch > 1 && tensor.shape[0] == 1;
}

/// A tile's rows are keys: of dk, dv or both.
BackwardMmaConfig of_keys(BackwardMmaConfig config, const BackwardTensors& tensors, bool d_k, bool d_v, int reads) {
  const DType own = tensors.q.dtype;
  config.reads = d_k ? reads : 0;
  config.of_keys = true;
  config.d_qk = d_k;
  config.d_v = d_v;
  config.row_bytes = std::min(row_alignment(tensors.k), row_alignment(tensors.v));
  config.step_bytes = std::min(row_alignment(tensors.q), row_alignment(tensors.d_o));
  if (d_k) config.d_qk_type = output_type_of(tensors.dk->dtype, own);
  if (d_v) config.d_v_type = output_type_of(tensors.dv->dtype, own);
  config.gradient_bytes = std::min(d_k ? row_alignment(*tensors.dk) : 16, d_v ? row_alignment(*tensors.dv) : 16);
  return config;
}
BackwardMmaConfig of_queries(BackwardMmaConfig config, const BackwardTensors& tensors, int reads) {
  config.d_qk = true;
  config.reads = reads;
  config.row_bytes = std::min(row_alignment(tensors.q), row_alignment(tensors.d_o));
  config.step_bytes = std::min(row_alignment(tensors.k), row_alignment(tensors.v));
  if (!tensors.dq) return config;
  config.d_qk_type = output_type_of(tensors.dq->dtype, tensors.q.dtype);
  config.gradient_bytes = row_alignment(*tensors.dq);
  return config;
}

/// One pass gives dk, dv and dq. Tiles add to dq in any order, and `deterministic` would have one order.
bool takes_one_pass(const AttentionProblem& problem, const ReadsOfPasses& reads, const BackwardTensors& tensors) {
  return !problem.deterministic && tensors.dq && tensors.dk && tensors.dv && reads.queries == 0 &&
         !has_widened(problem) && !serves_all(problem, tensors.q) && !serves_all(problem, tensors.k) &&
         !serves_all(problem, tensors.v);
}
std::span<const OnePass> one_passes_of(shared::Storage storage, FragmentKind fragments) {
  if (!shared::fragments_of(fragments).adds_queries || storage == shared::Storage::f64) return {};
  if (fragments == FragmentKind::outer || fragments == FragmentKind::tf32) return kWideOnePasses;
  return kMmaOnePasses;
}
BackwardMmaConfig one_pass(const BackwardMmaConfig& all, const BackwardTensors& tensors, int reads, const OnePass& of) {
  BackwardMmaConfig pass = of_keys(all, tensors, true, true, reads);
  pass.step_waves = of.step_waves;
  pass.adds_d_q = true;
  pass.d_q_type = output_type_of(tensors.dq->dtype, tensors.q.dtype);
  pass.d_q_bytes = row_alignment(*tensors.dq);
  return shaped(pass, of.shape);
}

/// The pass that finds the largest parts which `pass` adds. It has the same tiles and steps.
BackwardMmaConfig finding_parts(BackwardMmaConfig pass) {
  const BackwardMmaConfig none;
  pass.read_parts = shared::ReadParts::largest;
  pass.d_v = false;
  pass.slices = 1;
  pass.gradient_bytes = none.gradient_bytes;
  pass.d_qk_type = none.d_qk_type;
  pass.d_v_type = none.d_v_type;
  return pass;
}

/// The passes of a row of the table, as far as their gradients are asked for, or sums of reads.
std::vector<BackwardMmaConfig> passes_of(const BackwardKernels& kernels, BackwardMmaConfig all,
                                         const AttentionProblem& problem, const MmaReads& reads,
                                         const BackwardTensors& tensors) {
  std::vector<BackwardMmaConfig> passes;
  const bool d_k = tensors.dk.has_value(), d_v = tensors.dv.has_value(), has_values = kernels.values.row_waves > 0;
  const bool of_all_k = serves_all(problem, tensors.k), of_all_v = serves_all(problem, tensors.v);
  const ReadsOfPasses own = reads_of_passes(reads, d_k, tensors.dq.has_value());
  const auto add = [&](BackwardMmaConfig pass, const PassShape& shape, bool of_all) {
    pass.all_sequences = of_all;
    if (reads.ordered && pass.reads != 0) pass.read_parts = shared::ReadParts::integers;
    passes.push_back(shaped(pass, shape));
  };
  if (has_values || (d_k && d_v && of_all_k != of_all_v)) {
    if (d_k) add(of_keys(all, tensors, true, false, own.keys), kernels.keys, of_all_k);
    if (d_v) add(of_keys(all, tensors, false, true, 0), has_values ? kernels.values : kernels.keys, of_all_v);
  } else if (d_k || d_v) {
    add(of_keys(all, tensors, d_k, d_v, own.keys), kernels.keys, d_k ? of_all_k : of_all_v);
  }
  if (tensors.dq || own.queries != 0) {
    add(of_queries(all, tensors, own.queries), kernels.queries, tensors.dq && serves_all(problem, tensors.q));
  }
  std::vector<BackwardMmaConfig> before;
  for (const BackwardMmaConfig& pass : passes) {
    if (pass.read_parts == shared::ReadParts::integers) before.push_back(finding_parts(pass));
  }
  passes.insert(passes.begin(), before.begin(), before.end());
  return passes;
}

}  // namespace

std::vector<BackwardMmaKernels> backward_mma_kernels(const AttentionProblem& problem, const BackwardMods& mods,
                                                     const MmaReads& reads, const BackwardTensors& given,
                                                     MmaTarget target) {
  const BackwardTensors tensors = with_copies(problem, given);
  const DType product = product_type(problem, given);
  BackwardMmaConfig all;
  all.qk_dim = static_cast<int>(problem.qk_dim);
  all.v_dim = static_cast<int>(problem.v_dim);
  all.storage = storage_of(product);
  all.descaled = has_widened(problem);
  all.masked = !mods.mask.empty();
  all.scores = mods.form;
  all.weighted = !mods.weight.empty();
  all.placed_queries = !mods.places.query.empty();
  all.placed_keys = !mods.places.key.empty();
  all.normalizer = normalizer_of(problem);
  all.lse_rest = problem.with_lse_rest;
  all.by_sequence = problem::sequences_differ(problem) || problem.packed;
  all.device_lengths = problem.device_lengths;
  shared::BackwardMmaRows rows = {.storage = all.storage, .v_dim = all.v_dim, .normalizer = all.normalizer};
  rows.o_type = output_type_of(problem.o_dtype, product);
  rows.row_bytes = std::min(row_alignment(tensors.o), row_alignment(tensors.d_o));
  rows.lse_rest = all.lse_rest;
  rows.sinks = problem.wanted.sinks;
  if (tensors.d_sinks) rows.d_sinks_type = output_type_of(tensors.d_sinks->dtype, product);

  const int dim = std::max(all.qk_dim, all.v_dim), most = most_columns(all.storage);
  const int bound = dim <= 64 ? 64 : dim <= 128 ? 128 : dim <= most ? most : kSharedColumns;
  const WidenedCopies copies = widened_copies(problem, given);
  const int ordered = reads.ordered ? static_cast<int>(reads.sums.size()) : 0;
  std::vector<BackwardMmaKernels> found;
  const auto append = [&](FragmentKind fragments) {
    all.fragments = fragments;
    const ReadsOfPasses own_reads = reads_of_passes(reads, tensors.dk.has_value(), tensors.dq.has_value());
    const auto add = [&](std::vector<BackwardMmaConfig> passes) {
      found.push_back({std::move(passes), rows, reads.elements(), ordered, copies,
                       all.descaled ? widen_class(problem, all.storage) : std::string()});
    };
    if (takes_one_pass(problem, own_reads, tensors)) {
      for (const OnePass& pass : one_passes_of(all.storage, fragments)) {
        if (pass.most_dim == bound) add({one_pass(all, tensors, own_reads.keys, pass)});
      }
    }
    for (const BackwardKernels& kernels : kernels_of(all.storage, fragments)) {
      if (kernels.most_dim == bound) add(passes_of(kernels, all, problem, reads, tensors));
    }
  };
  const FragmentKind own = target.of(problem, all.storage);
  append(own);
  if (shared::fragments_of(own).plain_follow) append(FragmentKind::fma);
  return found;
}

std::string_view name_of_pass(const BackwardMmaConfig& pass) {
  if (pass.finds_parts()) return pass.of_keys ? "largest parts by keys" : "largest parts by queries";
  if (!pass.of_keys) return "dq";
  if (pass.adds_d_q) return "dq, dk and dv";
  return !pass.d_v ? "dk" : !pass.d_qk ? "dv" : "dk and dv";
}

namespace {

/// A pass's own numbers, under its name.
void add_pass(const BackwardMmaConfig& pass, std::vector<Setting>& settings) {
  const int kind = !pass.of_keys ? 0 : pass.adds_d_q ? 4 : pass.d_qk && pass.d_v ? 1 : pass.d_qk ? 2 : 3;
  const auto add = [&](const std::string_view(&names)[5], std::variant<bool, int, std::string_view> value) {
    settings.push_back({names[kind], value});
  };
#define HEDDLE_OF_PASS(field) \
  { "dq " field, "dk and dv " field, "dk " field, "dv " field, "dq, dk and dv " field }
  static constexpr std::string_view kRows[] = HEDDLE_OF_PASS("rows"), kFragments[] = HEDDLE_OF_PASS("row_fragments"),
                                    kStep[] = HEDDLE_OF_PASS("step"), kStages[] = HEDDLE_OF_PASS("stages"),
                                    kSlices[] = HEDDLE_OF_PASS("slices"), kRowBytes[] = HEDDLE_OF_PASS("row_bytes"),
                                    kStepBytes[] = HEDDLE_OF_PASS("step_bytes"),
                                    kShared[] = HEDDLE_OF_PASS("shared_memory_bytes");
#undef HEDDLE_OF_PASS
  add(kRows, pass.rows());
  add(kFragments, pass.row_fragments);
  add(kStep, pass.step);
  add(kStages, pass.stages);
  if (pass.slices > 1) add(kSlices, pass.slices);
  add(kRowBytes, pass.row_bytes);
  add(kStepBytes, pass.step_bytes);
  add(kShared, shared::backward_mma_memory(pass).bytes);
}

}  // namespace

std::vector<Setting> backward_mma_settings(const BackwardMmaKernels& kernels) {
  std::vector<Setting> settings = {{"storage", std::string_view(shared::name(kernels.rows.storage))},
                                   {"normalizer", std::string_view(shared::name(kernels.rows.normalizer))}};
  if (kernels.passes.empty()) return settings;
  const BackwardMmaConfig& any = kernels.passes.front();
  settings.push_back({"fragments", std::string_view(shared::name(any.fragments))});
  settings.push_back({"qk_dim", any.qk_dim});
  settings.push_back({"v_dim", any.v_dim});
  settings.push_back({"scores", std::string_view(shared::name(any.scores))});
  settings.push_back({"masked", any.masked});
  settings.push_back({"weighted", any.weighted});
  settings.push_back({"lse_rest", any.lse_rest});
  if (any.descaled) settings.push_back({"descaled", true});
  for (const BackwardMmaConfig& pass : kernels.passes) {
    if (!pass.finds_parts()) add_pass(pass, settings);
  }
  return settings;
}

}  // namespace heddle::plan
