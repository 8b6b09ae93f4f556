// Products of rows of bf16 and bricks (bricks-inl.h), by AMX: of up to 32 rows. They differ in what stays in registers,
// and in what may be done between their steps. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_PRODUCTS_INL_H_
#undef HEDDLE_CPU_BRICK_PRODUCTS_INL_H_
#else
#define HEDDLE_CPU_BRICK_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "families/cpu/bricks-inl.h"
#include "families/cpu/matrix_registers-inl.h"
#include "families/cpu/target_data.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// c = a b, or c += a b. Strides are bytes.
struct BrickProduct {
  const void* a;  // rows of bf16, whole groups of 16
  std::int64_t a_stride;
  const std::byte* b;
  std::int64_t b_column, b_step;  // from a brick to its neighbour
  float* c;
  std::int64_t c_stride;
  std::int64_t columns, steps;  // in bricks
  bool add;
  std::int64_t a_step = 64;  // from 32 steps of a's rows to the next
};

/// kRows x 16 rows. A store right behind its products waits for them. So two sets of accumulators alternate, and each
/// is stored among the products of the next.
template <class Registers, int kRows>
class BrickMultiply {
 public:
  HEDDLE_AMX HWY_INLINE BrickMultiply(Registers& registers, const BrickProduct& product)
      : registers_(registers), p_(product) {}

  /// Calls between() behind each step of each column.
  template <class Between>
  HEDDLE_AMX HWY_INLINE void run(const Between& between) {
    std::int64_t column = 0;
    for (; column + 2 <= p_.columns; column += 2) {
      add_up<0>(column, column > 0, between);
      add_up<2>(column + 1, true, between);
    }
    if (column < p_.columns) {
      add_up<0>(column, column > 0, between);
      store<0>(column);
    } else {
      store<2>(column - 1);
    }
  }

 private:
  template <int kFirst, class Between>
  HEDDLE_AMX HWY_INLINE void add_up(std::int64_t column, bool store_other, const Between& between) {
    float* c = p_.c + column * kBrickColumns;
    if (p_.add) {
      registers_.template load<kFirst>(c, p_.c_stride);
      if constexpr (kRows == 2) registers_.template load<kFirst + 1>(below(c), p_.c_stride);
    } else {
      registers_.template zero<kFirst>();
      if constexpr (kRows == 2) registers_.template zero<kFirst + 1>();
    }
    const auto* a = static_cast<const std::byte*>(p_.a);
    const std::byte* b = p_.b + column * p_.b_column;
    step<kFirst, 6>(a, b);
    if (store_other) store<2 - kFirst>(column - 1);
    between();
    std::int64_t done = 1;
    for (; done + 2 <= p_.steps; done += 2) {
      step<kFirst, 7>(a + done * p_.a_step, b + done * p_.b_step);
      between();
      step<kFirst, 6>(a + (done + 1) * p_.a_step, b + (done + 1) * p_.b_step);
      between();
    }
    if (done < p_.steps) {
      step<kFirst, 7>(a + done * p_.a_step, b + done * p_.b_step);
      between();
    }
  }

  template <int kFirst, int kRight>
  HEDDLE_AMX HWY_INLINE void step(const std::byte* a, const std::byte* b) {
    registers_.template load_once<kRight>(b, 64);
    registers_.template load<4>(a, p_.a_stride);
    registers_.template multiply<kFirst, 4, kRight>();
    if constexpr (kRows == 2) {
      registers_.template load<5>(a + 16 * p_.a_stride, p_.a_stride);
      registers_.template multiply<kFirst + 1, 5, kRight>();
    }
  }

  template <int kFirst>
  HEDDLE_AMX HWY_INLINE void store(std::int64_t column) {
    float* c = p_.c + column * kBrickColumns;
    registers_.template store<kFirst>(c, p_.c_stride);
    if constexpr (kRows == 2) registers_.template store<kFirst + 1>(below(c), p_.c_stride);
  }
  float* below(float* c) const { return c + 16 * p_.c_stride / static_cast<std::int64_t>(sizeof(float)); }

  Registers& registers_;
  const BrickProduct& p_;
};

/// 32 rows and two columns at a time: fewer bricks and rows to load than BrickMultiply has, but stores wait for
/// products. For many steps, with other work between.
template <class Registers, bool kAdd = false>
class SquareMultiply {
 public:
  HEDDLE_AMX HWY_INLINE SquareMultiply(Registers& registers, const BrickProduct& product)
      : registers_(registers), p_(product) {}

  /// An even number of columns. Calls between() twice behind each step of two columns.
  template <class Between>
  HEDDLE_AMX HWY_INLINE void run(const Between& between) {
    for (std::int64_t column = 0; column < p_.columns; column += 2) {
      float* c = p_.c + column * kBrickColumns;
      float* below = c + 16 * p_.c_stride / static_cast<std::int64_t>(sizeof(float));
      start<0>(c);
      start<1>(below);
      start<2>(c + kBrickColumns);
      start<3>(below + kBrickColumns);
      const auto* a = static_cast<const std::byte*>(p_.a);
      const std::byte* b = p_.b + column * p_.b_column;
      for (std::int64_t step = 0; step < p_.steps; ++step, a += p_.a_step, b += p_.b_step) {
        registers_.template load_once<6>(b, 64);
        registers_.template load<4>(a, p_.a_stride);
        registers_.template multiply<0, 4, 6>();
        registers_.template load<5>(a + 16 * p_.a_stride, p_.a_stride);
        registers_.template multiply<1, 5, 6>();
        between();
        registers_.template load_once<7>(b + p_.b_column, 64);
        registers_.template multiply<2, 4, 7>();
        registers_.template multiply<3, 5, 7>();
        between();
      }
      registers_.template store<0>(c, p_.c_stride);
      registers_.template store<1>(below, p_.c_stride);
      registers_.template store<2>(c + kBrickColumns, p_.c_stride);
      registers_.template store<3>(below + kBrickColumns, p_.c_stride);
    }
  }

