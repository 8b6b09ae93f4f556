#include "wide_integers.h"

#include <cstdint>
#include <limits>

#include "heddle/error.h"

namespace heddle::python {
namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

/// Not 0 if x does not fit i32. u64 beyond i64 has a negative x, or one that does not fit either.
template <class Integer>
std::uint64_t excess(Integer x) {
  if constexpr (std::numeric_limits<Integer>::is_signed) {
    return (static_cast<std::uint64_t>(x) + 0x80000000U) >> 32U;
  } else {
    return static_cast<std::uint64_t>(x) >> 31U;
  }
}

[[noreturn]] void refuse(const std::string& name, const ConstTensorView& view, const std::string& value,
                         const Dims& index) {
  throw Error(ErrorCode::invalid_argument, "capture '" + name + "' is " + std::string(heddle::name(view.dtype)) +
                                               " and holds " + value + " at " + to_string(index) +
                                               "; mods read integers as i32: values of " + std::to_string(kLeast) +
                                               " to " + std::to_string(kMost) + " are accepted");
}

template <class Integer>
class Search {
 public:
  Search(const std::string& name, const ConstTensorView& view)
      : name_(name), view_(view), index_(contiguous_strides(view.shape)) {}

  void along(int axis, const Integer* data) {
    if (axis == view_.rank()) return one(data);
    const std::int64_t count = view_.shape[axis], stride = view_.strides[axis];
    if (axis + 1 < view_.rank()) {
      for (index_[axis] = 0; index_[axis] < count; ++index_[axis]) along(axis + 1, data + index_[axis] * stride);
      return;
    }
    std::uint64_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) found |= excess(data[i * stride]);
    if (found == 0) return;
    for (index_[axis] = 0; index_[axis] < count; ++index_[axis]) one(data + index_[axis] * stride);
  }

 private:
  void one(const Integer* x) const {
    if (excess(*x) != 0) refuse(name_, view_, std::to_string(*x), index_);
  }

  const std::string& name_;
  const ConstTensorView& view_;
  Dims index_;  // of as many axes as the view
};

}  // namespace

void refuse_wide_integers(const std::string& name, const ConstTensorView& view) {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(size_of(view.dtype)) == 0;
  if (view.device.kind != DeviceKind::cpu || view.count() == 0 || !aligned) return;  // the library refuses such memory
  if (view.dtype == DType::i64) {
    Search<std::int64_t>(name, view).along(0, static_cast<const std::int64_t*>(view.data));
  } else if (view.dtype == DType::u64) {
    Search<std::uint64_t>(name, view).along(0, static_cast<const std::uint64_t*>(view.data));
  } else if (view.dtype == DType::u32) {
    Search<std::uint32_t>(name, view).along(0, static_cast<const std::uint32_t*>(view.data));
  }
}

}  // namespace heddle::python
