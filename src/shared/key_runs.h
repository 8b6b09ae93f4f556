// Which keys of a sequence a mask may leave: one run of keys, or two, such as the first tokens and a window. Worked out
// from comparisons of sums of integers, the intervals of whose other terms are known: never too few keys. For the host
// and for the code that is generated for devices. Plain integers, no headers but intervals.h.
#pragma once

#include "shared/intervals.h"

namespace heddle::shared {

/// Keys [begin, end).
struct KeyRun {
  int begin, end;
  constexpr bool empty() const { return begin >= end; }
  constexpr bool operator==(const KeyRun&) const = default;
};
inline constexpr KeyRun kNoKeys = {0x7FFFFFFF, 0};

/// In order, with keys between them that are not left. A single run is the first one.
struct KeyRuns {
  KeyRun first, second;
  constexpr bool empty() const { return first.empty(); }
  constexpr bool operator==(const KeyRuns&) const = default;
};
constexpr KeyRuns no_keys() { return {kNoKeys, kNoKeys}; }
/// `keys`: the interval of all keys, which begins at 0.
constexpr KeyRuns all_keys(Interval keys) { return {{0, static_cast<int>(keys.hi + 1)}, kNoKeys}; }
constexpr KeyRuns keys_where(bool any, Interval keys) { return any ? all_keys(keys) : no_keys(); }
constexpr KeyRuns keys_within(Interval x, Interval keys) {
  const long long lo = larger(x.lo, 0), hi = smaller(x.hi, keys.hi);
  return lo <= hi ? KeyRuns{{static_cast<int>(lo), static_cast<int>(hi + 1)}, kNoKeys} : no_keys();
}

/// With one more run, which begins behind where the others begin. Of three runs the two with the smaller gap become
/// one.
constexpr KeyRuns with_run(KeyRuns runs, KeyRun run) {
  const auto end_behind = [](KeyRun x, KeyRun y) { return KeyRun{x.begin, x.end < y.end ? y.end : x.end}; };
  if (run.empty()) return runs;
  if (runs.first.empty()) return {run, kNoKeys};
  if (runs.second.empty()) {
    if (run.begin <= runs.first.end) return {end_behind(runs.first, run), kNoKeys};
    return {runs.first, run};
  }
  if (run.begin <= runs.second.end) return {runs.first, end_behind(runs.second, run)};
  if (runs.second.begin - runs.first.end <= run.begin - runs.second.end) {
    return {{runs.first.begin, runs.second.end}, run};
  }
  return {runs.first, {runs.second.begin, run.end}};
}

constexpr KeyRuns unite(KeyRuns x, KeyRuns y) {
  const bool x_first = x.first.begin <= y.first.begin, x_last = x.second.begin > y.second.begin;
  const KeyRun a = x_first ? y.first : x.first, b = x_last ? y.second : x.second;
  const bool a_first = a.begin <= b.begin;
  KeyRuns runs = {x_first ? x.first : y.first, kNoKeys};
  runs = with_run(runs, a_first ? a : b);
  runs = with_run(runs, a_first ? b : a);
  return with_run(runs, x_last ? x.second : y.second);
}

constexpr KeyRun intersection(KeyRun x, KeyRun y) {
  const KeyRun both = {x.begin < y.begin ? y.begin : x.begin, x.end < y.end ? x.end : y.end};
  return both.empty() ? kNoKeys : both;
}
constexpr KeyRuns intersect(KeyRuns x, KeyRuns y) {
  KeyRuns runs = {intersection(x.first, y.first), kNoKeys};
  // No more than one of these two is there.
  runs = with_run(runs, intersection(x.first, y.second));
  runs = with_run(runs, intersection(x.second, y.first));
  return with_run(runs, intersection(x.second, y.second));
}

/// The rows of a sequence, all heads of them together: what its mask is asked for.
struct MaskRows {
  int b, q_len, kv_len, q_start;
  int q_token, kv_token;      // what q_idx and kv_idx lack to them
  Interval h, q_idx, kv_idx;  // kv_idx: all keys, from 0 on
};

// ---- from comparisons to keys; empty intervals stay empty, or grow

/// Ends that stand for infinity: beyond every sum of i32.
inline constexpr long long kFar = 1LL << 62;
constexpr Interval everything() { return {-kFar, kFar}; }

/// The x for which coefficient * x + rest can be in `sum`. coefficient: not 0.
constexpr Interval terms_of_sum(Interval sum, long long coefficient, Interval rest) {
  const Interval product = {sum.lo <= -kFar ? -kFar : sum.lo - rest.hi, sum.hi >= kFar ? kFar : sum.hi - rest.lo};
  if (coefficient > 0) {
    return {product.lo <= -kFar ? -kFar : ceil_quotient(product.lo, coefficient),
            product.hi >= kFar ? kFar : floor_quotient(product.hi, coefficient)};
  }
  return {product.hi >= kFar ? -kFar : ceil_quotient(-product.hi, -coefficient),
          product.lo <= -kFar ? kFar : floor_quotient(-product.lo, -coefficient)};
}
/// As terms_of_sum(), of a sum that wraps unless `total` fits.
constexpr Interval terms_of_sum(Interval sum, long long coefficient, Interval rest, Interval total) {
  return fits_i32(total) ? terms_of_sum(sum, coefficient, rest) : everything();
}
/// The differences that a relation to 0 lets be.
constexpr Interval differences(Relation relation) {
  switch (relation) {
    case Relation::lt:
      return {-kFar, -1};
    case Relation::le:
      return {-kFar, 0};
    case Relation::gt:
      return {1, kFar};
    case Relation::ge:
      return {0, kFar};
    case Relation::eq:
      return {0, 0};
    default:
      return everything();
  }
}
/// The x for which x // divisor can be in `quotient`.
constexpr Interval dividends(Interval quotient, Interval divisor) {
  if (divisor.lo != divisor.hi || divisor.lo <= 0) return everything();
  const long long lo = smaller(quotient.lo, kLargestI32 + 1), hi = larger(quotient.hi, kLowestI32 - 1);
  return {lo < kLowestI32 ? -kFar : lo * divisor.lo, hi > kLargestI32 ? kFar : hi * divisor.lo + divisor.lo - 1};
}
/// The divisor that a count of >> stands for; none is positive where it is not one count.
constexpr Interval powers(Interval count) {
  if (count.lo != count.hi || count.lo < 0 || count.lo > 31) return {0, 0};
  return {1LL << count.lo, 1LL << count.lo};
}
/// The x for which min(x, other), max(x, other), abs(x) can be in an interval. x: not the least i32 where abs is taken.
constexpr Interval under_min(Interval least, Interval other) {
  return {least.lo, other.lo <= least.hi ? kFar : least.hi};
}
constexpr Interval under_max(Interval most, Interval other) { return {other.hi >= most.lo ? -kFar : most.lo, most.hi}; }
constexpr Interval under_abs(Interval magnitude, Interval x) {
  return x.lo > kLowestI32 ? Interval{-magnitude.hi, magnitude.hi} : everything();
}

}  // namespace heddle::shared
