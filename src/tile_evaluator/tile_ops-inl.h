// Kernels of the tile evaluator: one loop over vectors for each operation and operand type, recompiled for each SIMD
// target. Reals are float or double, i32 is int32_t, booleans are int32_t lanes of 0 or -1; in a program of doubles the
// int32_t operands of mixed operations come in half vectors.
#if defined(HEDDLE_BACKEND_CPU_TILE_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_TILE_OPS_INL_H_
#undef HEDDLE_BACKEND_CPU_TILE_OPS_INL_H_
#else
#define HEDDLE_BACKEND_CPU_TILE_OPS_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "shared/philox.h"
#include "tile_evaluator/tile_division-inl.h"
#include "tile_evaluator/tile_kernels.h"
#include "tile_evaluator/tile_map-inl.h"
#include "tile_evaluator/tile_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The int32_t lanes that go with a vector of reals.
template <class D>
using Int32 = hn::Rebind<std::int32_t, D>;

template <class D, class M>
HWY_INLINE hn::Vec<Int32<D>> BooleanOf(D d, M mask) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::VecFromMask(Int32<D>(), hn::RebindMask(Int32<D>(), mask));
  } else {
    return hn::DemoteTo(Int32<D>(), hn::IfThenElseZero(mask, hn::Set(d, -1.0)));
  }
}
template <class D, class V>
HWY_INLINE hn::Mask<D> MaskOf(D d, V boolean) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::RebindMask(d, hn::MaskFromVec(boolean));
  } else {
    return hn::Ne(hn::PromoteTo(d, boolean), hn::Zero(d));
  }
}

HEDDLE_TILE_BINARY(Add, hn::Add(x, y))
HEDDLE_TILE_BINARY(Sub, hn::Sub(x, y))
HEDDLE_TILE_BINARY(Mul, hn::Mul(x, y))
HEDDLE_TILE_BINARY(FloorDivReal, Floor(d, hn::Div(x, y)))
HEDDLE_TILE_BINARY(MinReal, MinNan(d, x, y))
HEDDLE_TILE_BINARY(MaxReal, MaxNan(d, x, y))
HEDDLE_TILE_BINARY(MinInt, hn::Min(x, y))
HEDDLE_TILE_BINARY(MaxInt, hn::Max(x, y))
HEDDLE_TILE_BINARY(PowReal, Pow(d, x, y))
HEDDLE_TILE_UNARY(NegReal, hn::Neg(x))
HEDDLE_TILE_UNARY(NegInt, hn::Sub(hn::Zero(Int32<D>()), x))
HEDDLE_TILE_UNARY(AbsReal, hn::Abs(x))
HEDDLE_TILE_UNARY(AbsInt, hn::Max(x, hn::Sub(hn::Zero(Int32<D>()), x)))
HEDDLE_TILE_UNARY(FloorReal, Floor(d, x))
HEDDLE_TILE_UNARY(CeilReal, Ceil(d, x))
HEDDLE_TILE_UNARY(RoundReal, RoundEven(d, x))
HEDDLE_TILE_UNARY(TruncReal, Trunc(d, x))
HEDDLE_TILE_UNARY(SignReal, Sign(d, x))
HEDDLE_TILE_UNARY(SignInt, hn::Max(hn::Min(x, hn::Set(Int32<D>(), 1)), hn::Set(Int32<D>(), -1)))
HEDDLE_TILE_UNARY(SqrtReal, hn::Sqrt(x))
HEDDLE_TILE_UNARY(RsqrtReal, Rsqrt(d, x))
HEDDLE_TILE_UNARY(ExpReal, Exp(d, x))
HEDDLE_TILE_UNARY(Exp2Real, Exp2(d, x))
HEDDLE_TILE_UNARY(TanhReal, Tanh(d, x))
HEDDLE_TILE_UNARY(SigmoidReal, Sigmoid(d, x))
#define HEDDLE_SLEEF(Name, name, accuracy) HEDDLE_TILE_UNARY(Name##Real, Name(d, x))
#include "tile_evaluator/sleef_functions.def"

