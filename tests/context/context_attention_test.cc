// Attention over ranks that are threads of this process equals attention in float64 over the whole sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "context/whole_sequence.h"

namespace heddle::test {
namespace {

/// A Communicator that counts its exchanges and may fail in one.
class Observed final : public Communicator {
 public:
  explicit Observed(Communicator& ranks) : ranks_(ranks) {}
  std::int64_t rank() const override { return rank_off + ranks_.rank(); }
  std::int64_t size() const override { return ranks_.size(); }
  void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                std::span<const std::int64_t> receive_bytes, void* stream) override {
    if (calls_from != std::this_thread::get_id()) ++elsewhere;
    ranks_.exchange(send, send_bytes, receive, receive_bytes, stream);
    if (++ended == fails_at) throw Error(ErrorCode::device, "the link is gone");
  }
  bool agree(std::uint64_t number) override { return ranks_.agree(number); }

  const std::thread::id calls_from = std::this_thread::get_id();
  std::atomic<int> ended = 0, elsewhere = 0;  // exchanges; in other threads than the caller's
  int fails_at = 0;
  std::int64_t rank_off = 0;

 private:
  Communicator& ranks_;
};

/// A Communicator whose functions fail the test if an exchange follows on an error.
struct Outcome {
  std::vector<std::string> messages;  // of each rank; empty: none
  std::int64_t exchanges = 0;
};

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

/// Calls make() on each rank; `wrong` is the last one's, where true.
template <class Call>
Outcome outcome_of(std::int64_t count, Call&& call) {
  Outcome outcome{std::vector<std::string>(static_cast<std::size_t>(count))};
  ThreadRanks ranks(count);
  ranks.run([&](Communicator& communicator) {
    try {
      call(communicator, communicator.rank() == count - 1);
    } catch (const Error& error) {
      outcome.messages[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  outcome.exchanges = ranks.exchanges();
  return outcome;
}

TEST(ContextAttention, HeadGroupsHaveTheBitsOfOne) {
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

TEST(ContextAttention, ExchangesOfGroupsRunBesideTheThreadThatComputes) {
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

TEST(ContextAttention, AFailedExchangeOfALaterGroupEndsTheCall) {
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

using testing::Each;
using testing::HasSubstr;

TEST(ContextAttention, RefusesBeforeAnythingIsSent) {
  Whole of;
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  const auto refused = [&](const auto& change, const char* text) {
    const Outcome outcome = outcome_of(3, [&](Communicator& communicator, bool last) {
      AttentionOptions options = of.options();
      if (last) change(options);
      const ContextAttention context(partition, blocks, options, communicator);
    });
    EXPECT_THAT(outcome.messages.back(), HasSubstr(text));
    EXPECT_THAT(outcome.messages.front(), HasSubstr("rank 0 of 3 stops"));
    EXPECT_EQ(outcome.exchanges, 0);
  };
  refused([](AttentionOptions& options) { options.mask_mod = mods::causal(); }, "mask_mod is given");
  refused([](AttentionOptions& options) { options.max_kv_len = 5; }, "max_kv_len is given");
  refused([](AttentionOptions& options) { options.backend = BackendChoice::cuda; },
          "backend is cuda, and the communicator carries rows of the CPU; cpu and automatic are accepted");
  refused([](AttentionOptions& options) { options.scale = 3; }, "rank 2 of 3 stops");
  refused([](AttentionOptions& options) { options.score_mod = mods::softcap(2); }, "rank 2 of 3 stops");
  refused([&](AttentionOptions& options) { options.bindings.captures["context_keys"] = of.slopes; }, "'context_keys'");

  // Another placement, another mask and other hosts on one rank.
  Whole other = of;
  other.chunk = 8;
  const MadePartition other_partition = other.partition(blocks);
  other.mask = mods::sliding_window(9);
  const BlockMask other_mask = other.block_mask();
  for (const bool is_mask : {false, true}) {
    const Outcome one = outcome_of(3, [&](Communicator& communicator, bool last) {
      const ContextAttention context(last && !is_mask ? other_partition : partition,
                                     last && is_mask ? other_mask : blocks, of.options(), communicator);
    });
    EXPECT_THAT(one.messages,
                Each(HasSubstr("of 3 stops: another rank raised an error, which says why, or differs in")));
    EXPECT_EQ(one.exchanges, 0);
  }
  Whole on_hosts = of;
  on_hosts.ranks = 4;
  on_hosts.placing = Placing::contiguous;
  const MadePartition flat = on_hosts.partition(blocks);
  on_hosts.ranks_per_host = 2;
  const MadePartition by_hosts = on_hosts.partition(blocks);
  const Outcome hosts = outcome_of(4, [&](Communicator& communicator, bool last) {
    const ContextAttention context(last ? flat : by_hosts, blocks, of.options(), communicator);
  });
  EXPECT_THAT(hosts.messages, Each(HasSubstr("of 4 stops")));

  const Outcome other_size = outcome_of(2, [&](Communicator& communicator, bool) {
    const ContextAttention context(partition, blocks, of.options(), communicator);
  });
  EXPECT_THAT(other_size.messages, Each(HasSubstr("the partition is of 3 ranks, and the communicator of 2")));
  Whole small;
  small.q_len = small.kv_len = 2;
  const BlockMask few = small.block_mask();
  const Outcome fewer = outcome_of(3, [&](Communicator& communicator, bool) {
    const ContextAttention context(small.partition(few), few, small.options(), communicator);
  });
  EXPECT_THAT(fewer.messages, Each(HasSubstr("the sequence has 2 queries, and there are 3 ranks")));
  Whole longer;
  longer.q_len = longer.kv_len = 80;
  const BlockMask of_others = longer.block_mask();
  const Outcome lengths = outcome_of(3, [&](Communicator& communicator, bool) {
    const ContextAttention context(partition, of_others, of.options(), communicator);
  });
  EXPECT_THAT(lengths.messages, Each(HasSubstr("80")));
}

TEST(ContextAttention, RefusesGroupsAndRanksThatAreNotThere) {
  Whole of;
  of.heads = of.kv_heads = 4;
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  const auto refused = [&](std::int64_t groups, std::int64_t last_groups, DType o_dtype, std::int64_t o_heads,
                           const char* text) {
    const Outcome outcome = outcome_of(3, [&](Communicator& communicator, bool last) {
      ContextAttention context(partition, blocks, of.options(), communicator);
      context.set_head_groups(last ? last_groups : groups);
      const std::int64_t rows = partition.queries.rows(communicator.rank());
      const Tensor q = of.draw(4, rows, of.dim, 1), v = of.draw(4, rows, of.v_dim, 3),
                   o = of.draw(o_heads, rows, of.v_dim, 4).to(o_dtype);
      context.forward({q, q, v, o});
    });
    EXPECT_THAT(outcome.messages.back(), HasSubstr(text));
    EXPECT_THAT(outcome.messages.front(), testing::Not(testing::IsEmpty()));
    EXPECT_EQ(outcome.exchanges, 0);
  };
  refused(1, 3, DType::f32, 4, "head_groups is 3; 0 and divisors of the 4 heads of k are accepted");
  refused(1, 2, DType::f32, 4, "rank 2 of 3 stops");
  refused(2, 2, DType::f32, 2, "o has shape [1, 2, ");
  refused(2, 2, DType::i32, 4, "o");
  const auto made = [&](std::int64_t rank_off, const AttentionOptions& options) {
    return outcome_of(3, [&](Communicator& threads, bool) {
      Observed communicator(threads);
      communicator.rank_off = rank_off;
      ContextAttention context(partition, blocks, options, communicator);
      context.set_head_groups(-1);
    });
  };
  EXPECT_THAT(made(3, of.options()).messages, Each(HasSubstr("of 3, so it misses this one; 0 to 2 are accepted")));
  EXPECT_THAT(made(0, of.options()).messages, Each(HasSubstr("groups is -1; 0 and more are accepted")));
  AttentionOptions named = of.options();
  named.bindings.params["context_first_head"] = 1.0;
  EXPECT_THAT(made(0, named).messages, Each(HasSubstr("a param is called 'context_first_head'")));
  EXPECT_THROW(default_head_groups(0, 1, 1, 1), Error);
}

// Causal over two ranks; the planner's times for 1 to 8 groups, and the exposed exchange, are least for these.
TEST(ContextAttention, ChoosesGroupsOfTheLeastPredictedTime) {
  constexpr std::int64_t kRow = 2 * 128 * 2;  // bytes of a head's key and value
  for (const auto& [length, heads, kv_heads, groups] :
       {std::array<std::int64_t, 4>{32768, 16, 16, 2}, {32768, 64, 8, 2}, {131072, 16, 16, 2}, {1024, 64, 8, 1}}) {
    const std::int64_t rows = length / 2;
    const double flop = 4.0 * 128 * static_cast<double>(heads * rows * rows);
    EXPECT_EQ(default_head_groups(kv_heads, rows * kv_heads * kRow, heads * rows / 128, flop), groups) << length;
  }
  EXPECT_EQ(default_head_groups(8, std::int64_t{1} << 32, 1 << 20, 1e15), 8) << "a long exchange, and many tiles";
  EXPECT_EQ(default_head_groups(8, 0, 1 << 20, 1e15), 1) << "nothing is exchanged";
}

TEST(ContextAttention, AWrongCallOfOneRankIsAnErrorOnEach) {
  Whole of;
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  const auto refused = [&](std::int64_t more_rows, DType dtype, bool reads_outside, const char* text) {
    const Outcome outcome = outcome_of(3, [&](Communicator& communicator, bool last) {
      AttentionOptions options = of.options();
      if (reads_outside) options.score_mod = leaf::score() + Capture("slopes", DType::f32, 1)(leaf::q_idx());
      const ContextAttention context(partition, blocks, options, communicator);
      const std::int64_t rows = partition.queries.rows(communicator.rank()),
                         keys = partition.keys.rows(communicator.rank());
      Whole own = of;
      own.dtype = last ? dtype : of.dtype;
      const Tensor q = own.draw(of.heads, rows + (last ? more_rows : 0), of.dim, 1),
                   k = own.draw(of.kv_heads, keys, of.dim, 2), v = own.draw(of.kv_heads, keys, of.v_dim, 3),
                   o = own.draw(of.heads, rows, of.v_dim, 4);
      context.forward({q, k, v, o});
    });
    EXPECT_THAT(outcome.messages.back(), HasSubstr(text));
    EXPECT_THAT(outcome.messages.front(), testing::Not(testing::IsEmpty()));
    EXPECT_EQ(outcome.exchanges, 0);
  };
  refused(1, DType::f32, false, "rows, which this rank holds, are accepted");
  refused(0, DType::f64, false, "rank 2 of 3 stops");
  refused(0, DType::f32, true, "slopes");
}

}  // namespace
}  // namespace heddle::test
