#include "backend/portable/portable_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "device/amd_architectures.h"
#include "expr/simplify.h"

namespace heddle::plan {

using problem::AttentionProblem;
using shared::FragmentKind;

shared::Storage storage_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return shared::Storage::f16;
    case DType::bf16:
      return shared::Storage::bf16;
    case DType::f32:
      return shared::Storage::f32;
    default:
      return shared::Storage::f64;
  }
}

KernelMods portable_mods(const AttentionProblem& problem, OfPlaces of_places) {
  using shared::ScoreForm;
  KernelMods mods = kernel_mods(problem, OfKeys::left, of_places);
  mods.streamed.reset();
  mods.drops.reset();
  mods.descending = false;
  mods.slope = Expr();
  mods.mask_form = shared::MaskForm::direct;
  if (mods.cap != 0) {
    mods.form = ScoreForm::mapped;
    const Expr given = at_places(by_position(problem, mods.kv_start), mods.places).score_mod;
    mods.score = expr::simplify(given, problem.precision);
    mods.offset = Expr();
    mods.cap = 0;
    mods.factor = 1;
  } else if (mods.form != ScoreForm::plain && mods.form != ScoreForm::mapped) {
    mods.form = ScoreForm::added;
  }
  return mods;
}

namespace {

/// No kind: no fragments are called so.
constexpr std::optional<FragmentKind> kind_called(std::string_view name) {
  for (int i = 0; shared::fragments_of(FragmentKind(i)).name != nullptr; ++i) {
    if (name == shared::name(FragmentKind(i))) return FragmentKind(i);
  }
  return std::nullopt;
}
static_assert(std::ranges::all_of(device::kAmdArchitectures, [](const device::AmdArchitecture& row) {
  return row.fragments.empty() || kind_called(row.fragments).has_value();
}));

}  // namespace

namespace {

/// f16: the powers of two by which a row's largest exponential exceeds 1. They let small exponentials keep their bits
/// if a weight_mod takes the large ones out. Times the weight, the largest stays below 2^15.
int headroom_of(const AttentionProblem& problem, const KernelMods& mods, shared::Storage storage) {
  constexpr int kMost = 10, kUnknown = 7;
  if (storage != shared::Storage::f16 || problem.normalizer != Normalizer::softmax) return 0;
  if (mods.weight.empty() || mods.weight_bound == 0) return kMost;
  if (!std::isfinite(mods.weight_bound)) return kUnknown;
  return std::clamp(15 - static_cast<int>(std::ceil(std::log2(mods.weight_bound))), 0, kMost);
}

/// A power of two that divides the addresses of rows of q_rest or k_rest, and the bytes of a row that stand before
/// them.
int alignment_of_rest(const std::optional<ConstTensorView>& rest, int bytes_before) {
  if (!rest) return 16;
  return std::min(row_alignment(*rest), 1 << std::countr_zero(static_cast<unsigned>(bytes_before | 16)));
}

}  // namespace

shared::ForwardMmaConfig forward_config(const AttentionProblem& problem, const KernelMods& mods,
                                        const AttentionTensors& tensors, const AttentionOptions& options,
                                        MmaTarget target) {
  shared::ForwardMmaConfig all;
  all.qk_dim = static_cast<int>(problem.qk_dim);
  all.v_dim = static_cast<int>(problem.v_dim);
  const bool converts = fp8_of(problem.k_dtype) != shared::Fp8::none;
  all.storage = converts ? shared::Storage::f16 : storage_of(problem.q_dtype);
  if (converts) {
    all.q_bf16 = problem.q_dtype == DType::bf16;
    all.q_fp8 = fp8_of(problem.q_dtype);
    all.k_fp8 = fp8_of(problem.k_dtype);
    all.v_fp8 = fp8_of(problem.v_dtype);
  }
  all.fragments = target.of(problem, all.storage);
  all.lse = problem.with_lse;
  all.lse_rest = problem.with_lse_rest;
  all.max_scores = problem.with_max_scores;
  all.masked = !mods.mask.empty();
  all.scores = mods.form;
  all.weighted = !mods.weight.empty();
  all.placed_queries = !mods.places.query.empty();
  all.placed_keys = !mods.places.key.empty();
  all.headroom = headroom_of(problem, mods, all.storage);
  all.sinks = problem.with_sinks;
  all.normalizer = normalizer_of(problem);
  all.by_sequence = problem.page_rows > 0 || problem::sequences_differ(problem);
  all.device_lengths = problem.device_lengths;
  all.page_rows = static_cast<int>(problem.page_rows);
  all.listed_pages = problem.listed_pages;
  if (problem.q_rest_dim > 0) all.q_first = static_cast<int>(problem.qk_dim - problem.q_rest_dim);
  if (problem.k_rest_dim > 0) all.k_first = static_cast<int>(problem.qk_dim - problem.k_rest_dim);
  all.q_bytes = std::min(row_alignment(tensors.q), alignment_of_rest(options.q_rest, all.q_first_bytes()));
  all.kv_bytes = std::min(
      {row_alignment(tensors.k), row_alignment(tensors.v), alignment_of_rest(options.k_rest, all.k_first_bytes())});
  all.o_bytes = row_alignment(tensors.o);
  all.o_type = output_type_of(problem.o_dtype, converts ? DType::f16 : problem.q_dtype);
  return all;
}

// GA100 and GH100 have twice the rate of f64 in tensor cores. The others' DMMA runs on the units of plain multiply-adds
// (GA102, AD102, GB202: 1/64 of the rate of f32), or has their rate (GB100).
MmaTarget nvidia_target(const device::CudaCaps& caps) {
  MmaTarget target = kNvidia;
  if (caps.minor == 0 && (caps.major == 8 || caps.major == 9)) target.of_f64 = FragmentKind::dmma;
  return target;
}

MmaTarget amd_target(std::string_view architecture) {
  const device::AmdArchitecture* row = device::amd_architecture(architecture);
  const auto of_16_bits = kind_called(row != nullptr ? row->fragments : std::string_view());
  return {of_16_bits.value_or(FragmentKind::fma), FragmentKind::fma, FragmentKind::fma, FragmentKind::fma};
}

int row_alignment(const ConstTensorView& view) {
  std::uint64_t bytes = reinterpret_cast<std::uintptr_t>(view.data) | 16;
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] > 1) bytes |= static_cast<std::uint64_t>(view.strides[axis] * size_of(view.dtype));
  }
  return 1 << std::countr_zero(bytes);
}

}  // namespace heddle::plan