HEDDLE_TILE_BINARY(LessReal, BooleanOf(d, hn::Lt(x, y)))
HEDDLE_TILE_BINARY(LessEqualReal, BooleanOf(d, hn::Le(x, y)))
HEDDLE_TILE_BINARY(EqualReal, BooleanOf(d, hn::Eq(x, y)))
HEDDLE_TILE_BINARY(UnequalReal, hn::Not(BooleanOf(d, hn::Eq(x, y))))  // hn::Ne is false with NaN on x86
HEDDLE_TILE_UNARY(IsNanReal, hn::Not(BooleanOf(d, hn::Eq(x, x))))
HEDDLE_TILE_UNARY(IsInfReal, BooleanOf(d, hn::Eq(hn::Abs(x), hn::Inf(d))))
HEDDLE_TILE_BINARY(LessInt, hn::VecFromMask(Int32<D>(), hn::Lt(x, y)))
HEDDLE_TILE_BINARY(LessEqualInt, hn::VecFromMask(Int32<D>(), hn::Not(hn::Lt(y, x))))
HEDDLE_TILE_BINARY(EqualInt, hn::VecFromMask(Int32<D>(), hn::Eq(x, y)))
HEDDLE_TILE_BINARY(UnequalInt, hn::VecFromMask(Int32<D>(), hn::Ne(x, y)))

HEDDLE_TILE_BINARY(And, hn::And(x, y))
HEDDLE_TILE_BINARY(Or, hn::Or(x, y))
HEDDLE_TILE_BINARY(Xor, hn::Xor(x, y))
HEDDLE_TILE_UNARY(NotBits, hn::Not(x))
HEDDLE_TILE_UNARY(Same, x)
HEDDLE_TILE_UNARY(BooleanToInt, hn::And(x, hn::Set(Int32<D>(), 1)))

/// Counts outside 0 to 31: 0, and the sign.
struct ShiftLeftEach {
  template <class D, class V>
  static HWY_INLINE V Call(D /*d*/, V x, V y) {
    const auto last = hn::Set(Int32<D>(), 31);
    const V count = hn::And(y, last);
    return hn::IfThenElseZero(hn::Eq(count, y), hn::Shl(x, count));
  }
};
struct ShiftRightEach {
  template <class D, class V>
  static HWY_INLINE V Call(D /*d*/, V x, V y) {
    const hn::RebindToUnsigned<Int32<D>> du;
    const auto count = hn::Min(hn::BitCast(du, y), hn::Set(du, 31U));
    return hn::Shr(x, hn::BitCast(Int32<D>(), count));
  }
};

/// y holds the same count in every lane.
struct ShiftRightInt {
  template <class D, class V>
  static HWY_INLINE V Call(D /*d*/, V x, V y) {
    return hn::ShiftRightSame(x, hn::GetLane(y));
  }
};

struct IntToReal {
  template <class D, class V>
  static HWY_INLINE auto Call(D d, V x) {
    if constexpr (sizeof(hn::TFromD<D>) == 4) {
      return hn::ConvertTo(d, x);
    } else {
      return hn::PromoteTo(d, x);
    }
  }
};
struct BooleanToReal {
  template <class D, class V>
  static HWY_INLINE auto Call(D d, V x) {
    return hn::IfThenElseZero(MaskOf(d, x), hn::Set(d, hn::TFromD<D>(1)));
  }
};
struct RealToInt {
  template <class D, class V>
  static HWY_INLINE auto Call(D d, V x) {
    const Int32<D> di;
    const V number = hn::IfThenElseZero(hn::Eq(x, x), x);
    if constexpr (sizeof(hn::TFromD<D>) == 4) {
      return hn::ConvertTo(di, number);
    } else {
      const V inside = hn::Max(hn::Min(number, hn::Set(d, 2147483647.0)), hn::Set(d, -2147483648.0));
      return hn::DemoteTo(di, inside);
    }
  }
};

struct WhereReal {
  template <class D, class M, class V>
  static HWY_INLINE V Call(D d, M condition, V yes, V no) {
    return hn::IfThenElse(MaskOf(d, condition), yes, no);
  }
};
struct WhereInt {
  template <class D, class V>
  static HWY_INLINE V Call(D /*d*/, V condition, V yes, V no) {
    return hn::IfThenElse(hn::MaskFromVec(condition), yes, no);
  }
};
struct MulAddReal {
  template <class D, class V>
  static HWY_INLINE V Call(D /*d*/, V x, V y, V z) {
    return hn::Add(hn::Mul(x, y), z);
  }
};

// The mask over reals of a comparison of reals, or of int32_t.
template <class D, class V>
HWY_INLINE hn::Mask<D> CompareMask(D d, V x, V y, auto compare) {
  if constexpr (std::is_same_v<V, hn::Vec<D>>) {
    return compare(x, y);
  } else if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::RebindMask(d, compare(x, y));
  } else {
    return compare(hn::PromoteTo(d, x), hn::PromoteTo(d, y));
  }
}
#define HEDDLE_SELECT(Name, expression)                                                                         \
  struct Name {                                                                                                 \
    template <class D, class X, class V>                                                                        \
    static HWY_INLINE V Call(D d, X x, X y, V yes, V no) {                                                      \
      return hn::IfThenElse(CompareMask(d, x, y, [](auto a, auto b) HWY_ATTR { return expression; }), yes, no); \
    }                                                                                                           \
  };
