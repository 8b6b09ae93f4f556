// A line of explain() about a kernel's configuration.
#pragma once

#include <string_view>
#include <variant>

namespace heddle::plan {

/// A number, switch or choice of a kernel's configuration.
struct Setting {
  std::string_view name;
  std::variant<bool, int, std::string_view> value;
};

}  // namespace heddle::plan
