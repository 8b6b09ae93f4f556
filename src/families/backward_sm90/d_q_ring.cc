#include "families/backward_sm90/d_q_ring.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "mask/shape.h"

namespace heddle::plan {
namespace {

using mask::block_count;
using problem::AttentionProblem;
using shared::BackwardSm90Config;

constexpr std::int64_t kTilesAtOneTime = 132;
// Predicted times, in eighths of a step: of a step, of what a tile does besides, of a unit's conversion by consumers.
constexpr std::int64_t kStepTime = 8, kTileTime = 20, kUnitTime = 4;
// Sections are bundled until they have this many tiles: within a bundle long tiles come first.
constexpr std::int64_t kTilesOfBundle = 32;
// Tiles of the last bundle. With fewer, a run ends with a long tile that began late.
constexpr std::int64_t kTilesOfLastBundle = 128;
// A tile converts at most 3/2 of its share of all units, so that what waits for conversion becomes less.
constexpr std::int64_t kShareAbove = 3, kShareBelow = 2;
constexpr std::int64_t kLastUnits = 2;  // of a tile without keys, at least

std::int64_t blocks_of(const AttentionProblem& problem, const Sequence& sequence) {
  const std::int64_t rows = problem.packed ? sequence.q_len : problem.q_rows;
  return block_count(rows, shared::kBlockRows);
}

struct Section {
  int first_block = 0, head = 0;
  std::int64_t units = 0, adds = 0;  // parts that its tiles add
  std::int64_t tiles = 0;            // with keys, that are not in the list yet
  std::int64_t end = 0;              // predicted, of those that are
  std::int64_t place = -1;           // among those that have slots in turns and parts added to them; else below 0
};

std::vector<Section> sections_of(const AttentionProblem& problem, const BackwardSm90Config& config,
                                 const BackwardSchedule& schedule, std::int64_t in_turns) {
  std::vector<Section> sections;
  for (int batch = 0; batch < static_cast<int>(problem.batch); ++batch) {
    const auto of_batch = static_cast<std::size_t>(batch);
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      sections.push_back({.first_block = schedule.first_blocks[of_batch],
                          .head = static_cast<int>(head * problem.group()),
                          .units = blocks_of(problem, problem.sequences[of_batch]) * problem.group()});
    }
  }
  for (const shared::BackwardItem& item : schedule.items) {
    Section& section = sections[static_cast<std::size_t>(item.batch * problem.kv_heads + item.kv_head)];
    section.adds += item.steps * config.d_q_parts();
    ++section.tiles;
  }
  std::int64_t places = 0;
  for (std::int64_t s = 0; s < in_turns; ++s) {
    Section& section = sections[static_cast<std::size_t>(s)];
    if (section.adds > 0) section.place = places++;
  }
  return sections;
}

/// When CTAs that draw tiles begin them, as predicted.
class DrawnTiles {
 public:
  std::int64_t begin() const { return free_.top(); }
  /// The tile that begins next; returns its end.
  std::int64_t run(std::int64_t time) {
    const std::int64_t end = begin() + time;
    free_.pop();
    free_.push(end);
    return end;
  }

 private:
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> free_{
      {}, std::vector<std::int64_t>(kTilesAtOneTime)};
};

/// The list of tiles as it grows, each with the units that it converts, which are dealt in the order of sections.
class Dealer {
 public:
  Dealer(const DqRingShape& shape, std::vector<Section> sections) : shape_(shape), sections_(std::move(sections)) {
    for (std::size_t s = 0; s < sections_.size(); ++s) {
      if (sections_[s].place >= 0) in_ring_.push_back(static_cast<std::int64_t>(s));
    }
    pass_empty();
  }

  /// Adds a tile of section `number`. It converts up to `most` units of the next section, if that is predicted to have
  /// ended.
  void add(const shared::BackwardItem& item, std::int64_t number, std::int64_t most) {
    Section& section = sections_[static_cast<std::size_t>(number)];
    shared::DqTurn turn{};
    turn.section = static_cast<int>(number);
    turn.first_unit = static_cast<int>(slot_unit(number)) - section.head;
    turn.awaited = static_cast<int>(before(number));
    if (turn.awaited >= 0) {
      turn.awaited_units = static_cast<int>(sections_[static_cast<std::size_t>(turn.awaited)].units);
    }
    items.push_back(item);
    turns.push_back(turn);
    if (any_left()) {
      const Section& next = sections_[static_cast<std::size_t>(section_)];
      if (next.tiles == 0 && next.end <= drawn_.begin()) deal(most);
    }
    const std::int64_t end = drawn_.run(kTileTime + item.steps * kStepTime + turns.back().count * kUnitTime);
    section.end = std::max(section.end, end);
    --section.tiles;
  }
  /// Adds a tile that has no keys. It waits until the next section has ended.
  void add_without_keys(std::int64_t most) {
    shared::BackwardItem item{};
    item.kv_tile = -1;
    shared::DqTurn turn{};
    turn.section = turn.awaited = -1;
    items.push_back(item);
    turns.push_back(turn);
    const std::int64_t section_end = sections_[static_cast<std::size_t>(section_)].end;
    deal(most);
    drawn_.run(std::max<std::int64_t>(section_end - drawn_.begin(), 0) + turns.back().count * kUnitTime);
  }
  bool any_left() const { return section_ < shape_.sections; }
  /// Units of all sections that are left.
  std::int64_t left() const {
    std::int64_t units = -unit_;
    for (auto s = static_cast<std::size_t>(section_); s < sections_.size(); ++s) units += sections_[s].units;
    return units;
  }
  /// The first section that has units left.
  std::int64_t section() const { return section_; }

