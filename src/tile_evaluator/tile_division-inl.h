// Divisions by one number a row, which is what mods do (score / cap, q_idx // width): the reciprocal is taken once.
// Recompiled for each SIMD target.
#if defined(HEDDLE_BACKEND_CPU_TILE_DIVISION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_TILE_DIVISION_INL_H_
#undef HEDDLE_BACKEND_CPU_TILE_DIVISION_INL_H_
#else
#define HEDDLE_BACKEND_CPU_TILE_DIVISION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tile_evaluator/tile_kernels.h"
#include "tile_evaluator/tile_map-inl.h"
#include "tile_evaluator/tile_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls run(rows, divisor) for the rows that share a divisor: all of them, or each alone.
template <class T, class F>
HWY_INLINE void ForEachDivisor(const TileArguments& t, F&& run) {
  const TileOperand& divisors = t.in[1];
  const auto divisor = [&divisors](int r) { return *reinterpret_cast<const T*>(divisors.base + r * divisors.row); };
  if (divisors.row == 0) return run(t, divisor(0));
  TileArguments row = t;
  row.rows = 1;
  for (int r = 0; r < t.rows; ++r) {
    run(row, divisor(r));
    row.out += t.out_row;
    row.in[0].base += t.in[0].row;
  }
}

/// A number in all lanes of an operand.
template <class T>
class Everywhere {
 public:
  explicit Everywhere(T x) { std::fill(lanes_, lanes_ + kSpreadBytes / sizeof(T), x); }
  TileOperand operand() const { return {reinterpret_cast<const std::byte*>(lanes_), 0, 0}; }

 private:
  alignas(kSpreadBytes) T lanes_[kSpreadBytes / sizeof(T)];
};

HEDDLE_TILE_BINARY(DivReal, hn::Div(x, y))

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

/// x / y from the correctly rounded reciprocal of y. The first correction brings the quotient within an ulp, the second
/// makes it the correctly rounded one (Markstein 1990): remainders are exact as long as nothing leaves the normal
/// range. Takes half of a division's time.
struct DivByReciprocal {
  static constexpr float kSmall = 0x1p-60F, kLarge = 0x1p60F;
  template <class D, class V>
  static HWY_INLINE V Call(D d, V x, V y, V reciprocal) {
    const V size = hn::Abs(x);
    const auto ordinary = hn::And(hn::Ge(size, hn::Set(d, kSmall)), hn::Le(size, hn::Set(d, kLarge)));
    if (HWY_UNLIKELY(!hn::AllTrue(d, ordinary))) return hn::Div(x, y);
    V quotient = hn::Mul(x, reciprocal);
    quotient = hn::MulAdd(hn::NegMulAdd(quotient, y, x), reciprocal, quotient);
    return hn::MulAdd(hn::NegMulAdd(quotient, y, x), reciprocal, quotient);
  }
};

#endif

template <class Real>
void DivideReal(const TileArguments& t) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(Real) == 4) {
    if (t.in[1].column == 0) {
      return ForEachDivisor<float>(t, [](const TileArguments& rows, float divisor) HWY_ATTR {
        const float size = std::fabs(divisor);
        if (size < DivByReciprocal::kSmall || size > DivByReciprocal::kLarge || std::isnan(size)) {
          TileArguments plain = rows;
          const Everywhere<float> y(divisor);
          plain.in[1] = y.operand();
          return Map<float, DivReal, float, float, float>(plain);
        }
        const Everywhere<float> y(divisor), reciprocal(1 / divisor);
        TileArguments with_reciprocal = rows;
        with_reciprocal.in[1] = y.operand();
        with_reciprocal.in[2] = reciprocal.operand();
        Map<float, DivByReciprocal, float, float, float, float>(with_reciprocal);
      });
    }
  }
#endif
  Map<Real, DivReal, Real, Real, Real>(t);
}

/// Python's %: what is left of x after whole multiples of y, moved by y to y's sign.
struct ModReal {
  template <class T>
  static T Lane(T x, T y) {
    const T remainder = std::fmod(x, y);
    if (remainder == 0) return std::copysign(T{0}, y);
    return (remainder < 0) != (y < 0) ? remainder + y : remainder;
  }

