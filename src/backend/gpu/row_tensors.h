// The caller's tensors as kernels' parameters: strides when a kernel is prepared, addresses in each run.
#pragma once

#include <optional>
#include <string_view>

#include "heddle/tensor.h"
#include "shared/storage.h"

namespace heddle::gpu {

/// Element strides of batch, head and row, of a tensor of rows. What has one entry serves all; the sequences of a
/// packed tensor begin at rows of their own.
template <class View, class Rows>
void set_strides(const View& view, bool packed, Rows& rows) {
  for (int axis = 0; axis < 3; ++axis) rows.stride[axis] = view.strides[axis];
  if (packed || view.shape[0] == 1) rows.stride[0] = 0;
}
template <class View, class Rows>
void set_strides(const std::optional<View>& view, bool packed, Rows& rows) {
  if (view) set_strides(*view, packed, rows);
}

/// Factors of 8 bits [B, H], of which an extent may be 1. Null for none.
shared::Descale descale_of(const std::optional<ConstTensorView>& view);

/// Null for a tensor that is not there.
inline void* address_of(const std::optional<TensorView>& view) { return view ? view->data : nullptr; }
inline const void* address_of(const std::optional<ConstTensorView>& view) { return view ? view->data : nullptr; }

/// Throws Error(invalid_argument), naming the tensor, unless `bytes` divides the address, as it divided the one that
/// the kernel was planned for.
void check_address(std::string_view name, const void* address, std::int64_t bytes);

}  // namespace heddle::gpu
