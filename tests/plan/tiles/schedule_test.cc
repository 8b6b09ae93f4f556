// The lists that a launch of the Hopper family walks: every tile once, its runs those of the block mask, in an order
// that leaves the CTAs even.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"
#include "mask/random_mask.h"
#include "plan/hopper.h"
#include "plan/tiles/packed_heads.h"

namespace heddle::test {
namespace {

using plan::TileSchedule;
using shared::ForwardSm90Config;
using TileKey = std::tuple<int, int, int>;  // batch, head, q_tile
using BoxKey = std::tuple<int, int, int>;   // batch, head, queries / 64: a warpgroup's share of a tile

ForwardSm90Config config_of(int dim, int warpgroups, int kv_block, bool masked = false) {
  return {.qk_dim = dim,
          .v_dim = dim,
          .warpgroups = warpgroups,
          .kv_block = kv_block,
          .stages = 2,
          .q_buffers = 1,
          .o_panels = 1,
          .f16 = false,
          .lse = true,
          .masked = masked};
}

std::int64_t blocks(std::int64_t length, std::int64_t block) { return (length + block - 1) / block; }

const Sequence& sequence_of(const problem::AttentionProblem& problem, int batch) {
  return problem.sequences.at(static_cast<std::size_t>(batch));
}

/// A character for each key block of a sequence, all of them '.'.
std::string no_blocks(const problem::AttentionProblem& problem, const ForwardSm90Config& config, int batch) {
  return std::string(static_cast<std::size_t>(blocks(sequence_of(problem, batch).kv_len, config.kv_block)), '.');
}

/// The key blocks of 64 queries, a character each: '.' not seen, '#' full, '+' partial.
std::string expected_classes(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                             const BlockMask* mask, const BoxKey& at) {
  const auto& [batch, head, box] = at;
  std::string classes = no_blocks(problem, config, batch);
  if (mask == nullptr) std::ranges::fill(classes, '#');
  if (mask != nullptr) {
    for (const Run& run : mask->row(batch, head, box * std::int64_t{64} / mask->block().q)) {
      for (std::size_t c = 0; c < classes.size(); ++c) {
        const auto mask_block = static_cast<std::int64_t>(c) * config.kv_block / mask->block().kv;
        if (mask_block >= run.begin && mask_block < run.end) classes[c] = run.kind == RunKind::full ? '#' : '+';
      }
    }
  }
  return classes;
}

/// A tile's flags, a word for each step.
std::vector<int> item_flags(const TileSchedule& schedule, const shared::WorkItem& item) {
  std::vector<int> flags;
  const shared::KvRun* left = nullptr;
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs.at(static_cast<std::size_t>(r));
    EXPECT_LT(run.begin, run.end);
    EXPECT_GE(run.begin, left == nullptr ? 0 : left->end) << "runs out of order";
    EXPECT_FALSE(left != nullptr && left->end == run.begin && (left->flags & 63) == (run.flags & 63))
        << "runs not merged";
    for (int c = run.begin; c < run.end; ++c) flags.push_back(c + 1 < run.end ? run.flags : run.last_flags);
    left = &run;
  }
  EXPECT_EQ(item.steps, std::ssize(flags));
  const shared::KvRun& first = schedule.runs.at(static_cast<std::size_t>(item.first_run));
  EXPECT_EQ(std::tie(item.run.begin, item.run.end, item.run.flags, item.run.last_flags),
            std::tie(first.begin, first.end, first.flags, first.last_flags));
  return flags;
}

bool attends(int flags, int warpgroup) { return (flags & shared::kStepAttends << warpgroup) != 0; }

/// As expected_classes(), of one warpgroup of a tile.
std::string item_classes(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                         const TileSchedule& schedule, const shared::WorkItem& item, int warpgroup) {
  std::string classes = no_blocks(problem, config, item.batch);
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs.at(static_cast<std::size_t>(r));
    const bool partial = (run.flags & shared::kStepPartial << warpgroup) != 0;
    EXPECT_FALSE(partial && !attends(run.flags, warpgroup));
    if (!attends(run.flags, warpgroup)) continue;
    for (int c = run.begin; c < run.end; ++c) classes.at(static_cast<std::size_t>(c)) = partial ? '+' : '#';
  }
  if (config.descending) std::ranges::reverse(classes);
  return classes;
}