HEDDLE_SELECT(SelectLess, hn::Lt(a, b))
HEDDLE_SELECT(SelectLessEqual, hn::Not(hn::Lt(b, a)))
HEDDLE_SELECT(SelectLessEqualReal, hn::Le(a, b))
HEDDLE_SELECT(SelectEqual, hn::Eq(a, b))
#undef HEDDLE_SELECT

/// Five different int32_t arguments an element.
struct DrawEach {
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> Call(D d, V seed, V b, V h, V q, V kv) {
    constexpr std::size_t kLanes = hn::MaxLanes(D());
    const Int32<D> di;
    HWY_ALIGN std::int32_t words[5][HWY_MAX(kLanes, 4)];
    HWY_ALIGN hn::TFromD<D> draws[kLanes];
    std::size_t next = 0;
    for (const V& operand : {seed, b, h, q, kv}) hn::StoreU(operand, di, words[next++]);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
      const auto word = [&words, i](int k) { return static_cast<unsigned>(words[k][i]); };
      draws[i] = shared::random_uniform(word(0), word(1), word(2), word(3), word(4));
    }
    return hn::Load(d, draws);
  }
};

template <class T>
void Spread(const std::byte* values, int count, std::byte* out) {
  const hn::ScalableTag<T> d;
  constexpr std::size_t kElements = kSpreadBytes / sizeof(T);
  for (int i = 0; i < count; ++i, out += kSpreadBytes) {
    const auto value = hn::Set(d, reinterpret_cast<const T*>(values)[i]);
    for (std::size_t k = 0; k < kElements; k += hn::Lanes(d)) hn::StoreU(value, d, reinterpret_cast<T*>(out) + k);
  }
}

inline void CountFrom(std::int32_t* out, std::int32_t first, std::int32_t step, int count) {
  const hn::ScalableTag<std::int32_t> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto stride = hn::Set(d, step * lanes);
  auto values = hn::Add(hn::Set(d, first), hn::Mul(hn::Iota(d, 0), hn::Set(d, step)));
  for (int i = 0; i < count; i += lanes) {
    hn::StoreU(values, d, out + i);
    values = hn::Add(values, stride);
  }
}

inline std::int64_t CountTrue(const TileOperand& values, int rows, int columns) {
  const hn::ScalableTag<std::int32_t> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  std::int64_t count = 0;
  for (int r = 0; r < rows; ++r) {
    const auto* row = reinterpret_cast<const std::int32_t*>(values.base + r * values.row);
    auto sum = hn::Zero(d);
    int c = 0;
    for (; c + lanes <= columns; c += lanes) sum = hn::Sub(sum, hn::LoadU(d, row + c));
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(columns - c));
    if (c < columns) sum = hn::Sub(sum, hn::IfThenElseZero(mask, hn::LoadU(d, row + c)));
    count += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  return count;
}

/// A row for each operation of ops.def, with a kernel for each form; a row that is missing fails to compile.
template <class Real>
struct OpRows {
  using Row = std::array<TileKernel, 3>;  // f32, i32, boolean
  using Int = std::int32_t;

  template <class F>
  static constexpr TileKernel kReal1 = Map<Real, F, Real, Real>;
  template <class F>
  static constexpr TileKernel kReal2 = Map<Real, F, Real, Real, Real>;
  template <class F>
  static constexpr TileKernel kRealTest = Map<Real, F, Int, Real, Real>;
  template <class F>
  static constexpr TileKernel kInt1 = Map<float, F, Int, Int>;
  template <class F>
  static constexpr TileKernel kInt2 = Map<float, F, Int, Int, Int>;

  // Known by their payload, or by an instruction of their own.
  static constexpr Row constant{}, leaf{}, param{}, read{}, at{};
  // Lowered to lt and le.
  static constexpr Row gt{}, ge{};

  static constexpr Row add = {kReal2<Add>, kInt2<Add>};
  static constexpr Row sub = {kReal2<Sub>, kInt2<Sub>};
  static constexpr Row mul = {kReal2<Mul>, kInt2<Mul>};
  static constexpr Row div = {DivideReal<Real>};
  static constexpr Row floor_div = {kReal2<FloorDivReal>, DivideInt<FloorDivInt, FloorDivByOne>};
  static constexpr Row mod = {kReal2<ModReal>, DivideInt<ModInt, ModByOne>};
  static constexpr Row neg = {kReal1<NegReal>, kInt1<NegInt>};
  static constexpr Row abs = {kReal1<AbsReal>, kInt1<AbsInt>};
  static constexpr Row min = {kReal2<MinReal>, kInt2<MinInt>};
  static constexpr Row max = {kReal2<MaxReal>, kInt2<MaxInt>};

