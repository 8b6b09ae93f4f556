// With lengths on the device the host lists tiles for the longest sequences, and the device cuts each to what its
// sequence has: held against the host's own lists for the same lengths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "families/forward_sm90/forward_sm90.h"
#include "mask/random_mask.h"
#include "plan/hopper.h"
#include "shared/sequences.h"

namespace heddle::test {
namespace {

using plan::TileSchedule;
using shared::ForwardSm90Config;
using shared::WorkItem;

ForwardSm90Config config_of(int warpgroups, int kv_block, bool masked, bool descending, int packed) {
  return {.qk_dim = 128,
          .v_dim = 128,
          .warpgroups = warpgroups,
          .kv_block = kv_block,
          .stages = 2,
          .q_buffers = 1,
          .o_panels = 1,
          .f16 = false,
          .lse = true,
          .masked = masked,
          .descending = descending,
          .by_sequence = true,
          .packed_queries = packed};
}

int blocks(std::int64_t length, std::int64_t block) { return static_cast<int>((length + block - 1) / block); }

/// A step of a tile: the number of its block of keys, and its flags.
struct Step {
  int block, flags;
};

/// Walks an item as the producer does: its own run, then those of the list.
std::vector<Step> steps_of(const WorkItem& item, const std::vector<shared::KvRun>& runs) {
  std::vector<Step> steps;
  shared::KvRun run = item.run;
  for (int next = item.first_run + 1, at = run.begin; std::ssize(steps) < item.steps; ++at) {
    if (at == run.end) {
      run = runs.at(static_cast<std::size_t>(next++));
      at = run.begin;
    }
    steps.push_back({at, at + 1 == run.end ? run.last_flags : run.flags});
  }
  return steps;
}

/// '.' not seen, '#' full, '+' partial: by one warpgroup, of each block of keys in ascending order. `last`: where tiles
/// descend, the block that is number 0; else -1.
std::string classes_of(const std::vector<Step>& steps, int warpgroup, int count, int last) {
  std::string classes(static_cast<std::size_t>(count), '.');
  for (const Step& step : steps) {
    const int block = last < 0 ? step.block : last - step.block;
    EXPECT_GE(block, 0);
    if ((step.flags >> warpgroup & shared::kStepAttends) == 0) continue;
    classes.at(static_cast<std::size_t>(block)) = (step.flags & shared::kStepPartial << warpgroup) != 0 ? '+' : '#';
  }
  return classes;
}

void expect_steps_foretell(const WorkItem& item, const std::vector<Step>& steps, int warpgroups) {
  int before = item.before;
  const int everyone = (1 << warpgroups) - 1;
  for (const Step& step : steps) {
    if ((step.flags & everyone) != everyone) {
      EXPECT_NE(before & shared::kStepNextUneven, 0);
    }
    before = step.flags;
  }
}

/// The longest sequences, the lists for them, and what cuts them.
struct Longest {
  TileSchedule schedule;
  std::vector<unsigned> steps_before = {0};
  shared::SequencesParams params{};

