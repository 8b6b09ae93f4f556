// Views that the host can read: of CPU memory as they are, of a GPU's as copies.
#pragma once

#include <optional>
#include <vector>

#include "heddle/expr.h"
#include "heddle/tensor.h"

namespace heddle::base {

/// Keeps the copies that its views point at. Copying waits for the device.
class OnHost {
 public:
  ConstTensorView view(const ConstTensorView& given) {
    if (given.device.kind == DeviceKind::cpu) return given;
    const TensorView source(const_cast<void*>(given.data), given.dtype, given.shape, given.strides, given.device);
    return copies_.emplace_back(Tensor::adopt(source, nullptr).to(Device{}));
  }
  std::optional<ConstTensorView> view(const std::optional<ConstTensorView>& given) {
    return given ? std::optional(view(*given)) : std::nullopt;
  }
  Bindings bindings(const Bindings& given) {
    Bindings result = given;
    for (auto& [name, capture] : result.captures) capture = view(capture);
    return result;
  }

 private:
  std::vector<Tensor> copies_;
};

}  // namespace heddle::base
