// The options that are tensors, with their names (heddle/options.def).
#pragma once

#include <optional>
#include <string_view>

#include "heddle/attention.h"

namespace heddle::problem {

struct OptionView {
  std::string_view name;
  std::optional<ConstTensorView> AttentionOptions::*member;
};

/// Tensors that runs read where q is.
inline constexpr OptionView kTensorOptions[] = {
#define HEDDLE_TENSOR_OPTION(name, group, help) {#name, &AttentionOptions::name},
#include "heddle/options.def"
};

/// Lengths, cumulative lengths and starts: how sequences lie.
inline constexpr OptionView kLengthViews[] = {
#define HEDDLE_LENGTHS_OPTION(name, group, help) {#name, &AttentionOptions::name},
#include "heddle/options.def"
};

}  // namespace heddle::problem
