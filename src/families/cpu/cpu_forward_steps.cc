#include "families/cpu/cpu_forward_steps.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

namespace heddle::cpu {
namespace {

/// Looks at a unit before a thread gives its processor away: some 10 us, a tenth of what packing takes.
constexpr int kSpins = 1000;

/// Tiles that read the same units, the longest first.
struct Group {
  std::int32_t k_unit, v_unit;
  std::vector<std::int32_t> tiles;
};

/// In the order of their longest tiles; those that read keys in place are one group.
std::vector<Group> groups_of(const Wave& wave) {
  std::vector<Group> groups;
  std::vector<std::int32_t> by_units(wave.tiles.size());
  std::iota(by_units.begin(), by_units.end(), 0);
  const auto units_of = [&](std::int32_t i) {
    const TileTask& tile = wave.tiles[static_cast<std::size_t>(i)];
    return std::pair(tile.k_unit, tile.v_unit);
  };
  std::ranges::stable_sort(by_units, std::less<>(), units_of);
  for (const std::int32_t i : by_units) {
    const auto [k_unit, v_unit] = units_of(i);
    if (groups.empty() || groups.back().k_unit != k_unit || groups.back().v_unit != v_unit) {
      groups.push_back({k_unit, v_unit, {}});
    }
    groups.back().tiles.push_back(i);
  }
  std::ranges::stable_sort(groups, std::greater<>(), [&](const Group& group) {
    return wave.tiles[static_cast<std::size_t>(group.tiles.front())].cost;
  });
  return groups;
}

/// Whether a tile sees keys enough to be worth a bundle.
bool joins_bundles(const TileTask& tile, const plan::CpuBundles& bundles) {
  return tile.k_unit >= 0 && bundles.tiles > 1 && tile.cost >= bundles.least_keys * tile.rows * tile.heads;
}

/// Steps of a group's tiles. Bundles become smaller to the end of the wave, so that all workers end at about the same
/// time.
void add_tiles(const Wave& wave, const std::vector<std::int32_t>& tiles, std::int32_t group, int workers,
               const plan::CpuBundles& bundles, WaveOrder& order) {
  const auto joins = [&](std::size_t i) {
    return joins_bundles(wave.tiles[static_cast<std::size_t>(tiles[i])], bundles);
  };
  for (std::size_t i = 0; i < tiles.size();) {
    const std::int64_t left = std::ssize(wave.tiles) - std::ssize(order.tile_order);
    const auto most = static_cast<std::size_t>(std::clamp<std::int64_t>(left / (2 * workers), 1, bundles.tiles));
    std::size_t end = i + 1;
    while (joins(i) && end < tiles.size() && end < i + most && joins(end)) ++end;
    order.steps.push_back({.kind = Step::Kind::tile,
                           .index = static_cast<std::int32_t>(order.tile_order.size()),
                           .group = group,
                           .tiles = static_cast<std::int32_t>(end - i)});
    for (; i < end; ++i) order.tile_order.push_back(tiles[i]);
  }
}

/// Gives groups slots of memory in turns, if each has units of its own and the slots find room.
void share_memory(const Wave& wave, const std::vector<Group>& groups, std::int64_t pair_bytes, WaveOrder& order,
                  std::int64_t slots) {
  const std::size_t count = groups.size();
  if (slots >= std::ssize(groups) || !wave.partials.empty() || wave.k_units.size() != count ||
      wave.v_units.size() != count)
    return;
  if (std::ranges::any_of(groups, [](const Group& group) { return group.k_unit != group.v_unit; })) return;
  // Units stand one behind the other: keys, then values of a pair.
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t end = i + 1 < count ? wave.k_units[i + 1].offset : wave.bytes;
    if (wave.v_units[i].offset < wave.k_units[i].offset || wave.v_units[i].offset > end) return;
    largest = std::max(largest, end - wave.k_units[i].offset);
  }
  if (slots * largest > pair_bytes) return;
  order.slots = static_cast<std::int32_t>(slots);
  for (std::size_t g = 0; g < count; ++g) {
    const auto unit = static_cast<std::size_t>(groups[g].k_unit);
    const std::int64_t keys = wave.k_units[unit].offset, values = wave.v_units[unit].offset;
    order.k_offsets[unit] = static_cast<std::int64_t>(g) % slots * largest;
    order.v_offsets[unit] = order.k_offsets[unit] + (values - keys);
  }
}

}  // namespace

