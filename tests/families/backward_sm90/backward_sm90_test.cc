// The Hopper backward's plans: what it refuses, in sentences, and the lists of its tiles.
#include "families/backward_sm90/backward_sm90.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "families/backward_sm90/tile_shares.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/mods.h"
#include "plan/hopper.h"
#include "plan/hopper/sm90_chip.h"
#include "plan/tiles/backward_schedule.h"

namespace heddle::test {
namespace {

/// A backward of a forward call.
struct BackwardCall {
  HopperCall call{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 200, .kv_rows = 300, .dim = 64};
  bool deterministic = false, dq = true, slopes = false;

  BackwardTensors tensors() const {
    const AttentionTensors forward = call.tensors();
    BackwardTensors tensors{.q = forward.q, .k = forward.k, .v = forward.v, .o = forward.o, .d_o = forward.o};
    tensors.lse = *forward.lse;
    if (dq) tensors.dq = TensorView(nullptr, call.dtype, forward.q.shape);
    tensors.dk = TensorView(nullptr, call.dtype, forward.k.shape);
    tensors.dv = TensorView(nullptr, call.dtype, forward.v.shape);
    if (slopes) tensors.d_captures.emplace("slopes", TensorView(nullptr, DType::f32, Dims{call.q_heads}));
    return tensors;
  }
  AttentionOptions options() const {
    AttentionOptions options = call.all_options();
    options.deterministic = deterministic;
    if (slopes) {
      static const float kSlopes[64] = {};
      options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
      options.bindings.captures["slopes"] = ConstTensorView(kSlopes, DType::f32, Dims{call.q_heads}, Dims{1});
    }
    return options;
  }
  problem::AttentionProblem problem() const {
    problem::AttentionProblem problem = problem::validate(tensors(), options());
    problem.device = {DeviceKind::cuda, 0};
    return problem;
  }
  template <class Use>
  auto with_request(Use&& use) const {
    const problem::AttentionProblem problem = this->problem();
    const BackwardTensors tensors = this->tensors();
    const AttentionTensors forward = problem::forward_tensors(tensors);
    AttentionOptions options = this->options();
    for (auto& [name, capture] : options.bindings.captures) capture.device = {DeviceKind::cuda, 0};
    const device::Machine machine{};
    return use(plan::Request{problem, forward, options, machine, &tensors});
  }
  std::string refusal() const {
    return with_request([](const plan::Request& request) { return plan::backward_sm90_refuses(request, h200()); });
  }
  plan::Plan plan() const {
    return with_request([&](const plan::Request& request) {
      return plan::backward_sm90(request, h200(), [&](BlockSize block) { return call.rows_of(block); }).front().plan;
    });
  }
};

TEST(BackwardSm90, RefusesInSentences) {
  EXPECT_EQ(BackwardCall().refusal(), "");
  BackwardCall wide;
  wide.call.dim = 256;
  EXPECT_EQ(wide.refusal(), "");
  wide.call.dim = 264;
  EXPECT_EQ(wide.refusal(), "q and k have head dimension 264; 1 to 256 are accepted");
  BackwardCall learned{.slopes = true};
  EXPECT_EQ(learned.refusal(), "");
  learned.call.dim = 136;
  EXPECT_EQ(learned.refusal(),
            "gradients of captures or params are asked for with head dimensions 136 and 136; up to 128 are accepted");
  BackwardCall ordered{.deterministic = true};
  EXPECT_EQ(ordered.refusal(), "");
  ordered.call.dim = 192;
  EXPECT_EQ(ordered.refusal(),
            "deterministic is asked for, and dq of 300 keys with head dimensions 192 and 192 is added by tiles of 128 "
            "keys in any "
            "order; up to 128 keys, head dimensions up to 128, or no dq, are accepted");
  ordered.dq = false;
  EXPECT_EQ(ordered.refusal(), "");
  BackwardCall shared;
  shared.call.shared_kv = true;
  EXPECT_EQ(shared.refusal(),
            "k has batch 1 and serves 2 sequences, and its gradient is asked for; a batch of 2 is accepted");
  BackwardCall wider;
  wider.call.dtype = DType::f32;
  EXPECT_EQ(wider.refusal(),
            "q, k, v are f32, f32, f32; bf16 for all or f16 for all is accepted, or each of e4m3 or e5m2");
}

TEST(BackwardSm90, FitsInSharedMemory) {
  for (const int dim : {8, 64, 72, 128}) {
    BackwardCall call;
    call.call.dim = dim;
    const shared::BackwardSm90Config config = call.plan().part<shared::BackwardSm90Config>();
    EXPECT_EQ(config.columns, dim <= 64 ? 64 : 128);
    EXPECT_LE(shared::backward_sm90_memory(config).bytes, plan::kSm90SharedMemory);
    EXPECT_EQ(shared::backward_sm90_memory(config).d_s % 1024, 0);  // where the swizzle repeats
  }
}

// A warpgroup of its own computes dQ: which problems have such kernels, and how they differ.
TEST(BackwardSm90, DqMayHaveAWarpgroup) {
  const auto configs = [](const BackwardCall& call) {
    const problem::AttentionProblem problem = call.problem();
    return plan::with_d_q_apart(plan::backward_sm90_config(problem, plan::backward_mods(problem)));
  };
  BackwardCall call;
  const std::vector<shared::BackwardSm90Config> plain = configs(call);
  ASSERT_EQ(plain.size(), 3U);
  EXPECT_TRUE(plain[0].held && plain[0].early_numbers);
  EXPECT_TRUE(plain[1].held && !plain[1].early_numbers);
  EXPECT_TRUE(!plain[2].held && !plain[2].early_numbers);
  for (const shared::BackwardSm90Config& config : plain) {
    EXPECT_TRUE(config.d_q_apart);
    const shared::BackwardSm90Memory memory = shared::backward_sm90_memory(config);
    EXPECT_LE(memory.bytes, plan::kSm90SharedMemory);
    for (const int swizzled : {memory.k, memory.v, memory.q, memory.d_o, memory.d_s}) EXPECT_EQ(swizzled % 1024, 0);
    EXPECT_EQ(config.threads(), 512);
    EXPECT_LE(128 * (2 * config.consumer_registers() + shared::kProducerRegisters + shared::kQueryRegisters), 65536);
    EXPECT_EQ(4 * config.d_q_part_floats(), shared::kPartBytes);
  }
  call.call.options.score_mod = mods::softcap(20);
  EXPECT_EQ(configs(call).size(), 2U);  // lse and delta stay where they stand
  EXPECT_EQ(configs({.deterministic = true}).size(), 3U);
  EXPECT_TRUE(configs({.dq = false}).empty());
  BackwardCall wider;
  wider.call.dim = 72;
  EXPECT_TRUE(configs(wider).empty());
}

// Above 128 columns a pair of CTAs has a tile.
TEST(BackwardSm90, FitsInSharedMemoryWithWideHeads) {
  for (const auto& [qk, v, of_q, of_d_o] :
       {std::tuple(136, 136, 2, 2), std::tuple(192, 128, 3, 2), std::tuple(64, 256, 3, 2), std::tuple(256, 64, 3, 2),
        std::tuple(256, 256, 2, 3)}) {
    SCOPED_TRACE(qk * 1000 + v);
    problem::AttentionProblem problem = BackwardCall().problem();
    problem.qk_dim = qk, problem.v_dim = v;
    const shared::BackwardSm90Config config = plan::backward_sm90_config(problem, plan::backward_mods(problem));
    EXPECT_TRUE(config.wide);
    EXPECT_EQ(config.q_stages, of_q);
    EXPECT_EQ(config.d_o_stages, of_d_o);
    const shared::BackwardWideMemory memory = shared::backward_wide_memory(config);
    EXPECT_LE(memory.bytes, plan::kSm90SharedMemory);
    EXPECT_EQ(memory.bytes, shared::backward_shared_bytes(config));
    for (const int swizzled : {memory.v, memory.peer_k, memory.q, memory.d_o, memory.d_s, memory.d_q}) {
      EXPECT_EQ(swizzled % 1024, 0);
    }
  }
}

// In each step one CTA of the pair computes a panel of dQ, over the keys of both CTAs. Over two steps both compute as
// many panels.
TEST(BackwardSm90, PairsShareDq) {
  for (int panels = 1; panels <= 4; ++panels) {
    shared::BackwardSm90Config config;
    config.qk_dim = 64 * panels;
    int of_first = 0;
    for (int step = 0; step < 2; ++step) {
      const int border = shared::wide_d_q_border(config, step);
      of_first += border;
      EXPECT_LE(border, shared::wide_peer_panels(config));
      EXPECT_GE(border, shared::wide_first_peer_panel(config, 1));
      EXPECT_EQ(shared::wide_first_peer_panel(config, 0), 0);
      EXPECT_GE(shared::wide_first_peer_panel(config, 1) + shared::wide_peer_panels(config), panels);
    }
    EXPECT_EQ(of_first, panels);
  }
}

TEST(BackwardSm90, PairsHaveTwoCtasATile) {
  BackwardCall call;
  call.call.dim = 256;
  call.call.q_rows = 64;                       // a step, which is not shared
  EXPECT_EQ(call.plan().grid, 2 * 2 * 2 * 3);  // sequences, heads of keys, tiles of 128
  const auto of_four = call.plan().workspace_bytes;
  call.call.dim = 192;                                                           // sums of three panels, not of four
  EXPECT_EQ(of_four - call.plan().workspace_bytes, 2 * 4 * shared::kPartBytes);  // batch, heads
}

// If a mod leaves too few registers for lse and delta, a warpgroup reads them where they stand. If that is not enough,
// it also reads the mod's numbers again instead of holding them.
TEST(BackwardSm90, PairsHavePlansWithFewerRegisters) {
  struct Registers {
    bool early_numbers, frugal;
    bool operator==(const Registers&) const = default;
  };
  BackwardCall call;
  const auto choices = [&] {
    return call.with_request([&](const plan::Request& request) {
      std::vector<Registers> all;
      for (const plan::Choice& choice :
           plan::backward_sm90(request, h200(), [&](BlockSize block) { return call.call.rows_of(block); })) {
        const shared::BackwardSm90Config& config = choice.plan.part<shared::BackwardSm90Config>();
        all.push_back({config.early_numbers, config.frugal});
      }
      return all;
    });
  };
  const Registers all{true, false}, late{false, false}, fewest{false, true};
  call.call.dim = 256;
  call.call.q_rows = 64;                           // not shared
  EXPECT_EQ(choices(), (std::vector{all, late}));  // a plain score holds nothing that it can read again
  call.call.options.score_mod = mods::softcap(20);
  EXPECT_EQ(choices(), (std::vector{late, fewest}));
}

// Few tiles of many steps are shared, by all kernels alike; kernels without shares stand behind, for mods that leave no
// registers for them.
TEST(BackwardSm90, FewTilesAreShared) {
  for (const int dim : {64, 256}) {
    BackwardCall call;
    call.call.dim = dim;
    call.call.q_rows = 2000;
    call.call.kv_rows = 600;
    call.with_request([&](const plan::Request& request) {
      std::vector<int> places;
      std::vector<bool> shared;
      for (const plan::Choice& choice :
           plan::backward_sm90(request, h200(), [&](BlockSize block) { return call.call.rows_of(block); })) {
        const auto& config = choice.plan.part<shared::BackwardSm90Config>();
        const auto says = [](const std::string& sentence) {
          return sentence.find("shared by several CTAs") != std::string::npos;
        };
        EXPECT_EQ(std::ranges::any_of(choice.plan.gradients, says), config.shares);
        shared.push_back(config.shares);
        if (config.ring || !config.shares) continue;
        places.push_back(
            plan::backward_sm90_schedule(request.problem, config, choice.block_mask.get(), choice.plan.multiprocessors)
                .share_places);
      }
      EXPECT_TRUE(std::ranges::is_sorted(shared, std::greater()));
      EXPECT_TRUE(shared.front() && !shared.back());
      EXPECT_GT(places.front(), 0);
      EXPECT_EQ(places, std::vector(places.size(), places.front()));
      return 0;
    });
  }
}

// If a mod leaves too few registers for a ring of dQ's sums, the next kernel has none, and a list and a workspace of
// its own.
TEST(BackwardSm90, WhereTheRingFindsNoRegistersThereIsNone) {
  BackwardCall call;
  call.call.dim = 128;
  call.call.q_rows = 64;  // not shared
  call.with_request([&](const plan::Request& request) {
    const std::vector<plan::Choice> choices =
        plan::backward_sm90(request, h200(), [&](BlockSize block) { return call.call.rows_of(block); });
    std::vector<bool> rings;
    for (const plan::Choice& choice : choices) {
      const auto& config = choice.plan.part<shared::BackwardSm90Config>();
      rings.push_back(config.ring);
      const plan::BackwardSm90Schedule schedule =
          plan::backward_sm90_schedule(request.problem, config, choice.block_mask.get(), choice.plan.multiprocessors);
      EXPECT_EQ(choice.plan.workspace_bytes, plan::backward_sm90_workspace(request.problem, config).bytes +
                                                 plan::tile_shares_memory(config, schedule.share_places).bytes);
      EXPECT_EQ(choice.plan.grid, std::ssize(schedule.items));
    }
    EXPECT_EQ(rings, (std::vector{true, false, false}));
    return 0;
  });
}

// Each pair of a block of keys and a block of queries that the mask does not rule out stands in one run of its tile, of
// each query head.
TEST(BackwardSm90, RunsHaveEveryBlockOnce) {
  BackwardCall call;
  call.call.mask = mods::causal();
  const problem::AttentionProblem problem = call.problem();
  const auto mask = call.call.rows_of({64, 64});
  shared::BackwardSm90Config config = call.plan().part<shared::BackwardSm90Config>();
  config.ring = config.shares = false;  // which add other tiles
  const plan::BackwardSchedule schedule = plan::backward_sm90_schedule(problem, config, mask.get(), 132);
  EXPECT_EQ(schedule.items.size(), 2U * 2 * 3);  // sequences, heads of keys, tiles of 128
  EXPECT_EQ(schedule.blocks.size(), 2U * 4);     // of 64 queries
  for (const shared::BackwardItem& item : schedule.items) {
    int steps = 0;
    for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
      const shared::QueryRun& run = schedule.runs[static_cast<std::size_t>(r)];
      EXPECT_EQ(run.head / 2, item.kv_head);
      for (int block = run.begin; block < run.end; ++block, ++steps) {
        for (int w = 0; w < 2; ++w) {
          const int keys = 2 * item.kv_tile + w;  // a block of 64; causal: the queries of block q attend those up to q
          const bool attends = keys <= block && 64 * keys < 300, partial = keys == block && attends;
          EXPECT_EQ((run.flags & shared::kStepAttends << w) != 0, attends) << keys << ' ' << block;
          EXPECT_EQ((run.flags & shared::kStepPartial << w) != 0, partial) << keys << ' ' << block;
        }
      }
    }
    EXPECT_EQ(steps, item.steps);
    EXPECT_EQ(steps, 2 * std::max(0, 4 - 2 * item.kv_tile));  // of two query heads
  }
  EXPECT_EQ(schedule.longest, 8);
}

// In order, the tiles that visit a block of queries have the ranks 0, 1, .. in the order of their keys, which is that
// of the list.
TEST(BackwardSm90, RanksAreTheOrderOfTheKeys) {
  for (const Expr& mask : {Expr(), mods::causal(), mods::sliding_window(70, 20)}) {
    BackwardCall call{.deterministic = true};
    call.call.kv_rows = 700;
    call.call.q_rows = 500;
    call.call.mask = mask;
    const problem::AttentionProblem problem = call.problem();
    const auto rows = mask.empty() ? nullptr : call.call.rows_of({64, 64});
    const shared::BackwardSm90Config config = call.plan().part<shared::BackwardSm90Config>();
    ASSERT_TRUE(config.ordered);
    const plan::BackwardSchedule schedule = plan::backward_sm90_schedule(problem, config, rows.get(), 132);
    shared::BackwardSm90Config free = config;
    free.ordered = false;
    const plan::BackwardSchedule any_order = plan::backward_sm90_schedule(problem, free, rows.get(), 132);
    EXPECT_EQ(schedule.steps, any_order.steps);
    EXPECT_EQ(schedule.ranks.size(), schedule.runs.size());
    EXPECT_TRUE(any_order.ranks.empty());
    std::map<std::tuple<int, int, int>, int> next, last_tile;  // of a sequence, a query head and a block
    for (const shared::BackwardItem& item : schedule.items) {
      int steps = 0;
      for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
        const shared::QueryRun& run = schedule.runs[static_cast<std::size_t>(r)];
        for (int block = run.begin; block < run.end; ++block, ++steps) {
          const std::tuple key(item.batch, run.head, block);
          EXPECT_EQ(schedule.ranks[static_cast<std::size_t>(r)], next[key]++);
          EXPECT_TRUE(!last_tile.contains(key) || last_tile[key] < item.kv_tile);
          last_tile[key] = item.kv_tile;
        }
      }
      EXPECT_EQ(steps, item.steps);
    }
    EXPECT_EQ(std::ssize(schedule.items), std::ssize(any_order.items));
  }
}

