// How this folder says no: one exception, one sentence.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "heddle/error.h"
#include "heddle/tensor.h"

namespace heddle::problem {

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> sentence, Arguments&&... arguments) {
  throw Error(ErrorCode::invalid_argument, fmt::format(sentence, std::forward<Arguments>(arguments)...));
}

/// "bf16 [2, 8, 512, 64]"
inline std::string describe(const ConstTensorView& view) {
  return fmt::format("{} {}", name(view.dtype), to_string(view.shape));
}

/// What every tensor argument must obey: a stride an axis, extents not negative, a span that 64 bits can address.
void check_view(std::string_view name, const ConstTensorView& view);
/// Memory present and aligned to the element size, when there is an element.
void check_memory(std::string_view name, const ConstTensorView& view);

}  // namespace heddle::problem
