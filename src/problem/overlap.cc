#include "problem/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "heddle/error.h"

namespace heddle::problem {
namespace {

constexpr std::int64_t kLargestSpan = std::int64_t{1} << 61;

// count * stride for every count in [0, most]; stride > 0.
struct Term {
  std::int64_t stride, most;
};

// Is there a choice of counts with sum(count * stride) = target? Largest stride first, what the smaller ones can still
// add bounds each count, so that nested layouts leave a few candidates a level.
class Sums {
 public:
  explicit Sums(std::vector<Term> terms) : terms_(std::move(terms)) {
    std::sort(terms_.begin(), terms_.end(), [](const Term& x, const Term& y) { return x.stride > y.stride; });
    merge_equal_strides();
    rest_.resize(terms_.size() + 1, {0, 0});
    for (std::size_t i = terms_.size(); i-- > 0;) {
      rest_[i] = {rest_[i + 1].most + terms_[i].stride * terms_[i].most, std::gcd(rest_[i + 1].gcd, terms_[i].stride)};
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
    std::vector<Term> merged;
    for (const Term& term : terms_) {
      if (!merged.empty() && merged.back().stride == term.stride) {
        merged.back().most += term.most;
      } else {
        merged.push_back(term);
      }
    }
    terms_ = std::move(merged);
  }

  bool search(std::size_t i, std::int64_t target) {
    if (target < 0 || target > rest_[i].most) return false;
    if (i == terms_.size() || target == 0) return target == 0;
    if (target % rest_[i].gcd != 0) return false;
    const auto [stride, most] = terms_[i];
    const std::int64_t below = std::max<std::int64_t>(0, target - rest_[i + 1].most);
    const std::int64_t first = (below + stride - 1) / stride;
    const std::int64_t last = std::min(most, target / stride);
    for (std::int64_t count = first; count <= last; ++count) {
      if (--budget_ < 0 || search(i + 1, target - count * stride)) return true;
    }
    return false;
  }

  std::vector<Term> terms_;
  std::vector<Rest> rest_;
  int budget_ = 0;
};

std::uintptr_t address(const ConstTensorView& view) { return reinterpret_cast<std::uintptr_t>(view.data); }

// The lowest element's offset in bytes (negative strides go below the data pointer).
std::int64_t lowest(const ConstTensorView& view) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.strides[axis] < 0) offset += (view.shape[axis] - 1) * view.strides[axis] * size_of(view.dtype);
  }
  return offset;
}

void append_terms(std::vector<Term>& terms, const ConstTensorView& view) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t stride = std::abs(view.strides[axis]) * size_of(view.dtype);
    if (stride != 0 && view.shape[axis] > 1) terms.push_back({stride, view.shape[axis] - 1});
  }
  terms.push_back({1, size_of(view.dtype) - 1});
}

}  // namespace

std::int64_t byte_span(std::string_view name, const ConstTensorView& view) {
  if (view.count() == 0) return 0;
  const std::int64_t size = size_of(view.dtype);
  std::int64_t span = size;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.shape[axis] == 1) continue;
    std::int64_t reach = 0;
    if (view.strides[axis] == INT64_MIN ||
        __builtin_mul_overflow(view.shape[axis] - 1, std::abs(view.strides[axis]), &reach) ||
        __builtin_mul_overflow(reach, size, &reach) || __builtin_add_overflow(span, reach, &span) ||
        span >= kLargestSpan) {
      throw Error(ErrorCode::out_of_memory,
                  fmt::format("{} of shape {} and strides {} spans more than 2^61 bytes; offsets are 64-bit", name,
                              to_string(view.shape), to_string(view.strides)));
    }
  }
  return span;
}

bool overlaps(const ConstTensorView& x, const ConstTensorView& y) {
  const std::int64_t x_span = byte_span("tensor", x);
  const std::int64_t y_span = byte_span("tensor", y);
  if (x_span == 0 || y_span == 0) return false;
  const std::uintptr_t x_first = address(x) + static_cast<std::uintptr_t>(lowest(x));
  const std::uintptr_t y_first = address(y) + static_cast<std::uintptr_t>(lowest(y));
  const bool x_lower = x_first <= y_first;
  const std::uintptr_t gap = x_lower ? y_first - x_first : x_first - y_first;
  if (gap >= static_cast<std::uintptr_t>(x_lower ? x_span : y_span)) return false;

  // lower + a = gap + b with a, b sums of the lower's and the upper's terms; b = span - 1 - b', b' a sum as well.
  const ConstTensorView& upper = x_lower ? y : x;
  std::vector<Term> terms;
  append_terms(terms, x);
  append_terms(terms, y);
  return Sums(std::move(terms)).reach(static_cast<std::int64_t>(gap) + byte_span("tensor", upper) - 1);
}

bool overlaps_itself(const ConstTensorView& x) {
  if (x.count() == 0) return false;
  std::vector<Term> axes;  // in elements
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.shape[axis] == 1) continue;
    if (x.strides[axis] == 0) return true;
    axes.push_back({std::abs(x.strides[axis]), x.shape[axis] - 1});
  }
  // Two elements with equal offsets differ first in some axis i, by d_i >= 1, and by d_j in [-most, most] in later
  // ones: (d_i - 1) * stride_i + sum (d_j + most_j) * stride_j = sum most_j * stride_j - stride_i.
  for (std::size_t i = 0; i < axes.size(); ++i) {
    std::vector<Term> terms = {{axes[i].stride, axes[i].most - 1}};
    std::int64_t target = -axes[i].stride;
    for (std::size_t j = i + 1; j < axes.size(); ++j) {
      terms.push_back({axes[j].stride, 2 * axes[j].most});
      target += axes[j].most * axes[j].stride;
    }
    if (Sums(std::move(terms)).reach(target)) return true;
  }
  return false;
}

}  // namespace heddle::problem