/// The queries of every tile and every fill, 64 at a time, see what the mask says; those past their sequence's end see
/// nothing.
void expect_every_query_once(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                             const BlockMask* mask, const TileSchedule& schedule) {
  std::map<BoxKey, std::string> found;
  for (const shared::WorkItem& item : schedule.items) {
    EXPECT_GE(item.steps, 1);
    const std::string nothing = no_blocks(problem, config, item.batch);
    const std::int64_t boxes = blocks(sequence_of(problem, item.batch).q_len, 64);
    for (int w = 0; w < config.warpgroups; ++w) {
      const BoxKey box{item.batch, item.head, item.q_tile * config.warpgroups + w};
      const std::string classes = item_classes(problem, config, schedule, item, w);
      if (std::get<2>(box) >= boxes) {
        EXPECT_EQ(classes, nothing) << "queries past the end attend";
      } else if (classes != nothing) {
        EXPECT_TRUE(found.emplace(box, classes).second) << "queries twice";
      }
    }
  }
  for (const shared::RowFill& fill : schedule.fills) {
    const Sequence& sequence = sequence_of(problem, fill.batch);
    const std::int64_t first = fill.row - sequence.q_begin;
    if (first >= sequence.q_len) continue;
    const BoxKey box{fill.batch, fill.head, static_cast<int>(first / 64)};
    EXPECT_EQ(first % 64, 0);
    EXPECT_EQ(fill.rows, std::min<std::int64_t>(64, sequence.q_len - first));
    EXPECT_TRUE(found.emplace(box, no_blocks(problem, config, fill.batch)).second) << "queries twice";
  }
  std::map<BoxKey, std::string> expected;
  for (int b = 0; b < problem.batch; ++b) {
    for (int h = 0; h < problem.q_heads; ++h) {
      for (int box = 0; box < blocks(sequence_of(problem, b).q_len, 64); ++box) {
        expected[{b, h, box}] = expected_classes(problem, config, mask, {b, h, box});
      }
    }
  }
  EXPECT_EQ(found, expected);
}

/// Rows past the end of a padded sequence are filled, each once, and no others that lie outside of their sequence.
void expect_padding_filled(const problem::AttentionProblem& problem, const TileSchedule& schedule) {
  std::map<std::tuple<int, int, int>, int> found, expected;  // batch, head, row
  for (const shared::RowFill& fill : schedule.fills) {
    const Sequence& sequence = sequence_of(problem, fill.batch);
    EXPECT_LE(fill.rows, 64);
    EXPECT_GE(fill.row, sequence.q_begin);
    for (int row = fill.row; row < fill.row + fill.rows; ++row) {
      if (row - sequence.q_begin >= sequence.q_len) ++found[{fill.batch, fill.head, row}];
    }
  }
  for (int b = 0; b < problem.batch && !problem.packed; ++b) {
    for (int h = 0; h < problem.q_heads; ++h) {
      for (auto row = static_cast<int>(sequence_of(problem, b).q_len); row < problem.q_rows; ++row) {
        expected[{b, h, row}] = 1;
      }
    }
  }
  EXPECT_EQ(found, expected);
}

/// Each step of a tile says whether all warpgroups attend the next one, and an item says it of its first: consumers
/// look no further.
void expect_steps_foretell(const ForwardSm90Config& config, const TileSchedule& schedule) {
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const shared::WorkItem& item = schedule.items[i];
    int before = item.before;
    for (const int flags : item_flags(schedule, item)) {
      bool all = true;
      for (int w = 0; w < config.warpgroups; ++w) all = all && attends(flags, w);
      EXPECT_EQ((before & shared::kStepNextUneven) != 0, !all) << "item " << i;
      before = flags;
    }
    EXPECT_EQ(before & shared::kStepNextUneven, 0) << "item " << i << ": another tile's first step is not known";
  }
}

/// `least`: of a step.
double clocks_of(const TileSchedule& schedule, const ForwardSm90Config& config, const shared::WorkItem& item,
                 double least = 0) {
  const plan::TileClocks clocks = plan::forward_sm90_clocks(config);
  double sum = clocks.tile;
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs[static_cast<std::size_t>(r)];
    double attended = 0;
    for (int w = 0; w < config.warpgroups; ++w) {
      const double share = static_cast<double>(run.end - run.begin) / config.warpgroups;
      if (attends(run.flags, w)) attended += share * clocks.full_step;
      if (run.flags & shared::kStepPartial << w) sum += share * (clocks.partial_step - clocks.full_step);
    }
    sum += std::max(attended, least * (run.end - run.begin));
  }
  return sum;
}

