// A mod as device code: the graph in order, one local a shared node, in the library's own identifiers. User text never
// reaches a compiler, and values of params and captures are no part of the text. The functions that it calls (one an
// operation) stand in kernels/common/mods.
#pragma once

#include <optional>
#include <string>

#include "backend/device_text/mod_layout.h"
#include "heddle/expr.h"

namespace heddle::device_text {

/// Whether an element function gets the score besides the element's indices.
enum class TakesScore : bool { no, yes };

/// exact: each operation rounds as ops.def says. contracted: sums and products of f32 may become fused multiply-adds,
/// division by a constant a product, and tanh errs by 2^-22 absolutely where it is not small: what a score may, which
/// was summed by tensor cores in an order of their own. With reals of f64 every text is exact.
enum class Rounding : bool { exact, contracted };

/// For a mod that may have a streamed capture: the element function has `float streamed` before b; it is the value of
/// `read`, which may be empty.
struct Streamed {
  Expr read;
};

/// A simplified mod as four functions, so that a kernel computes once a tile what depends on b and h only, once a row
/// what depends on the query only, once a column what depends on the key only. For the name "mask", in namespace
/// heddle:
///
///   struct MaskUniform { ... };  struct MaskRow { ... };  struct MaskColumn { ... };   // any of them may be empty
///   __device__ __forceinline__ MaskUniform mask_uniform(const shared::ModValues& mod, int b, int h);
///   __device__ __forceinline__ MaskRow mask_row(const shared::ModValues& mod, const MaskUniform& u, int b, int h,
///                                               int q_idx);
///   __device__ __forceinline__ MaskColumn mask_column(const shared::ModValues& mod, const MaskUniform& u, int b, int
///   h,
///                                                     int kv_idx);
///   __device__ __forceinline__ bool mask_element(const shared::ModValues& mod, const MaskUniform& u, const MaskRow& r,
///                                                const MaskColumn& c, int b, int h, int q_idx, int kv_idx);
///
/// The element function of a mod that takes the score has `float score` after `c`; it returns bool, int or float by the
/// mod's type. If the layout's reals are f64, `double` stands for `float`. q_idx holds q_start already; the other
/// leaves come from `mod` and the arguments. Every function may be called with any indices: reads are clamped. `name`
/// is a C++ identifier of small letters.
///
/// A warp whose threads hold scores as tensor cores leave them (kernels/common/mods/columns.cuh) gets its columns from
///
///   const MaskColumns<KEYS> columns(mod, u, b, h, kv_first);   // KEYS keys from kv_first on
///   const MaskColumn c = columns.at(j, e);                     // of key kv_first + 8 j + 2 (lane % 4) + e
///
/// which computes each column once a warp and passes it on where that is long work, a read above all, and otherwise
/// calls mask_column. All threads of the warp must make these calls together. MaskMod is a class with all but the
/// element function, for templates (kernels/nvidia/fragments/elements.cuh).
///
/// The text includes the headers of kernels/common/mods that it needs. It needs the compiler's option -default-device,
/// and neither -use_fast_math nor -ftz=true.
std::string mod_text(const std::string& name, const Expr& mod, const ModLayout& layout, TakesScore takes_score,
                     Rounding rounding = Rounding::exact, const std::optional<Streamed>& streamed = {});

/// In place of a mod that a kernel never computes: the same names, declared, so that templates that are not
/// instantiated can be read.
std::string no_mod_text(const std::string& name, ExprType type, TakesScore takes_score, bool takes_streamed = false);

}  // namespace heddle::device_text