  template <class D, class V>
  static HWY_INLINE V Call(D d, V x, V y) {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128  // these have no fused multiply-add
    using T = hn::TFromD<D>;
    // A division may round up to the next whole number: then `left` is |y| less than the remainder, which moving it to
    // y's sign mends. Up to this quotient each number here is exact.
    constexpr T kLargest = sizeof(T) == 4 ? T{0x1p22} : static_cast<T>(0x1p51);
    const V quotient = hn::Trunc(hn::Div(x, y));
    const auto ordinary = hn::And(hn::Le(hn::Abs(quotient), hn::Set(d, kLargest)),
                                  hn::Lt(hn::Abs(y), hn::Set(d, std::numeric_limits<T>::infinity())));
    if (HWY_LIKELY(hn::AllTrue(d, ordinary))) {
      const V zero = hn::Zero(d);
      const V left = hn::NegMulAdd(quotient, y, x);
      const V moved = hn::IfThenElse(hn::Xor(hn::Lt(left, zero), hn::Lt(y, zero)), hn::Add(left, y), left);
      return hn::IfThenElse(hn::Eq(left, zero), hn::CopySign(zero, y), moved);
    }
#endif
    return detail::EachLane(d, x, y, [](auto a, auto b) { return Lane(a, b); });
  }
};

/// The quotient of doubles is within an ulp of the true one, which is an integer or at least 2^-31 (relatively) away
/// from the next: its floor is exact.
template <class D, class V>
HWY_INLINE V FloorDivVectors(D d, V x, V y) {
  const hn::Rebind<std::int32_t, D> di;
  const V zero = hn::Zero(di);
  const auto by_zero = hn::Eq(y, zero);
  const V divisor = hn::IfThenElse(by_zero, hn::Set(di, 1), y);
  const V quotient = hn::DemoteTo(di, hn::Floor(hn::Div(hn::PromoteTo(d, x), hn::PromoteTo(d, divisor))));
  // INT_MIN // -1 leaves i32 and wraps.
  const V wrapped = hn::IfThenElse(hn::Eq(y, hn::Set(di, -1)), hn::Sub(zero, x), quotient);
  return hn::IfThenZeroElse(by_zero, wrapped);
}
HEDDLE_TILE_BINARY(FloorDivInt, FloorDivVectors(d, x, y))
struct ModInt {
  template <class D, class V>
  static HWY_INLINE V Call(D d, V x, V y) {
    const auto by_zero = hn::Eq(y, hn::Zero(hn::Rebind<std::int32_t, D>()));
    return hn::IfThenZeroElse(by_zero, hn::Sub(x, hn::Mul(FloorDivVectors(d, x, y), y)));
  }
};

/// floor(x / y) for one y other than 0 and -1: half a unit toward the inside of the quotient's step keeps it off the
/// integers by more than rounding moves it.
template <class D, class V, class W>
HWY_INLINE V FloorDivScaled(D d, V x, W half, W reciprocal) {
  const hn::Rebind<std::int32_t, D> di;
  return hn::DemoteTo(di, hn::Floor(hn::Mul(hn::Add(hn::PromoteTo(d, x), half), reciprocal)));
}
struct FloorDivByOne {
  template <class D, class V, class W>
  static HWY_INLINE V Call(D d, V x, V /*y*/, W half, W reciprocal) {
    return FloorDivScaled(d, x, half, reciprocal);
  }
};
struct ModByOne {
  template <class D, class V, class W>
  static HWY_INLINE V Call(D d, V x, V y, W half, W reciprocal) {
    return hn::Sub(x, hn::Mul(FloorDivScaled(d, x, half, reciprocal), y));
  }
};

/// ByOne where a row has one divisor, General else (and for the divisors 0 and -1).
template <class General, class ByOne>
void DivideInt(const TileArguments& t) {
  using Int = std::int32_t;
  if (t.in[1].column != 0) return Map<double, General, Int, Int, Int>(t);
  ForEachDivisor<Int>(t, [](const TileArguments& rows, Int divisor) HWY_ATTR {
    TileArguments arguments = rows;
    const Everywhere<Int> y(divisor);
    arguments.in[1] = y.operand();
    if (divisor == 0 || divisor == -1) return Map<double, General, Int, Int, Int>(arguments);
    const Everywhere<double> half(divisor > 0 ? 0.5 : -0.5), reciprocal(1.0 / divisor);
    arguments.in[2] = half.operand();
    arguments.in[3] = reciprocal.operand();
    Map<double, ByOne, Int, Int, Int, double, double>(arguments);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
