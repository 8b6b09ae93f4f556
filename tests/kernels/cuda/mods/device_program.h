// The text of mods, compiled by NVRTC and run at many elements on a GPU.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "backend/device_text/bound_values.h"
#include "expr/interpret.h"

namespace heddle::cuda::test {

using device_text::ModLayout;

class DeviceProgram {
 public:
  /// Its transcendentals are the device's.
  static constexpr bool kAsInterpreter = false;
  static constexpr expr::Precision kReals = expr::Precision::f32;
  /// Why it cannot run here; empty when it can.
  static std::string missing();

  /// The number of the mod, for values().
  int add(const Expr& mod, const ModLayout& layout);
  /// One kernel of all mods so far.
  jit::Source source() const;
  void compile();
  /// Copies the values that a run reads to the device.
  shared::ModValues bind(const ModLayout& layout, const Bindings& bindings);
  /// The mod's value of each element, from its staged functions together. The lengths of the sequence are the
  /// elements'.
  std::vector<expr::Value> values(int mod, const shared::ModValues& bound,
                                  std::span<const expr::Element> elements) const;

 private:
  std::string text_, cases_;
  std::vector<ExprType> types_;
  expr::Precision reals_ = expr::Precision::f32;  // of all mods
  std::vector<DeviceMemory> memory_;
  std::unique_ptr<Module> module_;
};

/// For mods whose reals are f64.
class WideDeviceProgram : public DeviceProgram {
 public:
  static constexpr expr::Precision kReals = expr::Precision::f64;
};

}  // namespace heddle::cuda::test
