// The mods of a case, by their names.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/attention_case.h"
#include "engine/case_mods.h"

namespace heddle::test {
namespace {

std::vector<std::string> names_of(const std::vector<NamedMod>& mods) {
  std::vector<std::string> names;
  for (const NamedMod& mod : mods) names.push_back(mod.name);
  return names;
}

Expr make_mod(const std::vector<NamedMod>& mods, const std::string& name, AttentionCase& c) {
  if (name.empty()) return {};
  for (const NamedMod& mod : mods) {
    if (mod.name == name) return mod.make(c);
  }
  throw std::logic_error("no mod is called " + name);
}

}  // namespace

const std::vector<std::string>& score_names() {
  static const std::vector<std::string> names = names_of(score_mods());
  return names;
}
const std::vector<std::string>& mask_names() {
  static const std::vector<std::string> names = names_of(mask_mods());
  return names;
}
const std::vector<std::string>& weight_names() {
  static const std::vector<std::string> names = names_of(weight_mods());
  return names;
}
const std::vector<std::string>& key_mask_names() {
  static const std::vector<std::string> names = names_of(key_mask_mods());
  return names;
}

void AttentionCase::make_mods() {
  options_.score_mod = make_mod(score_mods(), spec_.score, *this);
  if (spec_.far != 0) {
    const Expr given = options_.score_mod.empty() ? leaf::score() : options_.score_mod;
    options_.score_mod = given + where(leaf::q_idx() % 150 < 70, spec_.far, 0.0);
  }
  const bool of_keys = std::ranges::count(key_mask_names(), spec_.mask) > 0;
  options_.mask_mod = make_mod(of_keys ? key_mask_mods() : mask_mods(), spec_.mask, *this);
  options_.weight_mod = make_mod(weight_mods(), spec_.weight, *this);
}

}  // namespace heddle::test
