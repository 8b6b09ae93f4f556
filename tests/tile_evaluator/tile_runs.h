// Runs tile programs for tests: over memory whose surroundings must not change, with captures that end at a page that
// must not be touched.
#pragma once

#include <hwy/targets.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "expr/interpret.h"
#include "expr/node.h"
#include "gtest/gtest.h"
#include "heddle/tensor.h"
#include "tile_evaluator/tile_evaluator.h"

namespace heddle::cpu::test {

/// The SIMD targets that are compiled and that this machine runs.
inline std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> all;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    all.push_back(left & -left);
  }
  return all;
}

/// While it lives, kernels come from one target.
class OnTarget {
 public:
  explicit OnTarget(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~OnTarget() { hwy::SetSupportedTargetsForTest(0); }
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;
};

/// A copy of a tensor that touches a page of no access, after its end or before its beginning.
class GuardedCopy {
 public:
  GuardedCopy(const ConstTensorView& view, bool at_end) : view_(view) {
    std::int64_t low = 0, high = 0;
    for (int axis = 0; axis < view.rank(); ++axis) {
      const std::int64_t reach = (view.shape[axis] - 1) * view.strides[axis];
      (reach < 0 ? low : high) += reach;
    }
    const auto bytes = static_cast<std::size_t>((high - low + 1) * size_of(view.dtype));
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    inside_ = (bytes + page - 1) / page * page;
    length_ = inside_ + 2 * page;
    memory_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    auto* first = static_cast<std::byte*>(memory_) + page;
    mprotect(memory_, page, PROT_NONE);
    mprotect(first + inside_, page, PROT_NONE);
    std::byte* begin = at_end ? first + inside_ - bytes : first;
    std::memcpy(begin, static_cast<const std::byte*>(view.data) + low * size_of(view.dtype), bytes);
    view_.data = begin - low * size_of(view.dtype);
  }
  ~GuardedCopy() { munmap(memory_, length_); }
  GuardedCopy(const GuardedCopy&) = delete;
  GuardedCopy& operator=(const GuardedCopy&) = delete;

  const ConstTensorView& view() const { return view_; }

 private:
  ConstTensorView view_;
  void* memory_ = nullptr;
  std::size_t inside_ = 0, length_ = 0;
};

/// Bindings whose captures are guarded copies.
class GuardedBindings {
 public:
  GuardedBindings(const Bindings& bindings, bool at_end) : bindings_(bindings) {
    for (auto& [name, view] : bindings_.captures) {
      copies_.push_back(std::make_unique<GuardedCopy>(view, at_end));
      view = copies_.back()->view();
    }
  }
  const Bindings& bindings() const { return bindings_; }

 private:
  Bindings bindings_;
  std::vector<std::unique_ptr<GuardedCopy>> copies_;
};

/// A tile's scores or results: 64-byte aligned rows with a margin that must keep its bytes.
template <class T>
class Surface {
 public:
  Surface(int rows, int columns, int extra_stride)
      : rows_(rows), columns_(columns), stride_((columns + 15) / 16 * 16 + extra_stride) {
    memory_.assign(static_cast<std::size_t>(rows * stride_) + 2 * kMargin + 64 / sizeof(T), kPoison);
    auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + kMargin);
    address = (address + 63) / 64 * 64;
    data_ = reinterpret_cast<T*>(address);
  }
  T* data() { return data_; }
  std::int64_t stride() const { return stride_; }
  T& at(int r, int c) { return data_[r * stride_ + c]; }

