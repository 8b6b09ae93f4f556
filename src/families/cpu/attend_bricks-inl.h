// Attention over bricks: a tile, or the tiles of a bundle, by AMX. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_ATTEND_BRICKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_ATTEND_BRICKS_INL_H_
#undef HEDDLE_CPU_ATTEND_BRICKS_INL_H_
#else
#define HEDDLE_CPU_ATTEND_BRICKS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "families/cpu/brick_tile-inl.h"
#include "families/cpu/brick_tile_rows-inl.h"
#include "families/cpu/chunks-inl.h"
#include "families/cpu/cpu_forward-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// any_key: of each tile, false when there was no key.
template <class Registers>
HWY_NOINLINE void RunTogether(Registers& registers, const Bundle<float>& bundle, bool* any_key) {
  const std::size_t count = bundle.tiles.size();
  std::optional<BrickTile<Registers>> rows[plan::kMostBundle];
  for (std::size_t i = 0; i < count; ++i) rows[i].emplace(registers, bundle.tiles[i], bundle.buffers[i]).start();
  WalkTogether(
      count, bundle.keys, [&](std::size_t i) -> const ChunkWalk& { return rows[i]->walk(); },
      [&](std::size_t i, std::int64_t end) { rows[i]->run(end); });
  for (std::size_t i = 0; i < count; ++i) any_key[i] = rows[i]->finish();
}

template <class Registers>
HWY_NOINLINE bool RunAlone(Registers& registers, const Tile<float>& tile, const TileBuffers<float>& buffers) {
  BrickTile<Registers> rows(registers, tile, buffers);
  rows.start();
  rows.run(tile.key_end);
  return rows.finish();
}

}  // namespace detail

template <class Registers>
HEDDLE_AMX void AttendBricks(const Bundle<float>& bundle) {
  bool any_key[plan::kMostBundle];
  {
    Registers registers;
    if (bundle.tiles.size() == 1) {
      any_key[0] = detail::RunAlone(registers, bundle.tiles[0], bundle.buffers[0]);
    } else {
      detail::RunTogether(registers, bundle, any_key);
    }
  }
  for (std::size_t i = 0; i < bundle.tiles.size(); ++i) {
    const Tile<float>& tile = bundle.tiles[i];
    if (tile.partials.pieces > 1) {
      detail::StorePartials(tile, bundle.buffers[i], any_key[i]);
    } else {
      detail::Finish(tile, bundle.buffers[i], any_key[i], detail::ScaleBrickRows<Registers>());
    }
  }
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
