// Query heads that share a tile: when the planner packs them, the reason if it does not, and the lists of packed tiles.
#include "plan/tiles/packed_heads.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/mods.h"
#include "mask/random_mask.h"
#include "plan/hopper.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::test {
namespace {

using plan::Choice;
using plan::TileSchedule;
using shared::ForwardSm90Config;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<Choice> choices_of(const HopperCall& call) {
  return plan::forward_sm90(call.problem(), call.tensors(), call.all_options(), h200(),
                            [&](BlockSize block) { return call.rows_of(block); });
}
int packed_by_first(const HopperCall& call) {
  return choices_of(call).front().plan.part<shared::ForwardSm90Config>().packed_queries;
}

/// 32 heads that read 4, of many sequences.
HopperCall few(std::int64_t q_rows) {
  return {.batch = 32, .q_heads = 32, .kv_heads = 4, .q_rows = q_rows, .kv_rows = 8192};
}

TEST(ForwardSm90Packed, PacksWhereQueriesAreFew) {
  for (const std::int64_t q_rows : {1, 5, 16}) EXPECT_EQ(packed_by_first(few(q_rows)), 16) << q_rows;
  EXPECT_GT(packed_by_first(few(30)), 0);
  EXPECT_GT(packed_by_first(few(48)), 0);
  const plan::Plan plan = choices_of(few(16)).front().plan;
  EXPECT_EQ(plan.packed_heads, 8);
  EXPECT_EQ(plan.tile, (BlockSize{128, 128}));
  EXPECT_EQ(plan.grid, 32 * 4);
  EXPECT_THAT(plan.rejected, Contains(HasSubstr("128 queries x 128 keys, 2 warpgroups: predicted")));
  EXPECT_THAT(plan.rejected, Contains(HasSubstr("32 queries of 4 heads x 128 keys, 2 warpgroups: predicted")));
}

// By the longest sequences that there may be; and with a factor for each head.
TEST(ForwardSm90Packed, LengthsOnTheDeviceAndEightBits) {
  const HopperCall call = few(16);
  problem::AttentionProblem there = call.problem();
  there.device_lengths = true;
  const Choice of_longest = plan::forward_sm90(there, call.tensors(), call.options, h200(), [](BlockSize) {
                              return std::shared_ptr<const BlockMask>();
                            }).front();
  EXPECT_TRUE(of_longest.plan.part<shared::ForwardSm90Config>().device_lengths);
  EXPECT_EQ(of_longest.plan.part<shared::ForwardSm90Config>().packed_queries, 16);
  HopperCall eight_bits = few(16);
  eight_bits.dtype = DType::e4m3;
  EXPECT_EQ(packed_by_first(eight_bits), 16);
  ForwardSm90Config config = choices_of(eight_bits).front().plan.part<shared::ForwardSm90Config>();
  EXPECT_EQ(shared::factor_bytes(config), 8 * config.heads());
  config.packed_queries = 0;
  EXPECT_EQ(shared::factor_bytes(config), 16);
}

TEST(ForwardSm90Packed, DoesNotWhereItWouldGainNothing) {
  HopperCall alone = few(16);
  alone.kv_heads = 32;
  for (const HopperCall& call : {alone, few(128), few(1000)}) {
    for (const Choice& choice : choices_of(call)) {
      EXPECT_FALSE(choice.plan.part<shared::ForwardSm90Config>().packs());
      EXPECT_THAT(choice.plan.rejected, Not(Contains(HasSubstr(" heads x "))));
    }
  }
  // One sequence has so few tiles that each CTA may as well have one head's.
  HopperCall one = few(16);
  one.batch = 1;
  EXPECT_EQ(packed_by_first(one), 0);
  EXPECT_THAT(choices_of(one).front().plan.rejected,
              Contains(HasSubstr("16 queries of 8 heads x 128 keys, 2 warpgroups: predicted")));
}

// Products, keys and values are as many as those of four heads with all queries in a row.
TEST(ForwardSm90Packed, CostsWhatPlainTilesDo) {
  HopperCall plain = few(128);
  plain.q_heads = 4;
  for (const std::int64_t keys : {8192, 65536}) {
    HopperCall packed = few(16);
    packed.kv_rows = plain.kv_rows = keys;
    const plan::Prediction one = *choices_of(plain).front().plan.predicted,
                           other = *choices_of(packed).front().plan.predicted;
    EXPECT_EQ(one.flops, other.flops);
    EXPECT_LE(other.seconds, 1.05 * one.seconds);
  }
}

// Many sequences of one query beside a long one.
TEST(ForwardSm90Packed, PacksBatchesThatMixLengths) {
  std::vector<std::int32_t> q_sums = {0, 300}, kv_sums = {0, 300};
  for (int i = 0; i < 400; ++i) {
    q_sums.push_back(q_sums.back() + 1);
    kv_sums.push_back(kv_sums.back() + 2000);
  }
  HopperCall call = {.q_heads = 32, .kv_heads = 4, .q_rows = q_sums.back(), .kv_rows = kv_sums.back()};
  call.options.cu_seqlens_q = ConstTensorView(q_sums.data(), DType::i32, {std::ssize(q_sums)});
  call.options.cu_seqlens_kv = ConstTensorView(kv_sums.data(), DType::i32, {std::ssize(kv_sums)});
  EXPECT_TRUE(plan::has_few_queries(call.problem()));
  EXPECT_EQ(packed_by_first(call), 16);
}

TEST(ForwardSm90Packed, TriesNoMoreRowsThanTheGroupHas) {
  const auto tried = [](std::int64_t group, std::int64_t q_rows) {
    return plan::packed_queries(HopperCall{.q_heads = 2 * group, .kv_heads = 2, .q_rows = q_rows}.problem());
  };
  EXPECT_THAT(tried(1, 16), IsEmpty());
  EXPECT_THAT(tried(2, 16), ElementsAre(32, 64));
  EXPECT_THAT(tried(3, 16), ElementsAre(16, 32, 64));
  EXPECT_THAT(tried(8, 64), ElementsAre(16, 32, 64));
  EXPECT_THAT(tried(8, 65), IsEmpty());
}

// A box of each head's rows; with all that packing adds to shared memory the tiles still have room.
TEST(ForwardSm90Packed, BiasesComeInTilesOfSeveralHeads) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    HopperCall streamed = few(16);
    streamed.options.score_mod = leaf::score() + Capture("bias", dtype, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
    streamed.options.bindings.captures["bias"] =
        ConstTensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), dtype, Dims{32, 16, 8192});
    for (const int packed : {16, 32, 64}) {
      for (const Choice& choice : choices_of(streamed)) {
        const ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
        EXPECT_EQ(config.streamed_bytes, size_of(dtype));
        EXPECT_EQ(config.streamed_box(), config.packs() ? config.packed_queries : 64);
        EXPECT_LE(shared::forward_sm90_memory(config).bytes, plan::kSm90SharedMemory);
      }
      EXPECT_THAT(choices_of(streamed), Contains(testing::Truly([&](const Choice& choice) {
                    return choice.plan.part<shared::ForwardSm90Config>().packed_queries == packed;
                  })));
    }
    EXPECT_EQ(packed_by_first(streamed), 16);
  }
}

