// AMD's architectures, a row each: what planning and kernels' texts must know of one. Behind them the chips whose plans
// can be made where they are not.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "device/caps.h"

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

struct KnownAmdGpu {
  std::string_view name;  // as the command line takes it
  AmdCaps caps;
};

/// The row of an AMD GPU.
inline AmdCaps amd_caps(const char* name, const char* architecture, int compute_units, int l2_mib, int memory_gib) {
  AmdCaps caps;
  caps.name = name;
  caps.architecture = architecture;
  caps.compute_units = compute_units;
  caps.shared_memory_bytes = std::int64_t{amd_architecture(architecture)->lds_kib} << 10;
  caps.l2_bytes = std::int64_t{l2_mib} << 20;
  caps.memory_bytes = std::int64_t{memory_gib} << 30;
  caps.runtime_version = 60'000'000;
  return caps;
}

/// As AMD's documents tell; none was there. The MI300X's L2 is that of one of its eight dies.
inline const std::array<KnownAmdGpu, 5> kKnownAmdGpus = {
    {{.name = "rx6800xt", .caps = amd_caps("AMD Radeon RX 6800 XT", "gfx1030", 72, 4, 16)},
     {.name = "rx7900xtx", .caps = amd_caps("AMD Radeon RX 7900 XTX", "gfx1100", 96, 6, 24)},
     {.name = "rx9070xt", .caps = amd_caps("AMD Radeon RX 9070 XT", "gfx1201", 64, 8, 16)},
     {.name = "mi210", .caps = amd_caps("AMD Instinct MI210", "gfx90a", 104, 8, 64)},
     {.name = "mi300x", .caps = amd_caps("AMD Instinct MI300X", "gfx942", 304, 4, 192)}}};

}  // namespace heddle::device