/// Drawing leaves no CTA with more than the mean and one tile.
void expect_balanced(const ForwardSm90Config& config, const TileSchedule& schedule, const device::CudaCaps& caps,
                     double least = 0) {
  const std::size_t work = std::max(schedule.items.size(), schedule.fills.size());
  ASSERT_EQ(schedule.grid, std::min<int>(caps.multiprocessors, static_cast<int>(work)));
  ASSERT_EQ(schedule.ctas.size(), schedule.items.size());
  std::vector<double> loads(static_cast<std::size_t>(schedule.grid), 0);
  double total = 0, largest = 0;
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const double clocks = clocks_of(schedule, config, schedule.items[i], least);
    loads.at(schedule.ctas[i]) += clocks;
    total += clocks;
    largest = std::max(largest, clocks);
  }
  const double longest = *std::ranges::max_element(loads);
  EXPECT_NEAR(schedule.longest, longest, 1e-3 * longest);
  EXPECT_LE(longest, (total / schedule.grid + largest) * 1.001);
}

void expect_valid(const problem::AttentionProblem& problem, const ForwardSm90Config& config, const BlockMask* mask,
                  const device::CudaCaps& caps) {
  const TileSchedule schedule = plan::forward_sm90_schedule(problem, config, mask, caps);
  expect_every_query_once(problem, config, mask, schedule);
  expect_padding_filled(problem, schedule);
  expect_steps_foretell(config, schedule);
  // Few queries of several heads: steps take no less than their keys and values do.
  const double least = plan::has_few_queries(problem) ? plan::forward_sm90_clocks(config).loads : 0;
  if (problem.batch * problem.q_heads * problem.q_rows > 0) expect_balanced(config, schedule, caps, least);
}

TEST(ForwardSm90Schedule, CountsTheLastBlocksKeysWhereTilesDescend) {
  const HopperCall call{.q_rows = 64, .kv_rows = 300};
  ForwardSm90Config config = config_of(128, 1, 128);
  const TileSchedule up = plan::forward_sm90_schedule(call.problem(), config, nullptr, h200());
  config.descending = true;
  const TileSchedule down = plan::forward_sm90_schedule(call.problem(), config, nullptr, h200());
  EXPECT_EQ(up.elements, 64 * 300);
  EXPECT_EQ(down.elements, 64 * 300);
  EXPECT_EQ(down.items[0].steps, 3);
}

TEST(ForwardSm90Schedule, WalksTheBlocksOfRandomMasks) {
  constexpr std::array<std::int64_t, 8> lengths{1, 16, 63, 64, 65, 192, 300, 449};
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomMasks random(seed);
    const auto below = [&](int bound) { return random.below(bound); };
    const auto length = [&] { return lengths[static_cast<std::size_t>(below(lengths.size()))]; };
    const std::int64_t kv_heads = 1 + below(2);
    HopperCall call = {.batch = 1 + below(3),
                       .q_heads = kv_heads * (1 + below(2)),
                       .kv_heads = kv_heads,
                       .q_rows = length(),
                       .kv_rows = length(),
                       .shared_kv = below(3) == 0};
    call.mask = random.draw();
    call.options.bindings = random.bindings();
    ForwardSm90Config config = config_of(128, 1 + below(3), 16 * (1 + below(8)), true);
    config.descending = below(2) == 0;
    const BlockMask mask = *call.rows_of({64 * (1 + below(4)), config.kv_block * (1 + below(3))});
    device::CudaCaps caps = h200();
    caps.multiprocessors = 1 + below(20);
    expect_valid(call.problem(), config, &mask, caps);
  }
}