  static constexpr Row sign = {kReal1<SignReal>, kInt1<SignInt>};

  static constexpr Row bit_and = {nullptr, kInt2<And>};
  static constexpr Row bit_or = {nullptr, kInt2<Or>};
  static constexpr Row bit_xor = {nullptr, kInt2<Xor>};
  static constexpr Row bit_not = {nullptr, kInt1<NotBits>};
  static constexpr Row shift_left = {nullptr, kInt2<ShiftLeftEach>};
  static constexpr Row shift_right = {nullptr, kInt2<ShiftRightEach>};

  static constexpr Row isnan = {Map<Real, IsNanReal, Int, Real>};
  static constexpr Row isinf = {Map<Real, IsInfReal, Int, Real>};

  static constexpr Row lt = {kRealTest<LessReal>, kInt2<LessInt>};
  static constexpr Row le = {kRealTest<LessEqualReal>, kInt2<LessEqualInt>};
  static constexpr Row eq = {kRealTest<EqualReal>, kInt2<EqualInt>};
  static constexpr Row ne = {kRealTest<UnequalReal>, kInt2<UnequalInt>};

  static constexpr Row logical_and = {nullptr, nullptr, kInt2<And>};
  static constexpr Row logical_or = {nullptr, nullptr, kInt2<Or>};
  static constexpr Row logical_xor = {nullptr, nullptr, kInt2<Xor>};
  static constexpr Row logical_not = {nullptr, nullptr, kInt1<NotBits>};
  static constexpr TileKernel kWhereInt = Map<float, WhereInt, Int, Int, Int, Int>;
  static constexpr Row where = {Map<Real, WhereReal, Real, Int, Real, Real>, kWhereInt, kWhereInt};

  static constexpr Row to_f32 = {nullptr, Map<Real, IntToReal, Real, Int>, Map<Real, BooleanToReal, Real, Int>};
  static constexpr Row to_i32 = {Map<Real, RealToInt, Int, Real>, nullptr, kInt1<BooleanToInt>};

  static constexpr Row floor = {kReal1<FloorReal>};
  static constexpr Row ceil = {kReal1<CeilReal>};
  static constexpr Row round = {kReal1<RoundReal>};
  static constexpr Row trunc = {kReal1<TruncReal>};
  static constexpr Row sqrt = {kReal1<SqrtReal>};
  static constexpr Row rsqrt = {kReal1<RsqrtReal>};
  static constexpr Row exp = {kReal1<ExpReal>};
  static constexpr Row exp2 = {kReal1<Exp2Real>};
  static constexpr Row tanh = {kReal1<TanhReal>};
  static constexpr Row sigmoid = {kReal1<SigmoidReal>};
#define HEDDLE_SLEEF(Name, name, accuracy) static constexpr Row name = {kReal1<Name##Real>};
#include "tile_evaluator/sleef_functions.def"
  static constexpr Row pow = {kReal2<PowReal>};

  static constexpr Row random_uniform = {nullptr, Map<Real, DrawEach, Real, Int, Int, Int, Int, Int>};

  static constexpr std::array<Row, expr::kOpCount> kTable = {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) name,
#include "expr/ops.def"
  };
};

/// Everything but reads and draws, which have files of their own.
template <class Real>
TileKernels OpKernels() {
  using Rows = OpRows<Real>;
  using Int = std::int32_t;
  const TileKernel copy_int = Rows::template kInt1<Same>;
  TileKernels kernels;
  kernels.op = Rows::kTable;
  kernels.copy = {Rows::template kReal1<Same>, copy_int, copy_int};
  kernels.select_lt = {Map<Real, SelectLess, Real, Real, Real, Real, Real>,
                       Map<Real, SelectLess, Real, Int, Int, Real, Real>};
  kernels.select_le = {Map<Real, SelectLessEqualReal, Real, Real, Real, Real, Real>,
                       Map<Real, SelectLessEqual, Real, Int, Int, Real, Real>};
  kernels.select_eq = {Map<Real, SelectEqual, Real, Real, Real, Real, Real>,
                       Map<Real, SelectEqual, Real, Int, Int, Real, Real>};
  kernels.mul_add = Map<Real, MulAddReal, Real, Real, Real, Real>;
  kernels.shift_right = Rows::template kInt2<ShiftRightInt>;
  kernels.bit_and = Rows::template kInt2<And>;
  kernels.spread = {Spread<Real>, Spread<Int>, Spread<Int>};
  kernels.count_from = CountFrom;
  kernels.count_true = CountTrue;
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
