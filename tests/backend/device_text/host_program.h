// The text of mods, compiled by the host's compiler and called at single elements.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/device_text/bound_values.h"
#include "expr/interpret.h"
#include "shared/mod_values.h"

namespace heddle::device_text::test {

/// Text of device functions, compiled with the headers of kernels/nvidia and loaded. Undefined behaviour in it ends the
/// process. Throws runtime_error with the compiler's words.
std::shared_ptr<void> load_on_host(const std::string& text);

class HostProgram {
 public:
  /// Its transcendentals are the interpreter's.
  static constexpr bool kAsInterpreter = true;
  static constexpr expr::Precision kReals = expr::Precision::f32;
  static std::string missing() { return {}; }

  /// The number of the mod, for value().
  int add(const Expr& mod, const ModLayout& layout);
  /// All mods so far, in one file. Undefined behaviour in the text ends the process.
  void compile();
  /// The values that a run reads, from these tensors.
  shared::ModValues bind(const ModLayout& layout, const Bindings& bindings) { return bound_values(layout, bindings); }
  /// The mod's value of each element, from its staged functions together. The lengths of the sequence are the
  /// elements'.
  std::vector<expr::Value> values(int mod, const shared::ModValues& bound,
                                  std::span<const expr::Element> elements) const;

 private:
  struct Result {
    int type;
    double real;
    int integer;
  };
  using Call = void (*)(const shared::ModValues&, double, int, int, int, int, Result*);

  std::string text_ = "#include \"mods/instructions.cuh\"\n", table_;
  int count_ = 0;
  std::shared_ptr<void> library_;
  const Call* calls_ = nullptr;
};

/// For mods whose reals are f64.
class WideHostProgram : public HostProgram {
 public:
  static constexpr expr::Precision kReals = expr::Precision::f64;
};

}  // namespace heddle::device_text::test
