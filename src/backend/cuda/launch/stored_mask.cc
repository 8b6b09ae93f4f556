#include "backend/cuda/launch/stored_mask.h"

#include <algorithm>

#include "backend/cuda/emit/stored_mask.h"
#include "backend/gpu/mod_values.h"

namespace heddle::cuda {
namespace {

// CTAs for a run's blocks, at most so many: enough to fill a GPU, and few if one long run stands beside many short
// ones.
constexpr int kMostShares = 64;

}  // namespace

StoredMask::StoredMask(int device, const shared::TileShape& tile, bool by_sequence, const plan::StoredBlocks& blocks,
                       const Expr& mask, const Bindings& bindings, const Bindings& own, const shared::ModValues& mod)
    : partial_blocks_(blocks.partial) {
  device_text::ModLayout layout = device_text::layout_of({mask});
  layout.by_sequence = by_sequence;
  const std::shared_ptr<const jit::Cubin> cubin = jit::build(emit::stored_mask(mask, layout, architecture_of(device)));
  if (blocks.runs.empty()) return;
  const Module module(device, cubin->bytes, jit::compiler_number());
  words_ = DeviceMemory(device, static_cast<std::size_t>(shared::stored_bytes(blocks.room, tile.warpgroups)));
  const DeviceMemory runs(device, blocks.runs.size() * sizeof(shared::StoredRun));
  copy_and_wait(device, runs.data(), blocks.runs.data(), runs.bytes());

  shared::StoredMaskParams params = {.runs = static_cast<const shared::StoredRun*>(runs.data()),
                                     .words = static_cast<shared::MaskWords*>(words_.data()),
                                     .kv_block = tile.kv_block,
                                     .warpgroups = tile.warpgroups,
                                     .mod = mod};
  gpu::set_mod_values(layout, bindings, own, params.mod);
  const int longest = std::ranges::max(blocks.runs, {}, &shared::StoredRun::blocks).blocks;
  const ContextScope scope(device);
  const Launch launch = {.ctas = static_cast<unsigned>(blocks.runs.size()),
                         .height = static_cast<unsigned>(std::min(longest, kMostShares)),
                         .threads = static_cast<unsigned>(tile.warpgroups * shared::kStoredThreads)};
  void* parameters[] = {&params};
  launch_kernel(module.function("store_mask", 0), launch, nullptr, parameters, "launching store_mask");
  check(driver().StreamSynchronize(nullptr), "waiting for the bits of a mask");
}

}  // namespace heddle::cuda
