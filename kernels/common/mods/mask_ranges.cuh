// Ranges of a mask's values while its indices range over a block. Integers and booleans are as in shared/intervals.h.
// The ends of a float range are rounded as the operation rounds. Elements of captures have the ranges of their zone
// maps. Every other value can be anything: the block then stays open, and is evaluated.
#pragma once

#include "mods/captures.cuh"
#include "mods/operations.cuh"
#include "shared/bit_intervals.h"
#include "shared/intervals.h"
#include "shared/mask_rows.h"

namespace heddle::ranges {

using shared::hull;
using shared::Interval;
using shared::point;
using shared::Relation;
using shared::Truth;
using shared::where;
using shared::ZoneCell;

/// The numbers from lo to hi, and NaN when nan. Nothing but NaN: lo is +inf and hi -inf.
struct Real {
  float lo, hi;
  bool nan;
};

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7F800000U); }
__device__ __forceinline__ float less(float x, float y) { return y < x ? y : x; }
__device__ __forceinline__ float more(float x, float y) { return x < y ? y : x; }
__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool only_nan(Real x) { return x.lo > x.hi; }
__device__ __forceinline__ bool has_zero(Real x) { return x.lo <= 0 && x.hi >= 0; }
__device__ __forceinline__ bool has_infinity(Real x) { return x.lo == -infinity() || x.hi == infinity(); }
__device__ __forceinline__ Real nan_only() { return {infinity(), -infinity(), true}; }
__device__ __forceinline__ Real any_real() { return {-infinity(), infinity(), true}; }

__device__ __forceinline__ Real point(float x) { return is_nan(x) ? nan_only() : Real{x, x, false}; }
__device__ __forceinline__ Real hull(Real x, Real y) { return {less(x.lo, y.lo), more(x.hi, y.hi), x.nan || y.nan}; }

// ---- operations of floats

__device__ __forceinline__ Real add(Real x, Real y) {
  const bool nan =
      x.nan || y.nan || (x.lo == -infinity() && y.hi == infinity()) || (x.hi == infinity() && y.lo == -infinity());
  const float lo = ops::add(x.lo, y.lo), hi = ops::add(x.hi, y.hi);
  // Only opposite infinities make an end NaN; one side is then that infinity alone, and so is every sum.
  return {is_nan(lo) ? infinity() : lo, is_nan(hi) ? -infinity() : hi, nan};
}
__device__ __forceinline__ Real neg(Real x) { return {-x.hi, -x.lo, x.nan}; }
__device__ __forceinline__ Real sub(Real x, Real y) { return add(x, neg(y)); }
__device__ __forceinline__ Real sub_same(Real x) { return {0, 0, x.nan || has_infinity(x) || only_nan(x)}; }
__device__ __forceinline__ Real abs(Real x) {
  if (has_zero(x)) return {0, more(-x.lo, x.hi), x.nan};
  return x.hi < 0 ? neg(x) : x;
}

/// The least and largest of four corners; those that are NaN do not count.
__device__ __forceinline__ Real over_corners(float a, float b, float c, float d, bool nan) {
  Real result = {infinity(), -infinity(), nan};
  const float corners[] = {a, b, c, d};
  for (const float value : corners) {
    if (!is_nan(value)) result = {less(result.lo, value), more(result.hi, value), nan};
  }
  return result;
}
/// A product of ends. 0 * infinity counts as 0, because 0 * large is among the products.
__device__ __forceinline__ float corner_product(float x, float y) {
  const float product = ops::mul(x, y);
  return is_nan(product) ? 0.0F : product;
}
__device__ __forceinline__ Real mul(Real x, Real y) {
  const bool nan = x.nan || y.nan || (has_zero(x) && has_infinity(y)) || (has_infinity(x) && has_zero(y));
  return over_corners(corner_product(x.lo, y.lo), corner_product(x.lo, y.hi), corner_product(x.hi, y.lo),
                      corner_product(x.hi, y.hi), nan);
}
__device__ __forceinline__ Real square(Real x) {
  const Real magnitude = abs(x);
  return {ops::mul(magnitude.lo, magnitude.lo), ops::mul(magnitude.hi, magnitude.hi), x.nan};
}
__device__ __forceinline__ Real div(Real x, Real y) {
  const bool nan = x.nan || y.nan || (has_zero(x) && has_zero(y)) || (has_infinity(x) && has_infinity(y));
  if (has_zero(y)) return {-infinity(), infinity(), nan};
  return over_corners(ops::div(x.lo, y.lo), ops::div(x.lo, y.hi), ops::div(x.hi, y.lo), ops::div(x.hi, y.hi), nan);
}
__device__ __forceinline__ Real floor(Real x) { return {ops::floor(x.lo), ops::floor(x.hi), x.nan}; }
__device__ __forceinline__ Real ceil(Real x) { return {ops::ceil(x.lo), ops::ceil(x.hi), x.nan}; }
__device__ __forceinline__ Real round(Real x) { return {ops::round(x.lo), ops::round(x.hi), x.nan}; }
__device__ __forceinline__ Real trunc(Real x) { return {ops::trunc(x.lo), ops::trunc(x.hi), x.nan}; }
__device__ __forceinline__ Real sign(Real x) { return only_nan(x) ? x : Real{ops::sign(x.lo), ops::sign(x.hi), x.nan}; }
__device__ __forceinline__ Real floor_div(Real x, Real y) { return floor(div(x, y)); }
__device__ __forceinline__ Real mod(Real, Real) { return any_real(); }
__device__ __forceinline__ Real min(Real x, Real y) {
  if (only_nan(x) || only_nan(y)) return nan_only();
  return {less(x.lo, y.lo), less(x.hi, y.hi), x.nan || y.nan};
}
__device__ __forceinline__ Real max(Real x, Real y) {
  if (only_nan(x) || only_nan(y)) return nan_only();
  return {more(x.lo, y.lo), more(x.hi, y.hi), x.nan || y.nan};
}
__device__ __forceinline__ Real sqrt(Real x) {
  if (x.hi < 0) return nan_only();
  return {ops::sqrt(more(x.lo, 0)), ops::sqrt(x.hi), x.nan || x.lo < 0};
}
__device__ __forceinline__ Truth compare(Relation relation, Real x, Real y, bool same) {
  return shared::compare(relation, x, y, same, x.nan || y.nan, !only_nan(x) && !only_nan(y));
}