// Rows that tensor cores hold and rows that kernels around them write are the same.
TEST(BackwardSm90, PlacesOfRowsAndParts) {
  std::vector<int> rows(shared::kBlockNumbers, -1);
  for (int row = 0; row < shared::kBlockRows; ++row) rows[static_cast<std::size_t>(shared::offset_of_row(row))] = row;
  for (int lane = 0; lane < 32; ++lane) {
    for (int j = 0; j < 8; ++j) {
      for (int e = 0; e < 2; ++e) {
        EXPECT_EQ(rows[static_cast<std::size_t>(shared::offset_of_lane(lane) + 2 * j + e)], 8 * j + 2 * (lane % 4) + e);
      }
    }
  }
  for (int thread = 0; thread < 128; ++thread) {
    for (int n = 0; n < 32; ++n) {
      const int row = 16 * (thread / 32) + thread % 32 / 4 + 8 * (n / 2 % 2),
                column = 8 * (n / 4) + 2 * (thread % 4) + n % 2;
      EXPECT_EQ(shared::offset_in_part(row, column), 4 * (128 * (n / 4) + thread) + n % 4);
    }
  }
}

TEST(BackwardSm90, ExplainsGradients) {
  const plan::Plan plan = BackwardCall().plan();
  ASSERT_EQ(plan.gradients.size(), 6U);
  EXPECT_EQ(plan.gradients[1], "dq: tiles of keys add to sums in f32, in any order; bits may differ from run to run");
  EXPECT_NE(plan.gradients[3].find("a ring"), std::string::npos);
  EXPECT_NE(plan.gradients[4].find("a warpgroup of its own"), std::string::npos);
  EXPECT_GT(plan.predicted->seconds, 0);
  EXPECT_EQ(plan.predicted->flops, 2.0 * 5 * 64 * 2 * 4 * 200 * 300);
}

}  // namespace
}  // namespace heddle::test
