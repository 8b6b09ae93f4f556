// Calls over ranks that are refused, before anything is sent, on each rank.
#include <gmock/gmock.h>

#include <string>
#include <tuple>
#include <vector>

#include "context/observed_communicator.h"
#include "context/whole_sequence.h"

namespace heddle::test {
namespace {

using testing::Each;
using testing::HasSubstr;

/// How a call ended on each of several ranks.
struct Outcome {
  std::vector<std::string> messages;  // of each rank; empty: none
  std::int64_t exchanges = 0;
};

/// Runs call(communicator, whether it is the last rank) on each of `count` ranks.
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

TEST(ContextRefusals, RefusesBeforeAnythingIsSent) {
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

TEST(ContextRefusals, RefusesGroupsAndRanksThatAreNotThere) {
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
  EXPECT_THROW(default_head_groups(1, 1, 1, 1, 1.5), Error);
}

TEST(ContextRefusals, AWrongCallOfOneRankIsAnErrorOnEach) {
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
