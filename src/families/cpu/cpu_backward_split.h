// How the CPU backward cuts its work: plain data (families/cpu/cpu_backward_plans.h explains the words).
#pragma once

#include <cstdint>
#include <vector>

#include "device/caps.h"
#include "plan/capture_sums.h"

namespace heddle::plan {

/// Keys of a tile, and with bricks, where there are tasks enough, of a wide one.
inline constexpr std::int64_t kBackwardKeys = 128, kWideBackwardKeys = 256;

/// The tasks that add up a gradient of a capture or param.
enum class SumOwner : std::uint8_t {
  lane,  // each lane of tasks has a copy in f64; copies are added in order
  task,  // each element belongs to one task, which adds in the problem's reals
};

struct CpuBackwardSplit {
  std::int64_t tile_rows = 0, tile_keys = kBackwardKeys;
  device::MatrixUnit unit = device::MatrixUnit::none;  // for all five products
  bool kv_broadcasts = false;                          // k or v serves all sequences
  bool q_broadcasts = false;
  bool all_sequences = false;  // a unit takes them all
  bool all_heads = false;      // and all kv heads
  std::int64_t pieces = 1;     // of each unit
  std::int64_t lanes = 0;      // 0: each task is one
  std::vector<CaptureSum> sums{};
  std::vector<SumOwner> owners{};  // of the sums

  bool bricks() const { return unit != device::MatrixUnit::none; }
};

}  // namespace heddle::plan