TEST(ForwardSm90Packed, SaysWhatItDoesNotPack) {
  HopperCall distant = few(16);
  const Tensor table = Tensor::zeros(DType::bf16, {32, 32});
  distant.options.score_mod = mods::t5_bias(Capture("table", DType::bf16, 2), 32, 128, true);
  distant.options.bindings.captures["table"] = table;
  for (const Choice& choice : choices_of(distant)) {
    const ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
    EXPECT_TRUE(config.packed_queries == 0 || config.packed_queries == 64);
    EXPECT_THAT(choice.plan.rejected, Contains(HasSubstr("packs no 4 heads into a warpgroup, since what score_mod adds "
                                                         "for each distance is tabulated for one")));
  }
}

// Rows that lists give say nothing that the mask inside of a block could repeat.
TEST(ForwardSm90Packed, KeepsListsOfTheirHeads) {
  const auto with_lists = [](std::int64_t heads) {
    HopperCall call = {.batch = 64, .q_heads = 8, .kv_heads = 2, .q_rows = 16, .kv_rows = 256};
    const BlockLists lists = {Tensor::zeros(DType::i32, {1, heads, 1}), Tensor::zeros(DType::i32, {1, heads, 1, 2}),
                              Tensor::zeros(DType::i32, {1, heads, 1}), Tensor::zeros(DType::i32, {1, heads, 1, 2})};
    for (std::int64_t head = 0; head < heads; ++head) {
      static_cast<std::int32_t*>(lists.full_kv_num_blocks.data())[head] = 1;
      static_cast<std::int32_t*>(lists.full_kv_indices.data())[2 * head] = static_cast<std::int32_t>(head % 2);
    }
    const problem::AttentionProblem problem = call.problem();
    call.options.block_mask = std::make_shared<BlockMask>(
        BlockMask::from_lists(lists, {problem.q_heads, problem.sequences}, BlockSize{64, 128}));
    std::set<int> packed;
    for (const Choice& choice : choices_of(call))
      packed.insert(choice.plan.part<shared::ForwardSm90Config>().packed_queries);
    return packed;
  };
  EXPECT_THAT(with_lists(1), ElementsAre(0, 16, 32, 64));
  EXPECT_THAT(with_lists(8), ElementsAre(0, 64));
}