  Longest(const problem::AttentionProblem& problem, const ForwardSm90Config& config, const BlockMask* mask)
      : schedule(plan::forward_sm90_schedule(problem, config, mask, h200())) {
    for (const shared::KvRun& run : schedule.runs) {
      steps_before.push_back(steps_before.back() + static_cast<unsigned>(run.end - run.begin));
    }
    params.max_q_len = static_cast<int>(problem.q_rows);
    params.max_kv_len = static_cast<int>(problem.kv_rows);
    params.runs = schedule.runs.data();
    params.steps_before = steps_before.data();
    params.kv_block = config.kv_block;
    params.tile_queries = config.queries();
    params.warpgroups = config.warpgroups;
    params.descending = config.descending;
  }
};

using TileKey = std::tuple<int, int, int>;  // batch, head, q_tile

std::map<TileKey, const WorkItem*> by_tile(const TileSchedule& schedule) {
  std::map<TileKey, const WorkItem*> items;
  for (const WorkItem& item : schedule.items) {
    EXPECT_TRUE(items.emplace(TileKey{item.batch, item.head, item.q_tile}, &item).second) << "a tile twice";
  }
  return items;
}

/// Expects the cut tile to attend every block that a warpgroup attends, and to have full blocks full.
void expect_covers(const std::string& cut, const std::string& own, bool exact) {
  ASSERT_EQ(cut.size(), own.size());
  if (exact) {
    EXPECT_EQ(cut, own);
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_FALSE(cut[i] == '.' && own[i] != '.') << "block " << i << ": " << cut << " for " << own;
    EXPECT_FALSE(cut[i] == '#' && own[i] != '#') << "block " << i << ": " << cut << " for " << own;
  }
}

/// `lengths`: that are not larger. `exact`: no mask.
void expect_cut(const Longest& longest, const problem::AttentionProblem& lengths, const ForwardSm90Config& config,
                const BlockMask* mask, bool exact) {
  const TileSchedule own = plan::forward_sm90_schedule(lengths, config, mask, h200());
  const std::map<TileKey, const WorkItem*> items = by_tile(own);
  const auto all = by_tile(longest.schedule);
  EXPECT_EQ(std::ssize(all), std::ssize(longest.schedule.items));
  EXPECT_TRUE(longest.schedule.fills.empty());
  for (const auto& [key, item] : items) EXPECT_TRUE(all.contains(key)) << "a tile is missing";
  for (const auto& [key, item] : all) {
    const Sequence& sequence = lengths.sequences.at(static_cast<std::size_t>(item->batch));
    const int first = item->q_tile * config.queries();
    if (first >= sequence.q_len) continue;
    const WorkItem cut = shared::cut_item(longest.params, *item, static_cast<int>(sequence.kv_len));
    ASSERT_GE(cut.steps, 1);
    const std::vector<Step> steps = steps_of(cut, longest.schedule.runs);
    expect_steps_foretell(cut, steps, config.warpgroups);
    const int count = blocks(sequence.kv_len, config.kv_block);
    const int last = blocks(longest.params.max_kv_len, config.kv_block) - 1;
    const auto found = items.find(key);
    for (int w = 0; w < config.warpgroups; ++w) {
      if (!config.packs() && first + 64 * w >= sequence.q_len) continue;
      std::string expected(static_cast<std::size_t>(count), '.');
      if (found != items.end()) {
        expected = classes_of(steps_of(*found->second, own.runs), w, count, config.descending ? count - 1 : -1);
      }
      expect_covers(classes_of(steps, w, count, config.descending ? last : -1), expected, exact);
    }
  }
}

TEST(CutItems, AreWhatTheHostWouldHaveListed) {
  constexpr std::array<std::int64_t, 6> lengths{1, 63, 64, 130, 257, 449};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomMasks random(seed);
    const auto below = [&](int bound) { return random.below(bound); };
    const auto length = [&] { return lengths[static_cast<std::size_t>(below(lengths.size()))]; };
    const std::int64_t kv_heads = 1 + below(2);
    HopperCall call = {.batch = 1 + below(4),
                       .q_heads = kv_heads * (1 + below(static_cast<int>(4 / kv_heads))),
                       .kv_heads = kv_heads,
                       .q_rows = length(),
                       .kv_rows = length()};
    const bool masked = below(4) > 0;
    problem::AttentionProblem most = call.problem();
    most.device_lengths = true;
    do {
      if (masked) call.mask = random.draw();
    } while (problem::reads_device_lengths(most, call.mask));
    call.options.bindings = random.bindings();
    constexpr std::array<int, 6> packed{0, 0, 0, 16, 32, 64};
    const ForwardSm90Config config = config_of(1 + below(3), 16 * (1 + below(8)), masked, below(2) == 0,
                                               packed[static_cast<std::size_t>(below(packed.size()))]);
    const BlockSize block = {64 * (1 + below(2)), config.kv_block * (1 + below(3))};
    most = call.problem();
    most.device_lengths = true;
    const auto rows = masked ? call.rows_of(block) : nullptr;
    const Longest longest(most, config, rows.get());
    for (int n = 0; n < 4; ++n) {
      std::vector<std::int64_t> q, kv;
      for (std::int64_t b = 0; b < call.batch; ++b) {
        q.push_back(below(3) == 0 ? call.q_rows : below(static_cast<int>(call.q_rows) + 1));
        kv.push_back(below(3) == 0 ? call.kv_rows : below(static_cast<int>(call.kv_rows) + 1));
      }
      HopperCall shorter = call;
      shorter.options.q_lengths = ConstTensorView(q.data(), DType::i64, {call.batch});
      shorter.options.kv_lengths = ConstTensorView(kv.data(), DType::i64, {call.batch});
      const auto own_rows = masked ? shorter.rows_of(block) : nullptr;
      expect_cut(longest, shorter.problem(), config, own_rows.get(), !masked);
    }
  }
}

// One item by hand: two runs, cut in either and between.
TEST(CutItems, CutsInsideAndBetweenRuns) {
  const std::array<shared::KvRun, 2> runs = {{{1, 3, 1, 1}, {4, 8, 1 | shared::kStepPartial, 1}}};
  const std::array<unsigned, 3> before = {0, 2, 6};
  shared::SequencesParams params{};
  params.max_kv_len = 8 * 16;
  params.kv_block = 16;
  params.warpgroups = 1;
  params.runs = runs.data();
  params.steps_before = before.data();
  WorkItem item{};
  item.runs = 2;
  item.steps = 6;
  item.run = runs[0];
  const std::array<int, 9> ascending = {1, 1, 1, 2, 2, 3, 4, 5, 6}, descending = {1, 1, 2, 3, 4, 4, 5, 6, 6};
  for (int here = 0; here <= 8; ++here) {
    params.descending = 0;
    WorkItem cut = shared::cut_item(params, item, here * 16);
    EXPECT_EQ(cut.steps, ascending[static_cast<std::size_t>(here)]) << here;
    EXPECT_EQ(cut.run.flags, here < 2 ? 0 : 1) << here;
    EXPECT_EQ(cut.run.begin, here < 2 ? 0 : 1) << here;
    EXPECT_EQ(cut.before != 0, here < 2) << here;
    params.descending = 1;
    cut = shared::cut_item(params, item, here * 16);
    EXPECT_EQ(cut.steps, descending[static_cast<std::size_t>(here)]) << here;
    EXPECT_EQ(cut.first_run, here == 0 ? 2 : here <= 5 ? 1 : 0) << here;
    EXPECT_EQ(cut.run.begin, here == 0 ? 7 : std::max(8 - here, here <= 4 ? 4 : here == 5 ? 4 : 1)) << here;
  }
  EXPECT_EQ(shared::cut_item(params, item, 1).steps, 1) << "a block of one key";
}

}  // namespace
}  // namespace heddle::test
