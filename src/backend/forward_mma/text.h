// The text of one kernel of the portable forward family, for any compiler: CUDA's, HIP's, the host's.
#pragma once

#include <string>

#include "backend/device_text/expression_text.h"
#include "plan/mods/kernel_mods.h"
#include "shared/forward_mma_config.h"

namespace heddle::forward_mma {

/// "forward_mma bf16 d128 64x64 masked lse"
std::string name_of(const shared::ForwardMmaConfig& config);

/// Mods as the portable kernels take them: their functions, and the class GeneratedMods with a member for each.
class ModTexts {
 public:
  explicit ModTexts(const device_text::ModLayout& layout) : layout_(layout) {}
  /// Member `type` of mod `name`, whose elements are of type `element`; where it is not there, portable::NoMod.
  void add(const char* name, const char* type, bool there, const Expr& mod, device_text::TakesScore takes_score,
           device_text::Rounding rounding, const char* element);
  /// The member is that class.
  void name(const char* type, const char* of);
  std::string text() const;

 private:
  device_text::ModLayout layout_;
  std::string functions_, members_;
};

/// In namespace heddle: kConfig, and the class GeneratedMods with the mods that the kernel computes. It includes the
/// headers of kernels/cuda/mods, src/shared and kernels/portable that it needs; the kernel itself is to follow.
std::string config_and_mods_text(const shared::ForwardMmaConfig& config, const plan::KernelMods& mods,
                                 const device_text::ModLayout& layout);

/// "MmaFragments", and the header that has it: "portable/fragments/mma.cuh".
std::string fragments_class(shared::FragmentKind kind);
std::string fragments_header(shared::FragmentKind kind);

}  // namespace heddle::forward_mma
