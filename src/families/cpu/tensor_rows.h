// Rows, and numbers a head, of the tensors of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "base/element.h"
#include "families/cpu/target_data.h"

namespace heddle::cpu {

/// Rows from `row` on of one batch entry and head; batches of one serve all entries. A tensor of no elements may have
/// no memory: null takes no offset.
template <class RowsType, class View>
RowsType rows_of(const View& view, std::int64_t batch, std::int64_t head, std::int64_t row) {
  const std::int64_t entry = view.shape[0] == 1 ? 0 : batch;
  const std::int64_t offset =
      view.data == nullptr ? 0 : entry * view.strides[0] + head * view.strides[1] + row * view.strides[2];
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  return RowsType{static_cast<Byte*>(view.data) + offset * size_of(view.dtype), view.dtype, view.strides[2]};
}

inline double element_or_one(const std::optional<ConstTensorView>& view, std::int64_t batch, std::int64_t head) {
  if (!view) return 1;
  const std::int64_t offset =
      (view->shape[0] == 1 ? 0 : batch * view->strides[0]) + (view->shape[1] == 1 ? 0 : head * view->strides[1]);
  return base::load_element(view->data, view->dtype, offset);
}

}  // namespace heddle::cpu
