// Attention over ranks that are threads of this process equals attention in float64 over the whole sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "context/whole_sequence.h"

namespace heddle::test {
namespace {

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
