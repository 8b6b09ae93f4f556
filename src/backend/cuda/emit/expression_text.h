// A mod as device code: the graph in order, one assignment a shared node, in the library's own identifiers. User text
// never reaches a compiler. The functions that it calls (one an operation) stand in kernels/cuda/mods/operations.cuh.
#pragma once

#include <string>
#include <vector>

#include "heddle/expr.h"

namespace heddle::cuda::emit {

/// Where each param and capture of a kernel's mods stands in shared::ModValues.
struct ModLayout {
  std::vector<std::pair<std::string, ExprType>> params;  // word i
  struct CaptureSlot {
    std::string name;
    DType dtype;
    int rank;
  };
  std::vector<CaptureSlot> captures;
};
/// The layout of all mods together (empty ones count nothing), names sorted. Throws Error(unsupported) past
/// shared::kModParams params, shared::kModCaptures captures or rank 4.
ModLayout layout_of(const std::vector<Expr>& mods);

/// A device function of a simplified mod:
///   __device__ __forceinline__ TYPE NAME(const heddle::shared::ModValues& mod, [float score,] int b, int h, int q_idx,
///                                        int kv_idx)
/// TYPE is bool, int or float by the mod's type; `score` is there for a mod of type f32 that is a score mod. q_idx
/// holds q_start already; the other leaves come from `mod` and the arguments.
std::string function_text(const std::string& name, const Expr& mod, const ModLayout& layout, bool takes_score);

}  // namespace heddle::cuda::emit
