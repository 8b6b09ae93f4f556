// Shared by the texts of all kernels over the portable fragments: configuration, mods, fragments.
#pragma once

#include <string>
#include <string_view>

#include "backend/device_text/expression_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "plan/mods/kernel_mods.h"

namespace heddle::portable {

/// Mods as the portable kernels take them: their functions, and the class GeneratedMods with a member for each.
class ModTexts {
 public:
  explicit ModTexts(const device_text::ModLayout& layout) : layout_(layout) {}
  /// Member `type` of mod `name`, with elements of type `element` in the layout's reals; portable::NoMod if the mod is
  /// not there.
  void add(const char* name, const char* type, bool there, const Expr& mod, device_text::TakesScore takes_score,
           device_text::Rounding rounding, ExprType element = ExprType::f32);
  /// Members Queryplace and Keyplace.
  void add_places(const plan::Places& places);
  /// Member `type` is the class `of`.
  void name(const char* type, const char* of);
  std::string text() const;

 private:
  device_text::ModLayout layout_;
  std::string functions_, members_;
};

/// "forward_mma bf16 d128 64x64 masked lse"
std::string name_of(std::string_view family, const shared::ForwardMmaConfig& config);

/// How the kernels compute the score_mod: a sentence; empty without one.
std::string describe_score(const plan::KernelMods& mods);

/// In namespace heddle: kConfig, and the class GeneratedMods with the mods that the kernel computes. It includes the
/// headers of kernels/common/mods, src/shared and kernels/portable that it needs; the kernel itself is to follow.
std::string config_and_mods_text(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                                 const device_text::ModLayout& layout);

/// "MmaFragments", and the header that has it: "portable/fragments/mma.cuh".
std::string fragments_class(shared::FragmentKind kind);
std::string fragments_header(shared::FragmentKind kind);

/// Waves that share a SIMD of an AMD GPU; 0: the compiler may choose. Kernels for CDNA must state it: a thread has 512
/// registers, half of them for matrix instructions alone. The compiler would take them all for one wave, park sums
/// there, and copy them.
template <class Config>
int waves_a_simd(const Config& config) {
  return config.shape().states_waves ? config.ctas : 0;
}

}  // namespace heddle::portable
