// The order of a wave's work. A pair's keys and values are packed just before its tiles read them, and into memory that
// held those of a pair whose tiles have ended: so what is packed stays in the L2 cache.
#pragma once

#include <cstdint>
#include <vector>

#include "base/counters.h"
#include "families/cpu/cpu_forward_plans.h"
#include "families/cpu/cpu_forward_schedule.h"

namespace heddle::cpu {

struct Step {
  enum class Kind : std::uint8_t { pack_keys, pack_values, tile };
  Kind kind;
  std::int32_t index;          // in Wave::k_units or Wave::v_units, or of the first tile in WaveOrder::tile_order
  std::int32_t group;          // tiles that read the same units, and the packing of these
  std::int64_t first_key = 0;  // of those that are packed
  std::int32_t tiles = 0;      // of a bundle
};

/// A wave's steps. Whoever takes them in their order waits for nothing but steps that were taken.
struct WaveOrder {
  std::vector<Step> steps;
  std::vector<std::int32_t> tile_order;            // Wave::tiles, as steps take them
  std::vector<std::int64_t> k_offsets, v_offsets;  // of the units, in bytes in the workspace
  std::vector<std::int32_t> k_groups, v_groups;    // that pack the units
  std::vector<std::int32_t> packing, tiles;        // by group: its steps
  std::int32_t slots = 0;                          // of memory, which groups take in turns; 0: each has its own
};

/// A step packs at most `pack_keys` keys. `pair_bytes`: the workspace's part that holds units.
WaveOrder order_of(const Wave& wave, int workers, std::int64_t pack_keys, std::int64_t pair_bytes,
                   const plan::CpuBundles& bundles = {});

/// Steps that wait for others. Threads share it.
class StepsLeft {
 public:
  /// Forgets the steps of the run before. Both outlive this one's.
  void begin(const Wave& wave, const WaveOrder& order);
  /// A step at work. It begins when the tile's keys and values are packed, or when the memory for packing is free. It
  /// ends in any case, even by an exception: other steps wait for it.
  class Turn {
   public:
    Turn(StepsLeft& left, const Step& step) : left_(left), step_(step) { left.wait_for_others(step); }
    ~Turn() { left_.end(step_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    StepsLeft& left_;
    const Step& step_;
  };

  /// Whether the step need not wait.
  bool is_ready(const Step& step) const;
  void end(const Step& step);

 private:
  void wait_for_others(const Step& step) const;

  const Wave* wave_ = nullptr;
  const WaveOrder* order_ = nullptr;
  base::Counters packing_, tiles_;  // by group
};

}  // namespace heddle::cpu
