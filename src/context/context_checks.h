// Refusals by name: of a ContextAttention's options, and of the tensors of its calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "heddle/attention.h"
#include "heddle/tensor.h"

namespace heddle::context {

/// Throws invalid_argument for options that a partition says, for backends of another device, and for names that are
/// added.
void refuse_options(const AttentionOptions& options, const Device& device);

/// Throws invalid_argument unless a tensor is on the device and has this rank's rows, [B, H, rows, D].
void check_rows(std::string_view name, const ConstTensorView& view, std::int64_t rows, const Device& device);

/// Throws invalid_argument unless `gradient` has the shape of `of`, a floating dtype and a last stride of 1.
void check_gradient(std::string_view name, const ConstTensorView& gradient, const ConstTensorView& of);

/// Throws invalid_argument unless there is such a gradient, "dk", whose elements share no memory.
void check_added(std::string_view name, const std::optional<TensorView>& gradient);

/// All but the rows of a tensor, [B, H, rows, D], that ranks have in common.
std::string shape_text(const ConstTensorView& view);

}  // namespace heddle::context