__device__ __forceinline__ Truth isnan(Real x) { return shared::holds_nan(x); }
__device__ __forceinline__ Truth isinf(Real x) { return shared::holds_infinity(x, infinity()); }

__device__ __forceinline__ Real to_f32(Interval x) {
  return {ops::to_f32(static_cast<int>(x.lo)), ops::to_f32(static_cast<int>(x.hi)), false};
}
__device__ __forceinline__ Real to_f32(Truth x) { return to_f32(shared::to_i32(x)); }
__device__ __forceinline__ Interval to_i32(Truth x) { return shared::to_i32(x); }
__device__ __forceinline__ Interval to_i32(Real x) {
  if (only_nan(x)) return {0, 0};
  const Interval whole = {ops::to_i32(x.lo), ops::to_i32(x.hi)};
  return x.nan ? hull(whole, Interval{0, 0}) : whole;
}
__device__ __forceinline__ Real random_uniform() { return {0, 1 - 0x1p-15F, false}; }

// ---- elements of captures

__device__ __forceinline__ ZoneCell to_cell(Interval x) { return {static_cast<int>(x.lo), static_cast<int>(x.hi)}; }
__device__ __forceinline__ ZoneCell to_cell(Truth x) { return to_cell(shared::to_i32(x)); }
__device__ __forceinline__ ZoneCell to_cell(Real x) {
  const float nan = __uint_as_float(0x7FC00000U), lo = x.nan ? nan : x.lo, hi = x.nan ? nan : x.hi;
  return {static_cast<int>(__float_as_uint(lo)), static_cast<int>(__float_as_uint(hi))};
}

/// The range that a cell says, and a range of all values: of the type of `like`.
__device__ __forceinline__ Interval of_cell(Interval, ZoneCell cell) { return {cell.lo, cell.hi}; }
__device__ __forceinline__ Truth of_cell(Truth, ZoneCell cell) { return {cell.lo == 0, cell.hi != 0}; }
__device__ __forceinline__ Real of_cell(Real, ZoneCell cell) {
  const float lo = __uint_as_float(static_cast<unsigned>(cell.lo)),
              hi = __uint_as_float(static_cast<unsigned>(cell.hi));
  return is_nan(lo) ? any_real() : Real{lo, hi, false};
}
__device__ __forceinline__ Interval any_like(Interval) { return shared::any_i32(); }
__device__ __forceinline__ Truth any_like(Truth) { return {true, true}; }
__device__ __forceinline__ Real any_like(Real) { return any_real(); }

/// The range of one element.
template <class Storage, int kRank>
__device__ __forceinline__ auto element(const ops::ModCapture& capture, long long offset) {
  return point(ops::load<Storage, kRank>(capture, offset));
}

inline constexpr int kScanned = 16;  // elements that are looked at one by one: more than a block of a few

