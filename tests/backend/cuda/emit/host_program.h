// The text of mods, compiled by the host's compiler and called at single elements.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/emit/expression_text.h"
#include "expr/interpret.h"
#include "shared/forward_sm90.h"

namespace heddle::cuda::emit::test {

/// The values behind a layout, as a launch packs them. The tensors must outlive it.
shared::ModValues mod_values(const ModLayout& layout, const Bindings& bindings);

class HostProgram {
 public:
  /// The number of the mod, for value().
  int add(const Expr& mod, const ModLayout& layout);
  /// All mods so far, in one file. Undefined behaviour in the text ends the process.
  void compile();
  /// What the staged functions of a mod give together. Of the element's sequence, `values` holds the lengths.
  expr::Value value(int mod, const shared::ModValues& values, const expr::Element& element) const;

 private:
  struct Result {
    int type;
    float real;
    int integer;
  };
  using Call = void (*)(const shared::ModValues&, float, int, int, int, int, Result*);

  std::string text_ = "#include \"mods/instructions.cuh\"\n", table_;
  int count_ = 0;
  std::shared_ptr<void> library_;
  const Call* calls_ = nullptr;
};

}  // namespace heddle::cuda::emit::test