/// Lengths from 0 to the padded sizes, or parts of a packed batch; starts in some of them.
void draw_sequences(RandomMasks& random, HopperCall& call, std::vector<Tensor>& kept) {
  const auto keep = [&](const std::vector<std::int64_t>& values) {
    kept.push_back(Tensor::empty(DType::i64, {std::ssize(values)}));
    std::ranges::copy(values, static_cast<std::int64_t*>(kept.back().data()));
    return kept.back().view();
  };
  const auto lengths = [&](std::int64_t most) {
    std::vector<std::int64_t> drawn;
    for (std::int64_t b = 0; b < call.batch; ++b) drawn.push_back(random.below(static_cast<int>(most) + 1));
    return drawn;
  };
  const std::vector<std::int64_t> q = lengths(call.q_rows), kv = lengths(call.kv_rows), starts = lengths(100);
  if (random.below(2) == 0) {
    call.options.q_lengths = keep(q);
    call.options.kv_lengths = keep(kv);
  } else {
    const auto sums = [](const std::vector<std::int64_t>& parts) {
      std::vector<std::int64_t> all = {0};
      for (const std::int64_t part : parts) all.push_back(all.back() + part);
      return all;
    };
    call.options.cu_seqlens_q = keep(sums(q));
    call.options.cu_seqlens_kv = keep(sums(kv));
    call.q_rows = sums(q).back();
    call.kv_rows = sums(kv).back();
    call.batch = 1;
    call.shared_kv = false;
  }
  if (random.below(2) == 0) call.options.q_start = keep(starts);
}

TEST(ForwardSm90Schedule, WalksTheBlocksOfEachSequence) {
  constexpr std::array<std::int64_t, 5> lengths{1, 64, 130, 257, 449};
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomMasks random(1000 + seed);
    const auto below = [&](int bound) { return random.below(bound); };
    const auto length = [&] { return lengths[static_cast<std::size_t>(below(lengths.size()))]; };
    HopperCall call = {.batch = 1 + below(5),
                       .q_heads = 2,
                       .kv_heads = 1 + below(2),
                       .q_rows = length(),
                       .kv_rows = length(),
                       .shared_kv = below(3) == 0};
    std::vector<Tensor> kept;
    draw_sequences(random, call, kept);
    const bool masked = below(3) > 0;
    if (masked)
      call.mask = below(2) == 0 ? mods::causal_lower_right() : leaf::kv_token() <= leaf::q_token() + leaf::b();
    ForwardSm90Config config = config_of(128, 1 + below(3), 16 * (1 + below(8)), masked);
    config.descending = below(2) == 0;
    const std::shared_ptr<const BlockMask> mask = call.rows_of({64 * (1 + below(2)), config.kv_block * (1 + below(2))});
    device::CudaCaps caps = h200();
    caps.multiprocessors = 1 + below(20);
    expect_valid(call.problem(), config, mask.get(), caps);
  }
}

// Equal lengths share their rows of blocks, also where others lie between them.
TEST(ForwardSm90Schedule, SequencesOfOneLengthShareRows) {
  HopperCall call = {.batch = 4, .q_rows = 512, .kv_rows = 512};
  const std::array<std::int64_t, 4> lengths = {512, 100, 512, 100}, starts = {0, 0, 7, 0};
  call.options.kv_lengths = ConstTensorView(lengths.data(), DType::i64, {4});
  call.options.q_start = ConstTensorView(starts.data(), DType::i64, {4});
  const ForwardSm90Config config = config_of(128, 2, 128);
  EXPECT_EQ(plan::forward_sm90_schedule(call.problem(), config, nullptr, h200()).runs.size(), 2U);
  call.mask = leaf::q_idx() != leaf::kv_idx();
  const std::shared_ptr<const BlockMask> mask = call.rows_of({512, 128});
  // The last sequence has the second one's rows; the third begins elsewhere.
  EXPECT_EQ(plan::forward_sm90_schedule(call.problem(), config_of(128, 2, 128, true), mask.get(), h200()).runs.size(),
            3U);
}

// Keys that count from elsewhere are seen by other queries.
TEST(ForwardSm90Schedule, SequencesOfOtherKvStartsHaveTheirOwnRows) {
  HopperCall call = {.batch = 3, .q_rows = 512, .kv_rows = 512};
  const std::array<std::int64_t, 3> starts = {0, 256, 0};
  call.options.kv_start = ConstTensorView(starts.data(), DType::i64, {3});
  call.mask = mods::causal();
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({128, 128});
  expect_valid(call.problem(), config, mask.get(), h200());
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
  std::map<int, int> steps;  // of each sequence's tiles
  for (const shared::WorkItem& item : schedule.items) steps[item.batch] += item.head == 0 ? item.steps : 0;
  EXPECT_EQ(steps[0], 1 + 2 + 3 + 4);
  EXPECT_EQ(steps[1], 1 + 2) << "the first 256 queries stand before all keys";
  EXPECT_EQ(steps[2], steps[0]);
}

