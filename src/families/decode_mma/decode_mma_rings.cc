#include "families/decode_mma/decode_mma_rings.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "families/decode_mma/shared/decode_mma_memory.h"

namespace heddle::plan {

using shared::ForwardMmaConfig;

std::vector<ForwardMmaConfig> decode_mma_rings(const ForwardMmaConfig& all, int wave_keys,
                                               std::int64_t shared_memory_bytes) {
  struct Fitting {
    ForwardMmaConfig config;
    int resident, under_way;  // CTAs of a multiprocessor; bytes that come while others are computed
  };
  std::vector<Fitting> fitting;
  for (const int waves : {8, 4, 2}) {
    if (all.row_waves > 1 && waves < 4) continue;  // too few to hide latencies
    for (const int stages : {5, 3, 2}) {
      if (stages > 3 && all.row_waves == 1) continue;
      ForwardMmaConfig config = all;
      config.key_waves = waves / all.row_waves;
      config.kv_block = config.key_waves * wave_keys;
      config.stages = stages;
      const int bytes = shared::decode_mma_memory(config).bytes;
      if (bytes > shared_memory_bytes) continue;
      const int resident = std::min(8 / waves, shared::resident_ctas(bytes, shared_memory_bytes));
      config.ctas = resident;
      fitting.push_back(
          {config, resident, resident * config.key_waves * (stages - 1) * shared::forward_mma_memory(config).stage});
    }
  }
  // Eight waves occupy a multiprocessor; then what is under way counts, up to what memory's latency takes.
  std::ranges::stable_sort(fitting, std::greater<>(), [](const Fitting& each) {
    constexpr int kEnough = 64 << 10;
    return std::tuple(std::min(each.under_way, kEnough), each.resident * each.config.waves(), each.config.waves());
  });
  std::vector<ForwardMmaConfig> configs;
  for (const Fitting& each : fitting) configs.push_back(each.config);
  return configs;
}

std::vector<ForwardMmaConfig> decode_mma_warpgroup_rings(ForwardMmaConfig config, Warpgroups warpgroups,
                                                         const device::CudaCaps& caps) {
  constexpr int kPanel = 64, kSharedValueColumns = 256;  // o has products of 128 columns for each of two warpgroups
  const bool shares = warpgroups == Warpgroups::one_ring;
  const bool fits = caps.major == 9 && !config.converts() && config.q_bytes == 16 && config.kv_bytes == 16 &&
                    config.qk_dim % kPanel == 0 && config.k_first % kPanel == 0 &&
                    config.v_dim % (shares ? kSharedValueColumns : kPanel) == 0;
  if (!fits) return {};
  config.fragments = shared::FragmentKind::warpgroup;
  config.row_fragments = 1;
  config.row_waves = 4;
  config.key_waves = 2;
  config.shared_queries = true;
  config.ctas = 1;
  if (shares) config.blocks = shared::StepBlocks::both_ways;
  const std::vector<int> block_keys = shares ? std::vector{64} : std::vector{128, 64};  // of both warpgroups
  std::vector<ForwardMmaConfig> configs;
  for (const int keys : block_keys) {
    config.kv_block = keys;
    for (config.stages = 4; config.stages > 1; config.stages -= shares ? 2 : 1) {
      if (shared::decode_mma_memory(config).bytes <= caps.shared_memory_bytes) configs.push_back(config);
    }
    if (!configs.empty()) break;
  }
  return configs;
}

}  // namespace heddle::plan
