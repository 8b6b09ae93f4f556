// Heads in groups: the bits of one group, exchanges beside the computing, and how many groups a call takes.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "context/observed_communicator.h"
#include "context/whole_sequence.h"

namespace heddle::test {
namespace {

TEST(ContextHeadGroups, HeadGroupsHaveTheBitsOfOne) {
  Whole of;
  of.heads = 8;
  of.kv_heads = 4;
  of.batch = 2;
  of.bindings.captures["slopes"] = of.slopes = mods::alibi_slopes(8);
  of.sink_values = Tensor::zeros(DType::f32, {8});
  for (int h = 0; h < 8; ++h) static_cast<float*>(of.sink_values.data())[h] = static_cast<float>(h) - 4;
  of.sinks = true;
  of.score = mods::alibi(Capture("slopes", DType::f32, 1));
  of.weight = mods::dropout(0.3, 5);
  const auto expect_same_bits = [&] {
    of.head_groups = 1;
    const Gathered one = expect_right(of);
    for (const std::int64_t groups : {2, 4}) {
      SCOPED_TRACE(testing::Message() << groups << " groups");
      of.head_groups = groups;
      const Gathered several = expect_right(of);
      for (const auto member : {&Gathered::o, &Gathered::lse, &Gathered::dq, &Gathered::dk, &Gathered::dv}) {
        const Tensor &x = one.*member, &y = several.*member;
        EXPECT_EQ(std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.count() * size_of(x.dtype()))), 0);
      }
    }
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    of.dtype = dtype;
    expect_same_bits();
  }
  of.mask = leaf::q_idx() - leaf::kv_idx() <= leaf::h() * 8 && mods::causal();
  of.ranks = 4;
  of.ranks_per_host = 2;
  expect_same_bits();
}

/// Calls call(context, communicator, tensors) on each of two ranks over four heads in `groups` groups.
template <class Call>
void on_two_ranks_in_groups(std::int64_t groups, Call&& call) {
  Whole of;
  of.ranks = 2;
  of.heads = of.kv_heads = 4;
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& threads) {
    try {
      Observed communicator(threads);
      ContextAttention context(partition, blocks, of.options(), communicator);
      context.set_head_groups(groups);
      const std::int64_t rows = partition.queries.rows(communicator.rank());
      const auto draw = [&](std::int64_t columns, unsigned seed) { return of.draw(4, rows, columns, seed); };
      const Tensor q = draw(of.dim, 1), k = draw(of.dim, 2), v = draw(of.v_dim, 3), o = draw(of.v_dim, 4),
                   d_o = draw(of.v_dim, 5), dq = draw(of.dim, 6), dk = draw(of.dim, 7), dv = draw(of.v_dim, 8),
                   lse = Tensor::empty(DType::f32, {1, 4, rows});
      BackwardTensors backward{q, k, v, o, lse, d_o};
      backward.dq = dq, backward.dk = dk, backward.dv = dv;
      call(context, communicator, AttentionTensors{q, k, v, o, lse}, backward);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
}

TEST(ContextHeadGroups, ExchangesOfGroupsRunBesideTheThreadThatComputes) {
  on_two_ranks_in_groups(4, [](ContextAttention& context, Observed& communicator, const AttentionTensors& forward,
                               const BackwardTensors& backward) {
    context.forward(forward);
    EXPECT_EQ(communicator.ended, 4);
    context.backward(backward);
    EXPECT_EQ(communicator.ended, 4 + 8);
    EXPECT_EQ(communicator.elsewhere, 12);
  });
  on_two_ranks_in_groups(0, [](ContextAttention& context, Observed& communicator, const AttentionTensors& forward,
                               const BackwardTensors& backward) {
    context.forward(forward);
    context.backward(backward);
    EXPECT_EQ(communicator.ended, 3) << "on the CPU one group, unless more are asked for";
    EXPECT_EQ(communicator.elsewhere, 0);
  });
}

TEST(ContextHeadGroups, AFailedExchangeOfALaterGroupEndsTheCall) {
  on_two_ranks_in_groups(4, [](ContextAttention& context, Observed& communicator, const AttentionTensors& forward,
                               const BackwardTensors& backward) {
    for (const int fails_at : {2, 4 + 3, 4 + 8}) {
      communicator.ended = 0;
      communicator.fails_at = fails_at;
      try {
        context.forward(forward);
        context.backward(backward);
        ADD_FAILURE() << fails_at;
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "the link is gone");
      }
      EXPECT_EQ(communicator.ended, fails_at) << "later exchanges are left out";
    }
    communicator.fails_at = 0;
    context.forward(forward);  // ranks are in step again
  });
}

// Causal over two ranks; the planner's times for 1 to 8 groups, and the exposed exchange, are least for these.
TEST(ContextHeadGroups, ChoosesGroupsOfTheLeastPredictedTime) {
  constexpr std::int64_t kRow = 2 * 128 * 2;  // bytes of a head's key and value
  for (const auto& [length, heads, kv_heads, groups] :
       {std::array<std::int64_t, 4>{32768, 16, 16, 2}, {32768, 64, 8, 2}, {131072, 16, 16, 2}, {1024, 64, 8, 1}}) {
    const std::int64_t rows = length / 2;
    const double flop = 4.0 * 128 * static_cast<double>(heads * rows * rows);
    EXPECT_EQ(default_head_groups(kv_heads, rows * kv_heads * kRow, heads * rows / 128, flop), groups) << length;
  }
  EXPECT_EQ(default_head_groups(8, std::int64_t{1} << 32, 1 << 20, 1e15), 8) << "a long exchange, and many tiles";
  EXPECT_EQ(default_head_groups(8, 0, 1 << 20, 1e15), 1) << "nothing is exchanged";
  EXPECT_EQ(default_head_groups(8, std::int64_t{1} << 32, 1 << 20, 1e15, 0.5), 1) << "own keys hide the exchange";
  EXPECT_EQ(default_head_groups(8, std::int64_t{1} << 34, 1 << 20, 1e14, 0.1), 8) << "they hide a part of it";
}

}  // namespace
}  // namespace heddle::test
