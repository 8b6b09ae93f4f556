// How this folder says no: one exception, one sentence.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/view_checks.h"
#include "heddle/error.h"
#include "heddle/tensor.h"

namespace heddle::problem {

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> sentence, Arguments&&... arguments) {
  throw Error(ErrorCode::invalid_argument, fmt::format(sentence, std::forward<Arguments>(arguments)...));
}

using base::check_memory;
using base::check_view;
using base::describe;

}  // namespace heddle::problem
