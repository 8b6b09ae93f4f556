// Where the params and captures of a kernel's mods stand.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "expr/interpret.h"
#include "heddle/expr.h"

namespace heddle::device_text {

/// Where each param and capture of a kernel's mods stands in shared::ModValues, and the reals that mods are computed
/// in: those of the attention, f64 where q, k and v are.
struct ModLayout {
  struct CaptureSlot {
    std::string name;
    DType dtype;
    int rank;
    bool operator==(const CaptureSlot&) const = default;
  };
  std::vector<std::pair<std::string, ExprType>> params;  // word i
  std::vector<CaptureSlot> captures;
  expr::Precision reals = expr::Precision::f32;
  bool by_sequence = false;                   // sequences differ: each has its lengths, starts and rows in a list
  std::string sequence = "mod.sequences[b]";  // where they stand: a SequenceSpan
};
/// The layout of all mods together (empty ones count nothing), names sorted. Throws Error(unsupported) past
/// shared::kModParams params, shared::kModCaptures captures or rank 4, Error(invalid_argument) for a name that two mods
/// declare differently.
ModLayout layout_of(const std::vector<Expr>& mods, expr::Precision reals = expr::Precision::f32);

/// For each capture of the layout, the axis of its zone map: the one along which the mask reads many elements of a
/// block; -1 if there is none.
using ZoneAxes = std::vector<int>;

}  // namespace heddle::device_text
