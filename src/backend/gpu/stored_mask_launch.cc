#include "backend/gpu/stored_mask_launch.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/gpu/set_mod_values.h"

namespace heddle::gpu {
namespace {

// The most CTAs for the blocks of a run: enough to fill a GPU, yet few if one long run stands beside many short ones.
constexpr int kMostShares = 64;

}  // namespace

std::string stored_mask_text(const Expr& mask, const device_text::ModLayout& layout) {
  return fmt::format(
      "#include \"shared/stored_mask.h\"\n\n"
      "constexpr bool kBySequence = {};\n\n{}\n"
      "#include \"around/stored_mask_kernel.cuh\"\n",
      layout.by_sequence, device_text::mod_text("mask", mask, layout, device_text::TakesScore::no));
}

StoredMask::StoredMask(const Gpu& gpu, int device, const shared::TileShape& tile, bool by_sequence,
                       const plan::StoredBlocks& blocks, const Expr& mask, const Bindings& bindings,
                       const Bindings& own, const shared::ModValues& mod)
    : partial_blocks_(blocks.partial) {
  device_text::ModLayout layout = device_text::layout_of({mask});
  layout.by_sequence = by_sequence;
  const std::unique_ptr<Program> program =
      gpu.load(device, gpu.source(device, "stored_mask", stored_mask_text(mask, layout)));
  if (blocks.runs.empty()) return;
  words_ = Memory(gpu.devices(), device, static_cast<std::size_t>(shared::stored_bytes(blocks.room, tile.warpgroups)));
  const Memory runs(gpu.devices(), device, blocks.runs.size() * sizeof(shared::StoredRun));
  gpu.devices().copy_and_wait(device, runs.data(), blocks.runs.data(), runs.bytes());

  shared::StoredMaskParams params = {.runs = static_cast<const shared::StoredRun*>(runs.data()),
                                     .words = static_cast<shared::MaskWords*>(words_.data()),
                                     .kv_block = tile.kv_block,
                                     .warpgroups = tile.warpgroups,
                                     .mod = mod};
  set_mod_values(layout, bindings, own, params.mod);
  const int longest = std::ranges::max(blocks.runs, {}, &shared::StoredRun::blocks).blocks;
  const Launch launch = {.ctas = static_cast<unsigned>(blocks.runs.size()),
                         .height = static_cast<unsigned>(std::min(longest, kMostShares)),
                         .threads = static_cast<unsigned>(tile.warpgroups * shared::kStoredThreads)};
  program->launch(program->function("store_mask"), launch, nullptr, &params, "launching store_mask");
  gpu.wait(device, "waiting for the bits of a mask");
}

}  // namespace heddle::gpu
