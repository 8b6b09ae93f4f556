// The order of a wave's work: however fast workers are, no tile reads before the packing is done, nothing is packed
// over memory that a tile still reads, and one worker can always go on.
#include "families/cpu/cpu_forward_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "families/cpu/cpu_forward_plans.h"
#include "families/cpu/scheduled_problem.h"

namespace heddle::cpu::steps {
namespace {

constexpr std::int64_t kPackKeys = 128;

/// Workers that take steps in their order, and end them in any.
class Workers {
 public:
  Workers(const problem::AttentionProblem& problem, const Wave& wave, int workers, std::int64_t pair_bytes,
          std::uint64_t seed, const plan::CpuBundles& bundles = {})
      : problem_(problem),
        wave_(wave),
        order_(order_of(wave, workers, kPackKeys, pair_bytes, bundles)),
        workers_(workers),
        rng_(seed) {
    left_.begin(wave, order_);
  }

  void run() {
    std::size_t next = 0;
    while (next < order_.steps.size() || !taken_.empty()) {
      while (std::ssize(taken_) < workers_ && next < order_.steps.size()) taken_.push_back(&order_.steps[next++]);
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < taken_.size(); ++i) {
        if (left_.is_ready(*taken_[i])) ready.push_back(i);
      }
      ASSERT_FALSE(ready.empty()) << "all workers wait";
      const std::size_t which = ready[rng_() % ready.size()];
      work(*taken_[which]);
      left_.end(*taken_[which]);
      taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(which));
    }
    EXPECT_EQ(tiles_.size(), wave_.tiles.size());
  }

  const WaveOrder& order() const { return order_; }

 private:
  /// A unit's bytes in the workspace, as keys have them: who packed them last, and which of its keys.
  struct Packed {
    bool values = false;
    std::int32_t unit = -1;
    std::set<std::int64_t> first_keys;
  };

  void work(const Step& step) {
    if (step.kind == Step::Kind::tile) {
      for (std::int32_t i = step.index; i < step.index + step.tiles; ++i) {
        const std::int32_t index = order_.tile_order[static_cast<std::size_t>(i)];
        EXPECT_TRUE(tiles_.insert(index).second);
        const TileTask& tile = wave_.tiles[static_cast<std::size_t>(index)];
        if (tile.k_unit < 0) continue;
        expect_packed(false, tile.k_unit);
        expect_packed(true, tile.v_unit);
      }
      return;
    }
    const bool values = step.kind == Step::Kind::pack_values;
    const std::int64_t begin = offset_of(values, step.index), end = begin + bytes_of(values, step.index);
    // Whatever stood there is gone.
    std::erase_if(memory_, [&](const auto& other) {
      if (other.second.unit == step.index && other.second.values == values) return false;
      return other.first < end && begin < other.first + bytes_of(other.second.values, other.second.unit);
    });
    Packed& packed = memory_[begin];
    packed.values = values;
    packed.unit = step.index;
    packed.first_keys.insert(step.first_key);
  }

  void expect_packed(bool values, std::int32_t unit) {
    const std::int64_t keys = unit_at(values, unit).keys;
    if (keys == 0) return;
    const auto found = memory_.find(offset_of(values, unit));
    ASSERT_TRUE(found != memory_.end());
    EXPECT_EQ(found->second.unit, unit);
    EXPECT_EQ(found->second.values, values);
    EXPECT_EQ(std::ssize(found->second.first_keys), plan::round_up(keys, kPackKeys) / kPackKeys);
  }

  const PackedUnit& unit_at(bool values, std::int32_t unit) const {
    return (values ? wave_.v_units : wave_.k_units)[static_cast<std::size_t>(unit)];
  }
  std::int64_t offset_of(bool values, std::int32_t unit) const {
    return (values ? order_.v_offsets : order_.k_offsets)[static_cast<std::size_t>(unit)];
  }
  std::int64_t bytes_of(bool values, std::int32_t unit) const {
    const std::int64_t keys = unit_at(values, unit).keys;
    return values ? plan::cpu_forward_packed_v_bytes(problem_, keys) : plan::cpu_forward_packed_k_bytes(problem_, keys);
  }

  const problem::AttentionProblem& problem_;
  const Wave& wave_;
  WaveOrder order_;
  StepsLeft left_;
  int workers_;
  std::mt19937_64 rng_;
  std::vector<const Step*> taken_;
  std::set<std::int32_t> tiles_;
  std::map<std::int64_t, Packed> memory_;  // by offset
};