/// A character for each of `blocks`: '.' not attended, '#' full, '+' partial.
std::string classes_of(const RowRuns& runs, std::size_t blocks) {
  std::string classes(blocks, '.');
  for (const Run& run : runs) {
    for (auto at = run.begin; at < run.end; ++at) {
      classes.at(static_cast<std::size_t>(at)) = run.kind == RunKind::full ? '#' : '+';
    }
  }
  return classes;
}

std::string merged(const std::vector<std::string>& rows) {
  std::string all = rows.front();
  for (std::size_t c = 0; c < all.size(); ++c) {
    for (const std::string& row : rows) {
      if (row[c] != all[c]) all[c] = '+';
    }
  }
  return all;
}

TEST(ForwardSm90Packed, MergesRowsAsTheirElementsWouldBe) {
  RandomMasks random(1);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::vector<heddle::Run>> rows(static_cast<std::size_t>(1 + random.below(4)));
    for (std::vector<heddle::Run>& row : rows) {
      for (int at = random.below(4); at < 20;) {
        const int end = std::min(20, at + 1 + random.below(5));
        const RunKind kind = random.below(2) == 0 ? RunKind::full : RunKind::partial;
        if (!row.empty() && row.back().end == at && row.back().kind == kind) {
          row.back().end = end;
        } else {
          row.push_back({at, end, kind});
        }
        at = end + random.below(3);
      }
    }
    const std::vector<std::span<const heddle::Run>> spans(rows.begin(), rows.end());
    std::vector<std::string> classes;
    for (const auto& row : spans) classes.push_back(classes_of(row, 20));
    const std::vector<heddle::Run> found = plan::merged_runs(spans);
    EXPECT_EQ(classes_of(std::span(found), 20), merged(classes));
    for (std::size_t r = 1; r < found.size(); ++r) {
      EXPECT_TRUE(found[r].begin > found[r - 1].end ||
                  (found[r].begin == found[r - 1].end && found[r].kind != found[r - 1].kind));
    }
  }
}

/// A box of n queries of a head: sequence, head, first query.
using BoxKey = std::tuple<int, int, std::int64_t>;

/// A warpgroup's view of each block of keys of a tile.
std::string seen(const TileSchedule& schedule, const shared::WorkItem& item, int warpgroup, std::size_t blocks,
                 bool descending) {
  std::string classes(blocks, '.');
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs.at(static_cast<std::size_t>(r));
    if ((run.flags & shared::kStepAttends << warpgroup) == 0) continue;
    for (int at = run.begin; at < run.end; ++at) {
      classes.at(static_cast<std::size_t>(at)) = run.flags & shared::kStepPartial << warpgroup ? '+' : '#';
    }
  }
  if (descending) std::ranges::reverse(classes);
  return classes;
}

/// Every query of every head is computed once, or filled, and a warpgroup sees what its heads attend together.
void expect_valid(const problem::AttentionProblem& problem, const ForwardSm90Config& config, const BlockMask* mask,
                  const TileSchedule& schedule) {
  const std::int64_t queries = config.queries();
  std::set<BoxKey> found, expected;
  for (const shared::WorkItem& item : schedule.items) {
    const Sequence& sequence = problem.sequences.at(static_cast<std::size_t>(item.batch));
    const auto blocks = static_cast<std::size_t>((sequence.kv_len + config.kv_block - 1) / config.kv_block);
    ASSERT_EQ(item.head / problem.group(), item.kv_head);
    const std::int64_t end = std::min<std::int64_t>(item.head + config.heads(), (item.kv_head + 1) * problem.group());
    for (int w = 0; w < config.warpgroups; ++w) {
      const std::int64_t first = item.head + w * config.warpgroup_heads();
      std::vector<std::string> rows;
      for (std::int64_t head = first; head < std::min(first + config.warpgroup_heads(), end); ++head) {
        std::string classes(blocks, mask == nullptr ? '#' : '.');
        if (mask != nullptr) {
          const auto scale = static_cast<std::size_t>(mask->block().kv / config.kv_block);
          const std::string wide =
              classes_of(mask->row(item.batch, head, item.q_tile * queries / mask->block().q), blocks / scale + 1);
          for (std::size_t c = 0; c < blocks; ++c) classes[c] = wide[c / scale];
        }
        rows.push_back(classes);
      }
      const std::string classes = seen(schedule, item, w, blocks, config.descending);
      EXPECT_EQ(classes, rows.empty() ? std::string(blocks, '.') : merged(rows));
      if (classes.find_first_not_of('.') == std::string::npos) continue;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        EXPECT_TRUE(found.emplace(item.batch, first + static_cast<int>(i), item.q_tile * queries).second);
      }
    }
  }
  for (const shared::RowFill& fill : schedule.fills) {
    const Sequence& sequence = problem.sequences.at(static_cast<std::size_t>(fill.batch));
    const std::int64_t first = fill.row - sequence.q_begin;
    if (first >= sequence.q_len) continue;  // padding
    EXPECT_EQ(first % queries, 0);
    EXPECT_EQ(fill.rows, std::min(queries, sequence.q_len - first));
    EXPECT_TRUE(found.emplace(fill.batch, fill.head, first).second) << "queries twice";
  }
  for (int b = 0; b < problem.batch; ++b) {
    const std::int64_t length = problem.sequences.at(static_cast<std::size_t>(b)).q_len;
    for (int h = 0; h < problem.q_heads; ++h) {
      for (std::int64_t first = 0; first < length; first += queries) expected.emplace(b, h, first);
    }
  }
  EXPECT_EQ(found, expected);
}

