// The mods of the grid, by name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/attention_case.h"

namespace heddle::test {

/// Makes a mod for a case and binds what it reads.
struct NamedMod {
  std::string name;
  std::function<Expr(AttentionCase&)> make;
};
const std::vector<NamedMod>& score_mods();
const std::vector<NamedMod>& mask_mods();
const std::vector<NamedMod>& weight_mods();
/// More masks, of decoding; the grids do not draw them.
const std::vector<NamedMod>& key_mask_mods();

}  // namespace heddle::test
