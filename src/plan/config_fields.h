// The fields of a kernel's configuration, one after the other: what a kernel's text and explain() say of it. Each
// configuration lists its fields once, in its .def file.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <vector>

#include "plan/setting.h"

namespace heddle::plan {

/// kName: the configuration's name in heddle::shared. visit(f) calls f(name, type, pointer to member) for each field,
/// in order; `type` is spelled as in heddle::shared. plan/config_fields.inc writes the specialisation of a
/// configuration.
template <class Config>
struct ConfigFields;

/// explain()'s lines: the fields that are not at their default, and those of `always`.
template <class Config>
std::vector<Setting> settings_of(const Config& config, std::initializer_list<std::string_view> always = {}) {
  const Config defaults;
  std::vector<Setting> settings;
  ConfigFields<Config>::visit([&](std::string_view own, std::string_view, auto field) {
    if (config.*field == defaults.*field && std::ranges::find(always, own) == always.end()) return;
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(config.*field)>>) {
      settings.push_back({own, std::string_view(name(config.*field))});
    } else {
      settings.push_back({own, config.*field});
    }
  });
  return settings;
}

}  // namespace heddle::plan