/// The elements whose index along each axis lies in `index`. Along axis kZone they may be many: `cells` is the tree of
/// that axis. If there are many along another axis, they can be anything.
template <class Storage, int kZone, int kRank>
__device__ __forceinline__ auto read(const ops::ModCapture& capture, const ZoneCell* cells,
                                     const Interval (&index)[kRank]) {
  using Range = decltype(element<Storage, kRank>(capture, 0));
  int lo = 0, hi = 0;
  long long slice = 0, offset = 0;
  for (int axis = 0; axis < kRank; ++axis) {
    const int last = capture.extent[axis] - 1;
    if (last < 0) return any_like(Range{});
    const int first = static_cast<int>(shared::larger(0, shared::smaller(index[axis].lo, last)));
    const int end = static_cast<int>(shared::larger(0, shared::smaller(index[axis].hi, last)));
    if (axis == kZone) {
      lo = first;
      hi = end;
      continue;
    }
    if (first != end) return any_like(Range{});
    slice = slice * capture.extent[axis] + first;
    offset += ops::offset(capture, axis, first);
  }
  if constexpr (kZone < 0) return element<Storage, kRank>(capture, offset);
  constexpr int kAxis = kZone < 0 ? 0 : kZone;
  Range found = element<Storage, kRank>(capture, offset + ops::offset(capture, kAxis, lo));
  if (hi - lo < kScanned) {
    for (int i = lo + 1; i <= hi; ++i) {
      found = hull(found, element<Storage, kRank>(capture, offset + ops::offset(capture, kAxis, i)));
    }
    return found;
  }
  // Up the tree: a right brother at the left end, or a left one at the right, is not covered by its parent.
  const int groups = (capture.extent[kAxis] + shared::kZoneGroup - 1) / shared::kZoneGroup;
  const ZoneCell* tree = cells + slice * 2 * groups;
  int left = groups + lo / shared::kZoneGroup, right = groups + hi / shared::kZoneGroup + 1;
  for (; left < right; left >>= 1, right >>= 1) {
    if ((left & 1) != 0) found = hull(found, of_cell(found, tree[left++]));
    if ((right & 1) != 0) found = hull(found, of_cell(found, tree[--right]));
  }
  return found;
}

/// The elements whose index along each axis lies in `index`, one by one: where they are few, and many along one axis
/// at most. Else they can be anything.
template <class Storage, int kRank>
__device__ __forceinline__ auto read_few(const ops::ModCapture& capture, const Interval (&index)[kRank]) {
  using Range = decltype(element<Storage, kRank>(capture, 0));
  constexpr int kFew = 32;
  int count = 1;
  long long offset = 0, step = 0;
#pragma unroll
  for (int axis = 0; axis < kRank; ++axis) {
    const int last = capture.extent[axis] - 1;
    if (last < 0) return any_like(Range{});
    const int first = static_cast<int>(shared::larger(0, shared::smaller(index[axis].lo, last)));
    const int end = static_cast<int>(shared::larger(0, shared::smaller(index[axis].hi, last)));
    offset += ops::offset(capture, axis, first);
    if (first == end) continue;
    if (count > 1 || end - first >= kFew) return any_like(Range{});
    count = end - first + 1;
    step = ops::offset(capture, axis, 1);
  }
  Range found = element<Storage, kRank>(capture, offset);
  for (int i = 1; i < count; ++i) found = hull(found, element<Storage, kRank>(capture, offset + i * step));
  return found;
}

/// Whether an index can be inside of the tensor, and outside.
struct Inside {
  bool may_be, may_not_be;
};
template <int kRank>
__device__ __forceinline__ Inside inside(const ops::ModCapture& capture, const Interval (&index)[kRank]) {
  Inside result = {true, false};
  for (int axis = 0; axis < kRank; ++axis) {
    const int last = capture.extent[axis] - 1;
    result.may_be = result.may_be && index[axis].hi >= 0 && index[axis].lo <= last;
    result.may_not_be = result.may_not_be || index[axis].lo < 0 || index[axis].hi > last;
  }
  return result;
}

/// read() with `fill` for indices outside.
template <class Storage, int kZone, int kRank, class Range>
__device__ __forceinline__ Range at(const ops::ModCapture& capture, const ZoneCell* cells,
                                    const Interval (&index)[kRank], Range fill) {
  const Inside index_is = inside(capture, index);
  if (!index_is.may_be) return fill;
  const Range found = read<Storage, kZone>(capture, cells, index);
  return index_is.may_not_be ? hull(found, fill) : found;
}
/// read_few() with it.
template <class Storage, int kRank, class Range>
__device__ __forceinline__ Range at_few(const ops::ModCapture& capture, const Interval (&index)[kRank], Range fill) {
  const Inside index_is = inside(capture, index);
  if (!index_is.may_be) return fill;
  const Range found = read_few<Storage>(capture, index);
  return index_is.may_not_be ? hull(found, fill) : found;
}

}  // namespace heddle::ranges
