#include "families/decode_mma/decode_mma_shared_keys.h"

#include <algorithm>

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "plan/access/tma_refuses.h"

namespace heddle::plan {

using shared::ForwardMmaConfig;

namespace {

constexpr int kPanel = 64, kWarpgroupRows = 64;
constexpr int kHopperBytes = 227 << 10;  // of shared memory

}  // namespace

ForwardMmaConfig shared_keys_config(const ForwardMmaConfig& own) {
  constexpr int kMostStages = 4;
  ForwardMmaConfig config = own;
  config.shared_tiles = shared::SharedTiles::alone;
  config.fragments = shared::FragmentKind::warpgroup;
  config.live_rows = shared::prefix_rows(own);
  config.row_fragments = 1;
  config.row_waves = config.live_rows > kWarpgroupRows ? 8 : 4;
  config.key_waves = 1;
  config.kv_block = shared::kPrefixStep;
  config.shared_queries = config.boxes = true;
  config.ctas = 1;
  // Rows end in the kernel of the own keys.
  config.lse = config.lse_rest = config.max_scores = config.sinks = false;
  config.o_type = shared::StorageType::same;
  config.o_bytes = 16;
  config.stages = kMostStages;
  while (config.stages > 2 && shared::decode_mma_memory(config).bytes > kHopperBytes) --config.stages;
  return config;
}

bool can_share_alone(const ForwardMmaConfig& own, const AttentionTensors& tensors, const device::CudaCaps& caps) {
  constexpr int kMostBoxes = 32, kBoxStep = 8;  // of a block; rows, after which the swizzle repeats
  const bool fits = caps.major == 9 && own.prefix_sequences > 1 && !own.converts() && own.q_bytes == 16 &&
                    own.kv_bytes == 16 && own.q_first == 0 && own.k_first == 0 && own.qk_dim % kPanel == 0 &&
                    own.v_dim % kPanel == 0 && own.page_rows % kBoxStep == 0;
  if (!fits || !tma_refuses(tensors.k).empty() || !tma_refuses(tensors.v).empty()) return false;
  const ForwardMmaConfig config = shared_keys_config(own);
  const int boxes = (own.qk_dim + own.v_dim) / kPanel * (config.kv_block / config.box_rows());
  return boxes <= kMostBoxes && shared::decode_mma_memory(config).bytes <= caps.shared_memory_bytes;
}

int shared_keys_gangs(const ForwardMmaConfig& own, int multiprocessors, int tiles) {
  return own.shares_elsewhere() ? std::max(1, multiprocessors / tiles) : 0;
}

}  // namespace heddle::plan
