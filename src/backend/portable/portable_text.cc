#include "backend/portable/portable_text.h"

#include <fmt/format.h>

namespace heddle::portable {
namespace {

using device_text::Rounding;
using device_text::TakesScore;

// A mod's name, its type, and that of its elements are to be given.
constexpr const char* kMember = R"(
  struct {1} {{
    using Mod = {1}Mod;
    template <class... Arguments>
    static __device__ __forceinline__ {2} element(const shared::ModValues& mod, const Arguments&... arguments) {{
      return {0}_element(mod, arguments...);
    }}
  }};)";

}  // namespace

std::string fragments_class(shared::FragmentKind kind) {
  std::string kind_name = name(kind);
  kind_name[0] = static_cast<char>(kind_name[0] - 'a' + 'A');
  return kind_name + "Fragments";
}
std::string fragments_header(shared::FragmentKind kind) { return fmt::format("portable/fragments/{}.cuh", name(kind)); }

void ModTexts::add(const char* name, const char* type, bool there, const Expr& mod, TakesScore takes_score,
                   Rounding rounding, const char* element) {
  if (!there) {
    members_ += fmt::format("\n  using {} = portable::NoMod;", type);
    return;
  }
  functions_ += device_text::mod_text(name, mod, layout_, takes_score, rounding);
  members_ += fmt::format(kMember, name, type, element);
}

void ModTexts::name(const char* type, const char* of) { members_ += fmt::format("\n  using {} = {};", type, of); }

std::string ModTexts::text() const {
  return fmt::format("{}\nnamespace heddle {{\nstruct GeneratedMods {{{}\n}};\n}}  // namespace heddle\n", functions_,
                     members_);
}

}  // namespace heddle::portable
