// Attention over ranks that are threads of this process equals attention in float64 over the whole sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "heddle/check.h"
#include "heddle/context_parallel.h"
#include "heddle/error.h"
#include "heddle/mods.h"
#include "thread_communicator.h"

namespace heddle::test {
namespace {

/// A problem over a whole sequence, and its tensors.
struct Whole {
  std::int64_t ranks = 3, batch = 1, heads = 2, kv_heads = 1, q_len = 75, kv_len = 75, dim = 8, v_dim = 12;
  DType dtype = DType::f32;
  Expr mask = mods::causal(), score{}, weight{};
  std::optional<Placing> placing{};
  std::int64_t chunk = 4;
  bool sinks = false;

  Whole() { bindings.captures["slopes"] = slopes = mods::alibi_slopes(4); }

  Tensor draw(std::int64_t of_heads, std::int64_t rows, std::int64_t columns, unsigned seed) const {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    Tensor tensor = Tensor::empty(DType::f32, {batch, of_heads, rows, columns});
    for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(generator);
    return tensor.to(dtype);
  }
  AttentionOptions options() const {
    AttentionOptions all;
    all.score_mod = score;
    all.weight_mod = weight;
    all.bindings = bindings;
    all.threads = 1;
    if (sinks) all.sinks = sink_values;
    return all;
  }
  AttentionOptions whole_options() const {
    AttentionOptions all = options();
    all.mask_mod = mask;
    return all;
  }
  BlockMask block_mask() const {
    return BlockMask::build(mask, MaskShape::uniform(batch, heads, q_len, kv_len), {4, 4}, bindings);
  }
  MadePartition partition(const BlockMask& blocks) const {
    const WeightedMask weighted = {&blocks, 1};
    return make_partition({&weighted, 1}, ranks, {.chunk = chunk, .only = placing});
  }

  Tensor slopes, sink_values = Tensor::zeros(DType::f32, {2});
  Bindings bindings;
};

/// Copies some rows of axis 2 between a tensor of the whole sequence and one of a rank.
void copy_rows(const TensorView& whole, const TensorView& part, const std::vector<std::int64_t>& positions,
               bool to_whole) {
  const std::int64_t columns = whole.rank() == 4 ? whole.shape[3] : 1;
  for (std::int64_t b = 0; b < whole.shape[0]; ++b) {
    for (std::int64_t h = 0; h < whole.shape[1]; ++h) {
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const std::int64_t count = columns * size_of(whole.dtype);
        auto* of_whole =
            static_cast<std::byte*>(whole.data) + ((b * whole.shape[1] + h) * whole.shape[2] + positions[i]) * count;
        auto* of_part = static_cast<std::byte*>(part.data) +
                        ((b * part.shape[1] + h) * part.shape[2] + static_cast<std::int64_t>(i)) * count;
        std::memcpy(to_whole ? of_whole : of_part, to_whole ? of_part : of_whole, static_cast<std::size_t>(count));
      }
    }
  }
}
Tensor rows_of(const Tensor& whole, const std::vector<std::int64_t>& positions) {
  Dims shape = whole.shape();
  shape[2] = std::ssize(positions);
  Tensor part = Tensor::empty(whole.dtype(), shape);
  copy_rows(whole, part, positions, false);
  return part;
}

/// A Communicator whose functions fail the test if an exchange follows on an error.
struct Outcome {
  std::vector<std::string> messages;  // of each rank; empty: none
  std::int64_t exchanges = 0;
};

/// Runs forward and backward over ranks and judges what they gather.
void expect_right(const Whole& of) {
  const Tensor q = of.draw(of.heads, of.q_len, of.dim, 1), k = of.draw(of.kv_heads, of.kv_len, of.dim, 2),
               v = of.draw(of.kv_heads, of.kv_len, of.v_dim, 3), d_o = of.draw(of.heads, of.q_len, of.v_dim, 4);
  const DType reals = of.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor o = Tensor::empty(of.dtype, d_o.shape()), lse = Tensor::empty(reals, {of.batch, of.heads, of.q_len}),
               dq = Tensor::empty(of.dtype, q.shape()), dk = Tensor::empty(of.dtype, k.shape()),
               dv = Tensor::empty(of.dtype, v.shape());
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  ThreadRanks ranks(of.ranks);
  std::mutex gathering;
  ranks.run([&](Communicator& communicator) {
    try {
      const ContextAttention context(partition, blocks, of.options(), communicator);
      const auto queries = partition.queries.positions(communicator.rank()),
                 keys = partition.keys.positions(communicator.rank());
      const Tensor own_q = rows_of(q, queries), own_k = rows_of(k, keys), own_v = rows_of(v, keys),
                   own_d_o = rows_of(d_o, queries), own_o = rows_of(o, queries), own_lse = rows_of(lse, queries),
                   own_dq = rows_of(dq, queries), own_dk = rows_of(dk, keys), own_dv = rows_of(dv, keys);
      context.forward({own_q, own_k, own_v, own_o, own_lse});
      BackwardTensors tensors{own_q, own_k, own_v, own_o, own_lse, own_d_o};
      tensors.dq = own_dq, tensors.dk = own_dk, tensors.dv = own_dv;
      context.backward(tensors);
      const std::scoped_lock lock(gathering);
      for (const auto& [whole, part] : {std::pair(o, own_o), {lse, own_lse}, {dq, own_dq}}) {
        copy_rows(whole, part, queries, true);
      }
      copy_rows(dk, own_dk, keys, true);
      copy_rows(dv, own_dv, keys, true);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
  const CheckReport forward = check_attention(q, k, v, of.whole_options(), o, lse);
  EXPECT_TRUE(forward.passed) << forward.text();
  BackwardTensors tensors{q, k, v, o, lse, d_o};
  tensors.dq = dq, tensors.dk = dk, tensors.dv = dv;
  const GradientReport backward = check_backward(tensors, of.whole_options());
  EXPECT_TRUE(backward.passed) << backward.text();
}

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
  Whole sunk;
  sunk.sinks = true;
  expect_right(sunk);
  Whole idle;  // a rank without rows
  idle.chunk = 40;
  idle.placing = Placing::contiguous;
  expect_right(idle);
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
  refused([](AttentionOptions& options) { options.backend = BackendChoice::cuda; }, "backend is cuda");
  refused([](AttentionOptions& options) { options.scale = 3; }, "rank 2 of 3 stops");
  refused([](AttentionOptions& options) { options.score_mod = mods::softcap(2); }, "rank 2 of 3 stops");
  refused([&](AttentionOptions& options) { options.bindings.captures["context_keys"] = of.slopes; }, "'context_keys'");

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
