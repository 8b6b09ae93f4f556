// Attention over ranks that are threads of this process equals attention in float64 over the whole sequence.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "context/observed_communicator.h"
#include "context/whole_sequence.h"

namespace heddle::test {
namespace {

TEST(ContextAttention, EqualsOneRank) {
  for (const std::int64_t ranks : {1, 2, 4}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      Whole of;
      of.ranks = ranks;
      of.dtype = dtype;
      of.score = mods::alibi(Capture("slopes", DType::f32, 1));
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << name(dtype));
      expect_right(of);
    }
  }
}

TEST(ContextAttention, TakesEveryMaskAndPlacement) {
  for (const Placing placing : {Placing::contiguous, Placing::zigzag, Placing::heap}) {
    Whole of;
    of.placing = placing;
    of.mask = mods::sliding_window(9);
    of.score = mods::softcap(3);
    expect_right(of);
    of.mask = Expr();
    of.weight = mods::dropout(0.3, 5);
    expect_right(of);
  }
  Whole by_head;
  by_head.batch = 2;
  by_head.heads = 4;
  by_head.kv_heads = 2;
  by_head.mask = leaf::q_idx() - leaf::kv_idx() <= leaf::h() * 8 && mods::causal();
  expect_right(by_head);
  Whole more_keys;
  more_keys.kv_len = 120;
  more_keys.mask = mods::prefix_lm(50);
  expect_right(more_keys);
  Whole packed;
  packed.ranks = 4;
  packed.heads = 4;
  packed.placing = Placing::documents;
  packed.set_documents({30, 3, 17});
  expect_right(packed);
  packed.ranks_per_host = 2;
  expect_right(packed);
  Whole sunk;
  sunk.sinks = true;
  expect_right(sunk);
  Whole idle;  // a rank without rows
  idle.chunk = 40;
  idle.placing = Placing::contiguous;
  expect_right(idle);
}

TEST(ContextAttention, RowsCrossOnceToAHost) {
  for (const Placing placing : {Placing::contiguous, Placing::zigzag, Placing::heap}) {
    Whole of;
    of.ranks = 4;
    of.ranks_per_host = 2;
    of.placing = placing;
    of.score = mods::alibi(Capture("slopes", DType::f32, 1));
    of.times = 2;  // sums of the first time do not enter the second
    expect_right(of);
    of.mask = mods::sliding_window(9);
    of.dtype = DType::bf16;
    expect_right(of);
    of.mask = Expr();
    of.kv_len = 90;
    of.batch = 2;
    expect_right(of);
  }
  Whole three;
  three.ranks = 6;
  three.ranks_per_host = 2;
  three.dtype = DType::f64;
  expect_right(three);
  three.ranks_per_host = 3;
  three.chunk = 20;  // ranks without rows
  expect_right(three);
}

// Two hosts of two ranks: few bytes cross at once, many cross once to each host. Both are right.
TEST(ContextAttention, CrossesInTheStepsThatAreFasterByTheBytes) {
  Whole of;
  of.ranks = 4;
  of.ranks_per_host = 2;
  of.mask = Expr();
  of.q_len = of.kv_len = 512;
  of.dim = of.v_dim = 2;
  of.heads = of.kv_heads = 1;
  of.chunk = of.block = 32;
  of.host_steps = HostSteps::automatic;
  expect_right(of);
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  for (const auto& [steps, heads, crossing, exchanges] : {std::tuple(HostSteps::automatic, 1, 0, 1),
                                                          {HostSteps::automatic, 128, 256, 2},
                                                          {HostSteps::one, 1, 0, 1},
                                                          {HostSteps::two, 1, 256, 2}}) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(steps) << ", " << heads << " heads");
    MadePartition made = partition;
    made.host_steps = steps;
    ThreadRanks ranks(4);
    ranks.run([&](Communicator& threads) {
      Observed communicator(threads);
      ContextAttention context(made, blocks, {.threads = 1}, communicator);
      const std::int64_t rows = made.queries.rows(threads.rank());
      const Tensor q = Tensor::zeros(DType::f64, {1, heads, rows, 64}), o = Tensor::zeros(DType::f64, q.shape());
      context.forward({q, q, q, o});
      EXPECT_EQ(context.exchange_plan().crossing_rows(threads.rank()), crossing / 2);
      EXPECT_EQ(communicator.ended, exchanges);
    });
  }
}

// Rows in whole granules of 128, the last one cut: positions are looked up by granules.
TEST(ContextAttention, TakesGranules) {
  Whole of;
  of.q_len = of.kv_len = 400;
  of.chunk = of.block = 128;
  of.heads = 1;
  of.ranks = 2;
  of.score = mods::alibi(Capture("slopes", DType::f32, 1));
  for (const Placing placing : {Placing::contiguous, Placing::zigzag, Placing::heap}) {
    of.placing = placing;
    of.mask = mods::causal();
    expect_right(of);
    of.mask = mods::sliding_window(130);
    expect_right(of);
  }
}

}  // namespace
}  // namespace heddle::test
