#include "backend/portable/portable_config.h"

#include <algorithm>
#include <bit>
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

KernelMods portable_mods(const AttentionProblem& problem) {
  using shared::ScoreForm;
  KernelMods mods = kernel_mods(problem, OfKeys::left);
  mods.streamed.reset();
  mods.drops.reset();
  mods.descending = false;
  mods.slope = Expr();
  mods.mask_form = shared::MaskForm::direct;
  if (mods.cap != 0) {
    mods.form = ScoreForm::mapped;
    mods.score = expr::simplify(by_position(problem, mods.kv_start).score_mod, expr::Precision::f32);
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

MmaTarget amd_target(std::string_view architecture) {
  const device::AmdArchitecture* row = device::amd_architecture(architecture);
  const auto narrow = kind_called(row != nullptr ? row->fragments : std::string_view());
  return {narrow.value_or(FragmentKind::fma), FragmentKind::fma};
}

int row_alignment(const ConstTensorView& view) {
  std::uint64_t bytes = reinterpret_cast<std::uintptr_t>(view.data) | 16;
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] > 1) bytes |= static_cast<std::uint64_t>(view.strides[axis] * size_of(view.dtype));
  }
  return 1 << std::countr_zero(bytes);
}

}  // namespace heddle::plan
