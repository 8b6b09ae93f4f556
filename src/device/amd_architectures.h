// AMD's architectures, a row each: what planning and kernels' texts must know of one.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace heddle::device {

struct AmdArchitecture {
  std::string_view prefix;     // of the chip's name: "gfx1100"
  int wave;                    // threads
  std::string_view fragments;  // of its matrix instructions, a header of kernels/amd/portable/fragments; empty: plain
  int lds_kib;                 // of a workgroup
  bool simulated;              // the tests run both passes on a simulator of it (tests/backend/amd/simulator)
};

/// The first row that fits a name is the chip's.
inline constexpr std::array<AmdArchitecture, 12> kAmdArchitectures = {{
    {.prefix = "gfx90a", .wave = 64, .fragments = "gfx9", .lds_kib = 64, .simulated = false},
    {.prefix = "gfx940", .wave = 64, .fragments = "gfx9", .lds_kib = 64, .simulated = false},
    {.prefix = "gfx941", .wave = 64, .fragments = "gfx9", .lds_kib = 64, .simulated = false},
    {.prefix = "gfx942", .wave = 64, .fragments = "gfx9", .lds_kib = 64, .simulated = true},
    {.prefix = "gfx950", .wave = 64, .fragments = "gfx9", .lds_kib = 160, .simulated = false},
    {.prefix = "gfx9", .wave = 64, .fragments = "", .lds_kib = 64, .simulated = false},
    {.prefix = "gfx10", .wave = 32, .fragments = "", .lds_kib = 64, .simulated = false},
    {.prefix = "gfx1100", .wave = 32, .fragments = "gfx11", .lds_kib = 64, .simulated = true},
    {.prefix = "gfx11", .wave = 32, .fragments = "gfx11", .lds_kib = 64, .simulated = false},
    {.prefix = "gfx1200", .wave = 32, .fragments = "gfx12", .lds_kib = 64, .simulated = false},
    {.prefix = "gfx1201", .wave = 32, .fragments = "gfx12", .lds_kib = 64, .simulated = true},
    {.prefix = "gfx12", .wave = 32, .fragments = "", .lds_kib = 64, .simulated = false},
}};

/// Null for a chip of no row.
constexpr const AmdArchitecture* amd_architecture(std::string_view name) {
  const auto* row = std::ranges::find_if(kAmdArchitectures,
                                         [&](const AmdArchitecture& each) { return name.starts_with(each.prefix); });
  return row == kAmdArchitectures.end() ? nullptr : row;
}

}  // namespace heddle::device
