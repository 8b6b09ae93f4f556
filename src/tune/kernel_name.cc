#include "tune/kernel_name.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <variant>

#include "families/table.h"

namespace heddle::tune {

std::string kernel_name(const plan::Plan& plan) {
  std::string name = fmt::format("{} {} x {}", plan.family->name, plan.tile.q, plan.tile.kv);
  if (plan.family->settings != nullptr) {
    for (const plan::Setting& setting : plan.family->settings(plan)) {
      std::visit([&](const auto& value) { name += fmt::format(", {} {}", setting.name, value); }, setting.value);
    }
  }
  if (plan.packed_heads > 0) name += fmt::format(", packs {} heads", plan.packed_heads);
  const bool backward = plan.family->pass == problem::Pass::backward;
  const std::array<std::string_view, 4> copied = {"q", "k", "v", backward ? "dO" : "the streamed capture"};
  for (std::size_t i = 0; i < copied.size(); ++i) {
    if (plan.copies[i]) name += fmt::format(", copies {}", copied[i]);
  }
  if (plan.mods.has_key_numbers()) name += ", numbers of keys";
  return name;
}

}  // namespace heddle::tune