  /// The section that has the slot of section `number` before it; below 0: none.
  std::int64_t before(std::int64_t number) const {
    const std::int64_t place = sections_[static_cast<std::size_t>(number)].place - shape_.slots;
    return place < 0 ? -1 : in_ring_[static_cast<std::size_t>(place)];
  }

  std::vector<shared::BackwardItem> items;
  std::vector<shared::DqTurn> turns;

 private:
  /// Gives the last tile up to `most` units of the next section.
  void deal(std::int64_t most) {
    const Section& section = sections_[static_cast<std::size_t>(section_)];
    shared::DqTurn& turn = turns.back();
    turn.converted = static_cast<int>(section_);
    turn.adds = static_cast<int>(section.adds);
    turn.first = static_cast<int>(unit_);
    turn.count = static_cast<int>(std::min(most, section.units - unit_));
    turn.slot_unit = static_cast<int>(slot_unit(section_));
    turn.block = section.first_block;
    turn.head = section.head;
    turn.clears = section.place >= 0 && section.place + shape_.slots < std::ssize(in_ring_) ? 1 : 0;
    unit_ += turn.count;
    pass_empty();
  }
  /// Where the slot of section `number` begins.
  std::int64_t slot_unit(std::int64_t number) const {
    if (number >= shape_.in_turns()) return (shape_.slots + number - shape_.in_turns()) * shape_.units;
    const std::int64_t place = sections_[static_cast<std::size_t>(number)].place;
    return std::max<std::int64_t>(place, 0) % shape_.slots * shape_.units;
  }
  void pass_empty() {
    while (any_left() && unit_ == sections_[static_cast<std::size_t>(section_)].units) {
      ++section_;
      unit_ = 0;
    }
  }

  const DqRingShape& shape_;
  std::vector<Section> sections_;
  std::vector<std::int64_t> in_ring_;    // sections by their place
  std::int64_t section_ = 0, unit_ = 0;  // the next that is dealt
  DrawnTiles drawn_;
};

/// Tiles that pass between a section's last one and the next use of its slot: those that end it, and those that convert
/// it. Measured on an H100, with 64 columns on an H200.
std::int64_t tiles_behind(const BackwardSm90Config& config, std::int64_t tiles_of_section) {
  return config.columns == 128 && tiles_of_section <= 8 ? 200 : 2 * kTilesAtOneTime;
}

/// Sections of up to so many rows have a ring. On an H200 those of more were slower with one, or were not measured
/// (docs/notes/hopper_backward.md).
std::int64_t most_rows_of_section(const AttentionProblem& problem, const BackwardSm90Config& config) {
  if (config.columns == 128) return config.masked ? 16384 : 2048;
  return problem.group() > 1 ? 8192 : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

bool takes_d_q_ring(const AttentionProblem& problem, const BackwardSm90Config& config) {
  return config.d_q && !config.wide && !problem.device_lengths && problem.q_heads > 0 &&
         count_row_blocks(problem) > 0 && count_tiles_of(problem, TileRows::keys, config.tile()) > 0;
}

bool prefers_d_q_ring(const AttentionProblem& problem, const BackwardSm90Config& config) {
  // If positions are looked up, the compiler has no registers for both.
  const bool placed = config.placed_queries || config.placed_keys;
  if (!takes_d_q_ring(problem, config) || config.ordered || placed) return false;
  const std::int64_t most = most_rows_of_section(problem, config);
  return std::ranges::all_of(problem.sequences, [&](const Sequence& sequence) {
    return blocks_of(problem, sequence) * problem.group() * shared::kStepQueries <= most;
  });
}

DqRingShape d_q_ring_shape(const AttentionProblem& problem, const BackwardSm90Config& config) {
  DqRingShape shape;
  if (!config.ring) return shape;
  shape.sections = problem.batch * problem.kv_heads;
  for (const Sequence& sequence : problem.sequences) {
    shape.units = std::max(shape.units, blocks_of(problem, sequence) * problem.group());
  }
  const std::int64_t tiles =
      std::max<std::int64_t>(1, count_tiles_of(problem, TileRows::keys, config.tile()) / shape.sections);
  shape.bundle = std::max<std::int64_t>(1, kTilesOfBundle / tiles);
  shape.last = std::min(shape.sections, block_count(kTilesOfLastBundle, tiles));
  const std::int64_t bundles = 1 + block_count(tiles + tiles_behind(config, tiles), shape.bundle * tiles);
  shape.slots = std::min(shape.in_turns(), bundles * shape.bundle);
  return shape;
}

std::vector<shared::DqTurn> d_q_turns(const AttentionProblem& problem, const BackwardSm90Config& config,
                                      const DqRingShape& shape, BackwardSchedule& schedule) {
  Dealer dealer(shape, sections_of(problem, config, schedule, shape.in_turns()));
  const std::int64_t of_tile = block_count(kShareAbove * shape.sections * shape.units,
                                           kShareBelow * static_cast<std::int64_t>(schedule.items.size()));
  for (const shared::BackwardItem& item : schedule.items) {
    const std::int64_t section = item.batch * problem.kv_heads + item.kv_head;
    // Tiles before this one must convert the section that had its slot.
    while (dealer.section() <= dealer.before(section)) {
      dealer.add_without_keys(shape.units);
    }
    dealer.add(item, section, of_tile);
  }
  const std::int64_t of_last = std::max(kLastUnits, block_count(dealer.left(), kTilesAtOneTime));
  while (dealer.any_left()) {
    dealer.add_without_keys(of_last);
  }
  schedule.items = std::move(dealer.items);
  return std::move(dealer.turns);
}

}  // namespace heddle::plan
