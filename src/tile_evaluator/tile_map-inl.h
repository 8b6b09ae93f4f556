// The loop under all element-wise kernels of the tile evaluator, recompiled for each SIMD target.
#if defined(HEDDLE_BACKEND_CPU_TILE_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_TILE_MAP_INL_H_
#undef HEDDLE_BACKEND_CPU_TILE_MAP_INL_H_
#else
#define HEDDLE_BACKEND_CPU_TILE_MAP_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <utility>

#include "tile_evaluator/tile_kernels.h"

#undef HEDDLE_TILE_UNARY
#undef HEDDLE_TILE_BINARY
// One struct an operation for Map: Call(d, operands...), d being the tag of the vectors of Lane.
#define HEDDLE_TILE_UNARY(Name, expression)                  \
  struct Name {                                              \
    template <class D, class V>                              \
    static HWY_INLINE auto Call([[maybe_unused]] D d, V x) { \
      return expression;                                     \
    }                                                        \
  };
#define HEDDLE_TILE_BINARY(Name, expression)                      \
  struct Name {                                                   \
    template <class D, class V>                                   \
    static HWY_INLINE auto Call([[maybe_unused]] D d, V x, V y) { \
      return expression;                                          \
    }                                                             \
  };

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Whether the rows of an operand follow each other, so that they can be read as one long row.
template <class T>
HWY_INLINE bool IsDense(const TileOperand& operand, int columns) {
  if (operand.column == 0) return operand.row == 0;
  return operand.row == std::ptrdiff_t{columns} * std::ptrdiff_t{sizeof(T)};
}

/// out = F(in...) over all elements, as many at a time as a vector of Lane has. Rows are short (eight vectors at most):
/// the loop has little to do between them. Two vectors a step, at offsets that the compiler knows; more, or steps it
/// does not know, only cost registers.
template <class Lane, class F, class Out, class... In, std::size_t... i>
HWY_INLINE void MapOperands(const TileArguments& t, std::index_sequence<i...>) {
  const hn::ScalableTag<Lane> d;
  const std::ptrdiff_t lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
  int rows = t.rows;
  std::ptrdiff_t columns = t.columns;
  if (IsDense<Out>({t.out, t.out_row, sizeof(Out)}, t.columns) && (IsDense<In>(t.in[i], t.columns) && ...)) {
    columns *= rows;
    rows = 1;
  }
  const std::ptrdiff_t step[] = {t.in[i].column * lanes...};
  const std::ptrdiff_t next_row[] = {(t.in[i].row - t.in[i].column * columns)...};
  const std::ptrdiff_t next_out = t.out_row - columns * static_cast<std::ptrdiff_t>(sizeof(Out));
  const std::byte* in[] = {t.in[i].base...};
  std::byte* out = t.out;
  const auto one = [&](std::ptrdiff_t ahead) HWY_ATTR {
    hn::StoreU(
        F::Call(d, hn::LoadU(hn::Rebind<In, decltype(d)>(), reinterpret_cast<const In*>(in[i]) + ahead * lanes)...),
        hn::Rebind<Out, decltype(d)>(), reinterpret_cast<Out*>(out) + ahead * lanes);
  };
  for (; rows > 0; --rows) {
    std::ptrdiff_t c = columns;
    for (; c >= 2 * lanes; c -= 2 * lanes) {
      one(0);
      one(1);
      ((in[i] += 2 * step[i]), ...);
      out += 2 * lanes * static_cast<std::ptrdiff_t>(sizeof(Out));
    }
    for (; c > 0; c -= lanes) {
      one(0);
      ((in[i] += step[i]), ...);
      out += lanes * static_cast<std::ptrdiff_t>(sizeof(Out));
    }
    ((in[i] += next_row[i]), ...);
    out += next_out;
  }
}
template <class Lane, class F, class Out, class... In>
void Map(const TileArguments& t) {
  MapOperands<Lane, F, Out, In...>(t, std::index_sequence_for<In...>());
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