 private:
  template <int kAccumulator>
  HEDDLE_AMX HWY_INLINE void start(const float* from) {
    if constexpr (kAdd) {
      registers_.template load<kAccumulator>(from, p_.c_stride);
    } else {
      registers_.template zero<kAccumulator>();
    }
  }

  Registers& registers_;
  const BrickProduct& p_;
};

/// 32 rows and kSteps steps, one or two. The left operand stays in registers, which leaves three accumulators to take
/// turns: a third less to load and store than BrickMultiply has.
template <class Registers, int kSteps, bool kAdd>
class ResidentMultiply {
 public:
  HEDDLE_AMX HWY_INLINE ResidentMultiply(Registers& registers, const BrickProduct& product)
      : registers_(registers), p_(product) {}

  /// Calls between() behind each step of each column.
  template <class Between>
  HEDDLE_AMX HWY_INLINE void run(const Between& between) {
    const auto* a = static_cast<const std::byte*>(p_.a);
    registers_.template load<3>(a, p_.a_stride);
    registers_.template load<4>(a + 16 * p_.a_stride, p_.a_stride);
    if constexpr (kSteps == 2) {
      registers_.template load<5>(a + p_.a_step, p_.a_stride);
      registers_.template load<6>(a + p_.a_step + 16 * p_.a_stride, p_.a_stride);
    }
    std::int64_t column = 0;
    for (; column + 3 <= p_.columns; column += 3) {
      add_up<0, 1>(column, between);
      add_up<2, 0>(column + 1, between);
      add_up<1, 2>(column + 2, between);
    }
    if (column == p_.columns) {
      store<1>(column - 1, 0);
      store<2>(column - 1, 1);
      return;
    }
    add_up<0, 1>(column, between);
    if (column + 1 == p_.columns) {
      store<0>(column, 0);
      store<1>(column, 1);
    } else {
      add_up<2, 0>(column + 1, between);
      store<2>(column + 1, 0);
      store<0>(column + 1, 1);
    }
  }

 private:
  /// The column before is in accumulators kSecond and the third one.
  template <int kFirst, int kSecond, class Between>
  HEDDLE_AMX HWY_INLINE void add_up(std::int64_t column, const Between& between) {
    const std::byte* b = p_.b + column * p_.b_column;
    registers_.template load_once<7>(b, 64);
    start<kFirst>(column, 0);
    registers_.template multiply<kFirst, 3, 7>();
    if (column > 0) store<kSecond>(column - 1, 0);
    start<kSecond>(column, 1);
    registers_.template multiply<kSecond, 4, 7>();
    between();
    if constexpr (kSteps == 2) {
      registers_.template load_once<7>(b + p_.b_step, 64);
      registers_.template multiply<kFirst, 5, 7>();
      registers_.template multiply<kSecond, 6, 7>();
    }
    if (column > 0) store<3 - kFirst - kSecond>(column - 1, 1);
    if constexpr (kSteps == 2) between();
  }
  template <int kAccumulator>
  HEDDLE_AMX HWY_INLINE void start(std::int64_t column, std::int64_t group) {
    if constexpr (kAdd) {
      registers_.template load<kAccumulator>(at(column, group), p_.c_stride);
    } else {
      registers_.template zero<kAccumulator>();
    }
  }
  template <int kAccumulator>
  HEDDLE_AMX HWY_INLINE void store(std::int64_t column, std::int64_t group) {
    registers_.template store<kAccumulator>(at(column, group), p_.c_stride);
  }
  /// Rows 16 `group` and on.
  float* at(std::int64_t column, std::int64_t group) const {
    return p_.c + column * kBrickColumns + group * 16 * p_.c_stride / static_cast<std::int64_t>(sizeof(float));
  }

  Registers& registers_;
  const BrickProduct& p_;
};

/// The product of `rows` rows, up to 32, by whichever of these has the fewest loads. Calls between() once for each step
/// of each column.
template <class Registers, class Between>
HEDDLE_AMX HWY_INLINE void MultiplyBetween(Registers& registers, const BrickProduct& product, std::int64_t rows,
                                           const Between& between) {
  if (rows <= 16) return BrickMultiply<Registers, 1>(registers, product).run(between);
  if (!product.add && product.steps == 1) return ResidentMultiply<Registers, 1, false>(registers, product).run(between);
  if (!product.add && product.steps == 2) return ResidentMultiply<Registers, 2, false>(registers, product).run(between);
  BrickProduct even = product, last = product;
  even.columns = product.columns / 2 * 2;
  if (product.add) {
    SquareMultiply<Registers, true>(registers, even).run(between);
  } else {
    SquareMultiply<Registers, false>(registers, even).run(between);
  }
  if (even.columns == product.columns) return;
  last.columns = 1;
  last.b += even.columns * product.b_column;
  last.c += even.columns * kBrickColumns;
  BrickMultiply<Registers, 2>(registers, last).run(between);
}

/// The product of `rows` rows, up to 32.
template <class Registers>
HEDDLE_AMX HWY_NOINLINE void MultiplyBricks(Registers& registers, const BrickProduct& product, std::int64_t rows) {
  if (product.columns == 0) return;
  const auto nothing = [] {};
  if (rows > 16) {
    BrickMultiply<Registers, 2>(registers, product).run(nothing);
  } else {
    BrickMultiply<Registers, 1>(registers, product).run(nothing);
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
