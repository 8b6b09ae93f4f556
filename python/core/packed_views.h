// Packed rows of torch's, [T, H, D], as the library has them: [1, H, T, D].
#pragma once

#include <array>
#include <cstddef>

namespace heddle::python {

/// A view with its axes in another order; -1 is an axis of extent 1.
template <class View, std::size_t kRank>
View with_axes(const View& view, const std::array<int, kRank>& axes) {
  View made = view;
  made.shape = {}, made.strides = {};
  for (const int axis : axes) {
    made.shape.push_back(axis < 0 ? 1 : view.shape[axis]);
    made.strides.push_back(axis < 0 ? view.shape[0] * view.strides[0] : view.strides[axis]);
  }
  return made;
}

constexpr std::array<int, 4> kPacked = {-1, 1, 0, 2};  // [T, H, D] as [1, H, T, D]
constexpr std::array<int, 4> kPages = {0, 2, 1, 3};    // [pages, page, H, D] as [pages, H, page, D]
constexpr std::array<int, 3> kPackedLse = {-1, 0, 1};  // [H, T] as [1, H, T]

}  // namespace heddle::python
