#include "workspaces.h"

#include <algorithm>
#include <string>

#include "heddle/error.h"

namespace heddle::python {
namespace {

std::string text_of(const Device& device) {
  return std::string(name(device.kind)) + " " + std::to_string(device.index);
}

}  // namespace

Tensor new_workspace(const Device& device, std::int64_t bytes) {
  return Tensor::empty_on(device, DType::u8, {std::max<std::int64_t>(bytes, 1)});
}

void* workspace_of(const std::optional<Array>& given, const Device& device, std::int64_t bytes) {
  if (!given) return nullptr;
  const TensorView view = view_of(*given, "workspace");
  const std::int64_t there = view.count() * size_of(view.dtype);
  if (!is_contiguous(view)) throw Error(ErrorCode::invalid_argument, "workspace has gaps between its elements");
  if (view.device != device || there < bytes) {
    throw Error(ErrorCode::invalid_argument, "workspace has " + std::to_string(there) + " bytes on " +
                                                 text_of(view.device) + "; " + std::to_string(bytes) + " on " +
                                                 text_of(device) + " are accepted");
  }
  return view.data;
}

}  // namespace heddle::python