TEST(ForwardSm90Packed, ListsEveryQueryOfEveryHeadOnce) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomMasks random(2000 + seed);
    const auto below = [&](int bound) { return random.below(bound); };
    const std::int64_t kv_heads = 1 + below(3);
    HopperCall call = {.batch = 1 + below(3),
                       .q_heads = kv_heads * (2 + below(16)),
                       .kv_heads = kv_heads,
                       .q_rows = 1 + below(150),
                       .kv_rows = 1 + below(500),
                       .shared_kv = below(4) == 0};
    std::vector<std::int64_t> lengths, kv_lengths;
    for (std::int64_t b = 0; b < call.batch; ++b) {
      lengths.push_back(below(static_cast<int>(call.q_rows) + 1));
      kv_lengths.push_back(below(static_cast<int>(call.kv_rows) + 1));
    }
    if (below(2) == 0) {
      call.options.q_lengths = ConstTensorView(lengths.data(), DType::i64, {call.batch});
      call.options.kv_lengths = ConstTensorView(kv_lengths.data(), DType::i64, {call.batch});
    }
    const std::array<Expr, 5> masks = {Expr(), mods::causal(), leaf::h() % 3 != 1,
                                       (leaf::kv_idx() / 64 + leaf::h()) % 3 == 0,
                                       leaf::kv_idx() <= leaf::q_idx() + 40 * leaf::h()};
    call.mask = masks[static_cast<std::size_t>(below(5))];
    ForwardSm90Config config = {.qk_dim = 128,
                                .v_dim = 128,
                                .warpgroups = 1 + below(3),
                                .kv_block = 16 * (1 + below(8)),
                                .stages = 2,
                                .q_buffers = 1,
                                .o_panels = 1,
                                .f16 = false,
                                .lse = true,
                                .masked = !call.mask.empty()};
    config.descending = below(2) == 0;
    config.packed_queries = 16 << below(3);
    const std::shared_ptr<const BlockMask> mask = call.rows_of({64 * (1 + below(3)), config.kv_block * (1 + below(2))});
    plan::TileOrder order;
    order.batch_inside = below(3) == 0;
    const problem::AttentionProblem problem = call.problem();
    const TileSchedule schedule = plan::forward_sm90_schedule(problem, config, mask.get(), h200(), order);
    expect_valid(problem, config, mask.get(), schedule);
    EXPECT_LE(std::ssize(schedule.items), plan::count_tiles(problem, config.tile()));
  }
}

// The figure of merit counts each head's products, whoever shares its tile.
TEST(ForwardSm90Packed, CountsWhatIsMultiplied) {
  const HopperCall call = {.batch = 2, .q_heads = 10, .kv_heads = 2, .q_rows = 20, .kv_rows = 300};
  const std::vector<Choice> choices = choices_of(call);
  EXPECT_TRUE(std::ranges::any_of(
      choices, [](const Choice& choice) { return choice.plan.part<shared::ForwardSm90Config>().packs(); }));
  for (const Choice& choice : choices) {
    EXPECT_EQ(choice.plan.predicted->flops, 4.0 * 128 * 2 * 10 * 20 * 300);
  }
}

}  // namespace
}  // namespace heddle::test
