#include "problem/overlap.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

namespace heddle::problem {
namespace {

// count * stride for every count in [0, most]; stride > 0.
struct Term {
  std::int64_t stride, most;
};

// Room for the terms of two tensors: one an axis, and one each for the bytes of an element.
struct Terms {
  std::array<Term, std::size_t{2} * (kMaxRank + 1)> values;
  std::size_t count = 0;

  void push_back(const Term& term) { values[count++] = term; }
  Term* begin() { return values.data(); }
  Term* end() { return values.data() + count; }
};

// Is there a choice of counts with sum(count * stride) = target? Largest stride first, what the smaller ones can still
// add bounds each count, so that nested layouts leave a few candidates a level.
class Sums {
 public:
  explicit Sums(const Terms& terms) : terms_(terms) {
    std::sort(terms_.begin(), terms_.end(), [](const Term& x, const Term& y) { return x.stride > y.stride; });
    merge_equal_strides();
    rest_[terms_.count] = {0, 0};
    for (std::size_t i = terms_.count; i-- > 0;) {
      const auto [stride, most] = terms_.values[i];
      rest_[i] = {rest_[i + 1].most + stride * most, std::gcd(rest_[i + 1].gcd, stride)};
    }
  }

  bool reach(std::int64_t target) {
    budget_ = 100'000;
    return search(0, target);
  }

 private:
  struct Rest {
    std::int64_t most, gcd;  // of all terms from here on
  };

  void merge_equal_strides() {
    Terms merged;
    for (const Term& term : terms_) {
      if (merged.count > 0 && merged.end()[-1].stride == term.stride) {
        merged.end()[-1].most += term.most;
      } else {
        merged.push_back(term);
      }
    }
    terms_ = merged;
  }

  bool search(std::size_t i, std::int64_t target) {
    if (target < 0 || target > rest_[i].most) return false;
    if (i == terms_.count || target == 0) return target == 0;
    if (target % rest_[i].gcd != 0) return false;
    const auto [stride, most] = terms_.values[i];
    const std::int64_t below = std::max<std::int64_t>(0, target - rest_[i + 1].most);
    const std::int64_t first = (below + stride - 1) / stride;
    const std::int64_t last = std::min(most, target / stride);
    for (std::int64_t count = first; count <= last; ++count) {
      if (--budget_ < 0 || search(i + 1, target - count * stride)) return true;
    }
    return false;
  }

  Terms terms_;
  std::array<Rest, 2 * (kMaxRank + 1) + 1> rest_;
  int budget_ = 0;
};

std::uintptr_t address(const ConstTensorView& view) { return reinterpret_cast<std::uintptr_t>(view.data); }

void append_terms(Terms& terms, const ConstTensorView& view) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t stride = std::abs(view.strides[axis]) * size_of(view.dtype);
    if (stride != 0 && view.shape[axis] > 1) terms.push_back({stride, view.shape[axis] - 1});
  }
  terms.push_back({1, size_of(view.dtype) - 1});
}

}  // namespace

bool ranges_meet(const ConstTensorView& x, const Footprint& x_at, const ConstTensorView& y, const Footprint& y_at) {
  if (x_at.bytes == 0 || y_at.bytes == 0) return false;
  const std::uintptr_t x_first = address(x) + static_cast<std::uintptr_t>(x_at.lowest);
  const std::uintptr_t y_first = address(y) + static_cast<std::uintptr_t>(y_at.lowest);
  return x_first <= y_first ? y_first - x_first < static_cast<std::uintptr_t>(x_at.bytes)
                            : x_first - y_first < static_cast<std::uintptr_t>(y_at.bytes);
}

bool overlaps(const ConstTensorView& x, const ConstTensorView& y) {
  const Footprint x_at = footprint_of("tensor", x), y_at = footprint_of("tensor", y);
  if (!ranges_meet(x, x_at, y, y_at)) return false;
  const std::uintptr_t x_first = address(x) + static_cast<std::uintptr_t>(x_at.lowest);
  const std::uintptr_t y_first = address(y) + static_cast<std::uintptr_t>(y_at.lowest);
  const bool x_lower = x_first <= y_first;
  const std::uintptr_t gap = x_lower ? y_first - x_first : x_first - y_first;

  // lower + a = gap + b with a, b sums of the lower's and the upper's terms; b = span - 1 - b', b' a sum as well.
  Terms terms;
  append_terms(terms, x);
  append_terms(terms, y);
  return Sums(terms).reach(static_cast<std::int64_t>(gap) + (x_lower ? y_at : x_at).bytes - 1);
}

bool overlaps_itself(const ConstTensorView& x) {
  if (x.count() == 0) return false;
  Terms axes;  // in elements
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.shape[axis] == 1) continue;
    if (x.strides[axis] == 0) return true;
    axes.push_back({std::abs(x.strides[axis]), x.shape[axis] - 1});
  }
  // Two elements with equal offsets differ first in some axis i, by d_i >= 1, and by d_j in [-most, most] in later
  // ones: (d_i - 1) * stride_i + sum (d_j + most_j) * stride_j = sum most_j * stride_j - stride_i.
  for (std::size_t i = 0; i < axes.count; ++i) {
    const Term& first = axes.values[i];
    Terms terms;
    terms.push_back({first.stride, first.most - 1});
    std::int64_t target = -first.stride;
    for (std::size_t j = i + 1; j < axes.count; ++j) {
      const auto [stride, most] = axes.values[j];
      terms.push_back({stride, 2 * most});
      target += most * stride;
    }
    if (Sums(terms).reach(target)) return true;
  }
  return false;
}

}  // namespace heddle::problem
