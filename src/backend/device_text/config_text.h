// A kernel's configuration as a constant of device code.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "backend/device_text/words.h"
#include "plan/config_fields.h"

namespace heddle::device_text {

// A field's value; `type` is spelled as the configuration's list of fields spells it.
inline std::string value_text(std::string_view, int value) { return fmt::format("{}", value); }
inline std::string value_text(std::string_view, bool value) { return value ? "true" : "false"; }
template <class Enum>
std::string value_text(std::string_view type, Enum value) {
  return fmt::format("heddle::shared::{}::{}", type, name(value));
}

/// "constexpr heddle::shared::ForwardMmaConfig kConfig = {.qk_dim = 64};", in namespace heddle. Fields that are at
/// their default are left out.
template <class Config>
std::string config_text(const Config& config, std::string_view constant) {
  using Fields = plan::ConfigFields<Config>;
  const Config defaults;
  std::vector<std::string> fields;
  Fields::visit([&](std::string_view name, std::string_view type, auto field) {
    if (config.*field == defaults.*field) return;
    fields.push_back(fmt::format(".{} = {}", name, value_text(type, config.*field)));
  });
  return wrapped(
      fmt::format("constexpr heddle::shared::{} {} = {{{}}};\n", Fields::kName, constant, fmt::join(fields, ", ")));
}

}  // namespace heddle::device_text