TEST(ForwardSm90Schedule, IsOneRunWithoutAMask) {
  for (const std::int64_t kv_rows : {1, 79, 80, 81, 160, 200, 513}) {
    SCOPED_TRACE(kv_rows);
    const HopperCall call = {.batch = 3, .q_heads = 4, .kv_heads = 2, .q_rows = 960, .kv_rows = kv_rows};
    expect_valid(call.problem(), config_of(128, 3, 80), nullptr, h200());
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config_of(128, 3, 80), nullptr, h200());
    EXPECT_EQ(schedule.runs.size(), 1U);
  }
}

TEST(ForwardSm90Schedule, LeavesWarpgroupsPastTheEndOut) {
  const HopperCall call = {.batch = 2, .q_heads = 2, .kv_heads = 2, .q_rows = 200, .kv_rows = 300};
  const ForwardSm90Config config = config_of(128, 3, 80);
  expect_valid(call.problem(), config, nullptr, h200());
  device::CudaCaps caps = h200();
  caps.multiprocessors = 1;
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, nullptr, caps);
  // The second tile of each head has 8 queries: the first warpgroup's.
  ASSERT_EQ(schedule.runs.size(), 2U);
  EXPECT_EQ(schedule.runs[0].flags, 7);
  EXPECT_EQ(schedule.runs[1].flags, 1 | shared::kStepNextUneven);
  EXPECT_EQ(schedule.runs[1].last_flags, 1);
  ASSERT_EQ(schedule.items.size(), 8U);
  for (const shared::WorkItem& item : schedule.items) {
    EXPECT_EQ(item.before, item.q_tile == 1 ? shared::kStepNextUneven : 0);
  }
}

TEST(ForwardSm90Schedule, FillsQueriesOfATileWhoseOthersAttend) {
  // Queries from 64 on alone attend, and these all keys.
  HopperCall call = {.q_rows = 192, .kv_rows = 160, .mask = leaf::q_idx() >= 64};
  const ForwardSm90Config config = config_of(128, 3, 80, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, 80});
  expect_valid(call.problem(), config, mask.get(), h200());
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
  ASSERT_EQ(schedule.fills.size(), 1U);
  const auto [row, rows, head, batch] = schedule.fills[0];
  EXPECT_EQ(std::tie(row, rows, head, batch), std::tuple(0, 64, 0, 0));
  ASSERT_EQ(schedule.items.size(), 1U);
  ASSERT_EQ(schedule.runs.size(), 1U);
  EXPECT_EQ(schedule.runs[0].flags & 63, 6);
}

TEST(ForwardSm90Schedule, FillsWhereNoKeyIs) {
  const HopperCall call = {
      .batch = 2, .q_heads = 3, .kv_heads = 3, .q_rows = 300, .kv_rows = 0, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  for (const bool masked : {true, false}) {
    const std::shared_ptr<const BlockMask> mask = masked ? call.rows_of({128, 128}) : nullptr;
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
    EXPECT_TRUE(schedule.items.empty());
    EXPECT_EQ(schedule.fills.size(), 2U * 3 * 5);  // 300 queries, 64 at a time
    EXPECT_EQ(schedule.grid, 2 * 3 * 5);
    EXPECT_EQ(schedule.longest, 0);
  }
}

TEST(ForwardSm90Schedule, IsEmptyWhereThereIsNothingToCompute) {
  for (HopperCall call : {HopperCall{.batch = 0}, HopperCall{.q_heads = 0}, HopperCall{.q_rows = 0}}) {
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config_of(128, 2, 128), nullptr, h200());
    EXPECT_EQ(schedule.grid, 0);
    EXPECT_TRUE(schedule.items.empty());
    EXPECT_TRUE(schedule.fills.empty());
  }
}

/// The order in which tiles are drawn: "batch.head.tile".
std::string drawn(const HopperCall& call, const ForwardSm90Config& config, std::int64_t l2_bytes) {
  device::CudaCaps caps = h200();
  caps.l2_bytes = l2_bytes;
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, config.kv_block});
  std::string order;
  for (const shared::WorkItem& item : plan::forward_sm90_schedule(call.problem(), config, mask.get(), caps).items) {
    order += fmt::format("{}{}.{}.{}", order.empty() ? "" : " ", item.batch, item.head, item.q_tile);
  }
  return order;
}

// K and V of a head take 256 keys * 128 * 2 * 2 bytes = 128 KiB, and a third of L2 is theirs.
constexpr std::int64_t kL2ForOneHead = 3 * (128 << 10), kL2ForTwo = 2 * kL2ForOneHead;