WaveOrder order_of(const Wave& wave, int workers, std::int64_t pack_keys, std::int64_t pair_bytes,
                   const plan::CpuBundles& bundles) {
  const std::vector<Group> groups = groups_of(wave);
  WaveOrder order;
  order.packing.resize(groups.size());
  order.tiles.resize(groups.size());
  for (const PackedUnit& unit : wave.k_units) order.k_offsets.push_back(unit.offset);
  for (const PackedUnit& unit : wave.v_units) order.v_offsets.push_back(unit.offset);
  order.k_groups.assign(wave.k_units.size(), -1);
  order.v_groups.assign(wave.v_units.size(), -1);
  const auto pack = [&](Step::Kind kind, std::int32_t unit, const std::vector<PackedUnit>& units,
                        std::vector<std::int32_t>& group_of, std::int32_t group) {
    const auto index = static_cast<std::size_t>(unit);
    if (unit < 0 || group_of[index] >= 0) return;
    group_of[index] = group;
    for (std::int64_t first = 0; first < units[index].keys; first += pack_keys) {
      order.steps.push_back({kind, unit, group, first});
      ++order.packing[static_cast<std::size_t>(group)];
    }
  };
  // Packs enough groups ahead of the tiles to keep the other workers busy.
  std::size_t packed = 0, most_ahead = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::int64_t ready = 0;  // tiles
    for (std::size_t j = i; j < groups.size() && (j == i || ready < workers - 1); ++j) {
      ready += std::ssize(groups[j].tiles);
      if (j < packed) continue;
      pack(Step::Kind::pack_keys, groups[j].k_unit, wave.k_units, order.k_groups, static_cast<std::int32_t>(j));
      pack(Step::Kind::pack_values, groups[j].v_unit, wave.v_units, order.v_groups, static_cast<std::int32_t>(j));
      packed = j + 1;
      most_ahead = std::max(most_ahead, j - i);
    }
    const std::size_t first = order.steps.size();
    add_tiles(wave, groups[i].tiles, static_cast<std::int32_t>(i), workers, bundles, order);
    order.tiles[i] = static_cast<std::int32_t>(order.steps.size() - first);
  }
  // One more than are ahead and at work, so that packing seldom waits for a tile of the group before.
  share_memory(wave, groups, pair_bytes, order, static_cast<std::int64_t>(most_ahead) + (workers > 1 ? 2 : 1));
  return order;
}

void StepsLeft::begin(const Wave& wave, const WaveOrder& order) {
  wave_ = &wave, order_ = &order;
  packing_.clear(order.packing.size());
  tiles_.clear(order.tiles.size());
  for (std::size_t i = 0; i < order.packing.size(); ++i) packing_[i] = order.packing[i];
  for (std::size_t i = 0; i < order.tiles.size(); ++i) tiles_[i] = order.tiles[i];
}

bool StepsLeft::is_ready(const Step& step) const {
  const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
  const auto is_done = [](const std::atomic<std::int32_t>& left) { return left.load(std::memory_order_acquire) == 0; };
  if (step.kind == Step::Kind::tile) {
    const TileTask& tile = wave_->tiles[at(order_->tile_order[at(step.index)])];
    return tile.k_unit < 0 || (is_done(packing_[at(order_->k_groups[at(tile.k_unit)])]) &&
                               is_done(packing_[at(order_->v_groups[at(tile.v_unit)])]));
  }
  if (order_->slots == 0) return true;
  // A group that packs has waited for those before it in the slot; one without keys has not.
  for (std::int32_t group = step.group - order_->slots; group >= 0; group -= order_->slots) {
    if (!is_done(tiles_[at(group)])) return false;
    if (order_->packing[at(group)] > 0) break;
  }
  return true;
}

void StepsLeft::wait_for_others(const Step& step) const {
  for (int looks = 0; !is_ready(step); ++looks) {
    if (looks >= kSpins) std::this_thread::yield();
  }
}

void StepsLeft::end(const Step& step) {
  auto& left = step.kind == Step::Kind::tile ? tiles_ : packing_;
  left[static_cast<std::size_t>(step.group)].fetch_sub(1, std::memory_order_release);
}

}  // namespace heddle::cpu