TEST(CpuForwardSteps, NoTileReadsWhatIsNotPacked) {
  const std::vector<Sequence> some = {{.q_len = 200, .kv_len = 300},
                                      {.q_len = 0, .kv_len = 40},
                                      {.q_len = 3, .kv_len = 5000},
                                      {.q_len = 149, .kv_len = 0},
                                      {.q_len = 500, .kv_len = 700}};
  const std::vector<Sequence> alike(3, {.q_len = 250, .kv_len = 400});
  for (const std::vector<Sequence>& sequences : {some, alike}) {
    for (const std::int64_t k_batch : {std::int64_t{1}, std::ssize(sequences)}) {
      const problem::AttentionProblem problem = problem_of(8, 4, sequences);
      const std::int64_t bytes = plan::cpu_forward_pair_bytes(problem, kTileRows);
      const Schedule schedule(problem, k_batch, std::ssize(sequences), kTileRows, bytes, nullptr);
      ASSERT_EQ(schedule.waves(), 1);
      const Wave wave = schedule.wave(0);
      for (const int workers : {1, 2, 3, 7, 40}) {
        for (std::uint64_t seed = 0; seed < 5; ++seed) {
          SCOPED_TRACE(workers);
          Workers(problem, wave, workers, bytes, seed).run();
          Workers(problem, wave, workers, bytes, seed, {.tiles = 3, .keys = 128, .least_keys = 300}).run();
        }
      }
    }
  }
}

/// Tiles that see keys enough are bundled, fewer of them to the end, and none with tiles of another pair.
TEST(CpuForwardSteps, BundlesBecomeSmallerToTheEnd) {
  const std::vector<Sequence> sequences = {
      {.q_len = 20 * kTileRows, .kv_len = 400}, {.q_len = 300, .kv_len = 100}, {.q_len = 2, .kv_len = 5000}};
  const problem::AttentionProblem problem = problem_of(2, 2, sequences);
  const std::int64_t bytes = plan::cpu_forward_pair_bytes(problem, kTileRows);
  const Wave wave = Schedule(problem, 3, 3, kTileRows, bytes, nullptr).wave(0);
  const WaveOrder order = order_of(wave, 2, kPackKeys, bytes, {.tiles = 5, .keys = 128, .least_keys = 400});
  std::int32_t most = 0, next = 0;
  for (const Step& step : order.steps) {
    if (step.kind != Step::Kind::tile) continue;
    EXPECT_EQ(step.index, next);
    next += step.tiles;
    most = std::max(most, step.tiles);
    std::set<std::int32_t> units;
    for (std::int32_t i = step.index; i < next; ++i) {
      const TileTask& tile = wave.tiles[static_cast<std::size_t>(order.tile_order[static_cast<std::size_t>(i)])];
      units.insert(tile.k_unit);
      EXPECT_TRUE(step.tiles == 1 || tile.sequence == 0);
    }
    EXPECT_EQ(units.size(), 1U);
  }
  EXPECT_EQ(next, std::ssize(wave.tiles));
  EXPECT_EQ(most, 5);
  EXPECT_EQ(order.steps.back().tiles, 1);
}

/// A pair without keys packs nothing, so it does not wait for those that had its memory before; the next one must.
TEST(CpuForwardSteps, PairsWithoutKeysHideNobody) {
  std::mt19937_64 rng(1);
  const auto up_to = [&](std::uint64_t most) { return static_cast<std::int64_t>(rng() % (most + 1)); };
  int shared = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<Sequence> sequences(5);
    for (Sequence& sequence : sequences) {
      sequence.q_len = 1 + up_to(100);
      sequence.kv_len = rng() % 3 == 0 ? 0 : 1 + up_to(80);
    }
    problem::AttentionProblem problem = problem_of(3, 3, sequences);
    problem.packed = true;
    const std::int64_t bytes = plan::cpu_forward_pair_bytes(problem, kTileRows);
    const Schedule schedule(problem, 1, 1, kTileRows, bytes, nullptr);
    for (std::int64_t i = 0; i < schedule.waves(); ++i) {
      const Wave wave = schedule.wave(i);
      Workers workers(problem, wave, 2, bytes, seed);
      shared += workers.order().slots > 0 ? 1 : 0;
      workers.run();
    }
  }
  EXPECT_GT(shared, 50);
}

TEST(CpuForwardSteps, PairsShareAsMuchMemoryAsIsAtWork) {
  const problem::AttentionProblem problem = problem_of(8, 8, {{.q_len = 480, .kv_len = 512}});
  const std::int64_t bytes = plan::cpu_forward_pair_bytes(problem, kTileRows);
  const Schedule schedule(problem, 1, 1, kTileRows, bytes, nullptr);
  const Wave wave = schedule.wave(0);
  const auto order = [&](int workers) { return order_of(wave, workers, kPackKeys, bytes); };
  EXPECT_EQ(order(1).slots, 1);
  EXPECT_EQ(order(2).slots, 2);
  EXPECT_EQ(order(16).slots, 3);  // 10 tiles a pair: the next one is packed ahead
  EXPECT_EQ(order(1).k_offsets, std::vector<std::int64_t>(8, 0));
  // One worker packs each pair before its tiles.
  const std::vector<Step> steps = order(1).steps;
  for (std::size_t i = 1; i < steps.size(); ++i) EXPECT_GE(steps[i].group, steps[i - 1].group);
  EXPECT_EQ(order_of(wave, 2, kPackKeys, bytes / 8).slots, 0) << "memory for one pair";
}

}  // namespace
}  // namespace heddle::cpu::steps