TEST(ForwardSm90Schedule, DrawsTheLongestFirstInsideSectionsOfHeads) {
  HopperCall call = {.q_heads = 4, .kv_heads = 4, .q_rows = 256, .kv_rows = 256, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  EXPECT_EQ(drawn(call, config, kL2ForOneHead), "0.0.1 0.0.0 0.1.1 0.1.0 0.2.1 0.2.0 0.3.1 0.3.0");
  EXPECT_EQ(drawn(call, config, kL2ForTwo - 1), "0.0.1 0.0.0 0.1.1 0.1.0 0.2.1 0.2.0 0.3.1 0.3.0");
  EXPECT_EQ(drawn(call, config, kL2ForTwo), "0.0.1 0.1.1 0.0.0 0.1.0 0.2.1 0.3.1 0.2.0 0.3.0");
  // Three fit, but sections of 3 and 1 would be uneven.
  EXPECT_EQ(drawn(call, config, 3 * kL2ForOneHead), drawn(call, config, kL2ForTwo));
  call.mask = {};
  EXPECT_EQ(drawn(call, config, kL2ForTwo), "0.0.0 0.0.1 0.1.0 0.1.1 0.2.0 0.2.1 0.3.0 0.3.1");
}

TEST(ForwardSm90Schedule, KeepsTheHeadsOfOneKeyHeadTogether) {
  HopperCall call = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 256, .kv_rows = 256, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.1 0.1.1 0.0.0 0.1.0 0.2.1 0.3.1 0.2.0 0.3.0 1.0.1 1.1.1 1.0.0 1.1.0 1.2.1 1.3.1 1.2.0 1.3.0");
  call.shared_kv = true;
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.1 0.1.1 1.0.1 1.1.1 0.0.0 0.1.0 1.0.0 1.1.0 0.2.1 0.3.1 1.2.1 1.3.1 0.2.0 0.3.0 1.2.0 1.3.0");
}

// With tiles of six to one key blocks, the shortest is 8 % of the work and the two shortest are 19 %.
TEST(ForwardSm90Schedule, PutsTheShortestTilesLast) {
  HopperCall call = {.q_heads = 2, .kv_heads = 2, .q_rows = 768, .kv_rows = 768, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.5 0.0.4 0.0.3 0.0.2 0.0.1 0.1.5 0.1.4 0.1.3 0.1.2 0.1.1 0.0.0 0.1.0");
  // Where all are as long, none is.
  call.mask = {};
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.0 0.0.1 0.0.2 0.0.3 0.0.4 0.0.5 0.1.0 0.1.1 0.1.2 0.1.3 0.1.4 0.1.5");
}

// Causal tiles differ 64 times in length; a section has two heads. Without short tiles at the end the longest CTA has
// 11 % more than the mean.
TEST(ForwardSm90Schedule, IsEvenWhereSectionsAreShort) {
  const HopperCall call = {
      .batch = 2, .q_heads = 8, .kv_heads = 8, .q_rows = 8192, .kv_rows = 8192, .dim = 256, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(256, 2, 64, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, 64});
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
  double total = 0;
  for (const shared::WorkItem& item : schedule.items) total += clocks_of(schedule, config, item);
  EXPECT_LE(schedule.longest, 1.01 * total / 132);
}

TEST(ForwardSm90Schedule, StaysSmallForLongSequences) {
  const HopperCall causal = {
      .q_heads = 16, .kv_heads = 16, .q_rows = 1 << 20, .kv_rows = 1 << 20, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  const std::shared_ptr<const BlockMask> mask = causal.rows_of({64, 128});
  const TileSchedule schedule = plan::forward_sm90_schedule(causal.problem(), config, mask.get(), h200());
  EXPECT_EQ(schedule.items.size(), 16U * 8192);
  EXPECT_LE(schedule.runs.size(), 2U * 8192);
  expect_balanced(config, schedule, h200());
}

TEST(ForwardSm90Schedule, IsTheSameEachTime) {
  const HopperCall call = {
      .batch = 3, .q_heads = 5, .kv_heads = 5, .q_rows = 3000, .kv_rows = 3000, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 3, 80, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, 80});
  const auto offsets = [&] {
    std::vector<TileKey> order;
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
    for (const shared::WorkItem& item : schedule.items) order.emplace_back(item.batch, item.head, item.q_tile);
    return std::pair(order, schedule.ctas);
  };
  EXPECT_EQ(offsets(), offsets());
}

}  // namespace
}  // namespace heddle::test