  /// Whether all bytes but the rows' columns, rounded up to 16, are what they were.
  ::testing::AssertionResult surroundings_unchanged() const {
    const int rounded = (columns_ + 15) / 16 * 16;
    for (const T& x : memory_) {
      const std::int64_t offset = &x - data_;
      const bool inside = offset >= 0 && offset < rows_ * stride_ && offset % stride_ < rounded;
      if (!inside && std::memcmp(&x, &kPoison, sizeof(T)) != 0) {
        return ::testing::AssertionFailure()
               << "element " << offset << " of a tile with stride " << stride_ << " was overwritten";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static constexpr T kPoison = std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : T(77777);
  static constexpr std::size_t kMargin = 64;
  int rows_, columns_;
  std::int64_t stride_;
  std::vector<T> memory_;
  T* data_;
};

/// The scalar interpreter's element for (r, c) of a tile.
inline expr::Element element_of(const TilePosition& at, int r, int c, double score) {
  expr::Element element;
  element.score = score;
  const auto set = [&element](expr::Leaf leaf, std::int64_t value) {
    element[leaf] = static_cast<std::int32_t>(value);
  };
  set(expr::Leaf::b, at.b);
  set(expr::Leaf::h, at.h);
  set(expr::Leaf::q_idx, at.sequence.q_start + at.q_first + r);
  set(expr::Leaf::kv_idx, at.sequence.kv_start + at.kv_first + c);
  set(expr::Leaf::q_token, at.sequence.q_begin + at.q_first + r);
  set(expr::Leaf::kv_token, at.sequence.kv_begin + at.kv_first + c);
  set(expr::Leaf::q_len, at.sequence.q_len);
  set(expr::Leaf::kv_len, at.sequence.kv_len);
  set(expr::Leaf::q_start, at.sequence.q_start);
  set(expr::Leaf::kv_start, at.sequence.kv_start);
  return element;
}

/// Everything but the expression that a run needs.
struct Setting {
  TilePosition at;
  std::vector<double> scores;  // rows x columns; each a float when the precision is f32
  bool in_place = false;       // the result is written over the scores
  int extra_stride = 0;
};

template <class Real>
std::vector<expr::Value> run_reals(const TileProgram& program, TileProgram::Scratch& scratch, const Setting& setting) {
  const TilePosition& at = setting.at;
  Surface<Real> scores(at.rows, at.columns, setting.extra_stride), results(at.rows, at.columns, setting.extra_stride);
  for (int r = 0; r < at.rows; ++r) {
    for (int c = 0; c < at.columns; ++c) {
      scores.at(r, c) = static_cast<Real>(setting.scores[static_cast<std::size_t>(r * at.columns + c)]);
    }
  }
  Surface<Real>& out = setting.in_place ? scores : results;
  std::vector<expr::Value> values;
  if (program.type() == ExprType::f32) {
    program.run(at, scores.data(), out.data(), out.stride(), scratch);
    for (int r = 0; r < at.rows; ++r) {
      for (int c = 0; c < at.columns; ++c) values.emplace_back(static_cast<double>(out.at(r, c)));
    }
  } else {
    std::vector<std::int32_t> integers(static_cast<std::size_t>(at.rows * out.stride()), 77777);
    program.run_i32(at, scores.data(), integers.data(), out.stride(), scratch);
    for (int r = 0; r < at.rows; ++r) {
      for (int c = 0; c < at.columns; ++c) {
        const std::int32_t x = integers[static_cast<std::size_t>(r * out.stride() + c)];
        values.emplace_back(program.type() == ExprType::i32 ? expr::Value(x) : expr::Value(x == 1));
        EXPECT_TRUE(program.type() == ExprType::i32 || x == 0 || x == 1);
      }
    }
  }
  EXPECT_TRUE(scores.surroundings_unchanged());
  EXPECT_TRUE(results.surroundings_unchanged());
  return values;
}

/// The tile evaluator's value of each element, row by row.
inline std::vector<expr::Value> run_tile(const Expr& e, expr::Precision precision, const Bindings& bindings,
                                         const Setting& setting) {
  const TileProgram program(e, precision);
  TileProgram::Scratch scratch(program, bindings);
  return precision == expr::Precision::f32 ? run_reals<float>(program, scratch, setting)
                                           : run_reals<double>(program, scratch, setting);
}

/// Whether `got` is `want` within `ulp` units in the last place of the precision, one half more for the rounding of
/// `want` itself; exactly when ulp is 0. NaN is equal to NaN, and nothing else is.
inline bool close(double got, double want, int ulp, expr::Precision precision) {
  if (got != got || want != want) return got != got && want != want;
  if (got == want) return true;
  if (ulp == 0) return false;
  const int digits = precision == expr::Precision::f32 ? 24 : 53;
  const int lowest = precision == expr::Precision::f32 ? -125 : -1021;
  const double largest = precision == expr::Precision::f32 ? static_cast<double>(std::numeric_limits<float>::max())
                                                           : std::numeric_limits<double>::max();
  // Infinity counts as the number that follows the largest one.
  const double top = std::ldexp(1.0, digits);
  const auto in_units = [&](double x, int exponent) {
    return std::isinf(x) ? std::copysign(top, x) : std::ldexp(x, digits - exponent);
  };
  int exponent = 0;
  std::frexp(std::isinf(want) ? std::copysign(largest, want) : want, &exponent);
  exponent = std::max(exponent, lowest);
  return std::fabs(in_units(got, exponent) - in_units(want, exponent)) <= ulp + 0.5;
}
inline bool close(const expr::Value& got, const expr::Value& want, int ulp, expr::Precision precision) {
  if (got.index() != want.index()) return false;
  if (const double* x = std::get_if<double>(&got)) return close(*x, std::get<double>(want), ulp, precision);
  return got == want;
}

}  // namespace heddle::cpu::test
