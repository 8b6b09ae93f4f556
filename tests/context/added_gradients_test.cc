// Gradients of ranks that are added to what their tensors hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "context/whole_sequence.h"

namespace heddle::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(AddedGradients, AreSumsOfCalls) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Whole of;
    of.dtype = dtype;
    of.times = 2;
    of.heads = of.kv_heads = 4;
    of.score = mods::alibi(Capture("slopes", DType::f32, 1));
    for (const AddedGradients added : {AddedGradients{true, true, true}, {true, false, false}, {false, true, false}}) {
      for (const std::int64_t groups : {1, 2}) {
        of.added = added;
        of.head_groups = groups;
        expect_right(of);
      }
    }
    of.ranks = 4;
    of.ranks_per_host = 2;
    expect_right(of);
    of.chunk = 40;  // a rank without rows
    of.ranks_per_host = 0;
    expect_right(of);
  }
}

/// Gradients that begin as `seed` draws them, in that dtype, after a backward on each of two ranks.
std::vector<Tensor> gradients_from(DType inputs, DType dtype, std::int64_t groups, unsigned seed,
                                   const AddedGradients& added) {
  Whole of;
  of.ranks = 2;
  of.heads = of.kv_heads = 4;
  of.dtype = inputs;
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  std::vector<Tensor> made(6);
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& communicator) {
    ContextAttention context(partition, blocks, of.options(), communicator);
    context.set_head_groups(groups);
    const std::int64_t rank = communicator.rank(), rows = partition.queries.rows(rank);
    const auto draw = [&](std::int64_t columns, unsigned number) { return of.draw(4, rows, columns, number); };
    const Tensor q = draw(of.dim, 1), k = draw(of.dim, 2), v = draw(of.v_dim, 3), o = draw(of.v_dim, 4),
                 d_o = draw(of.v_dim, 5), lse = Tensor::empty(DType::f32, {1, 4, rows});
    const Tensor dq = draw(of.dim, seed).to(dtype), dk = draw(of.dim, seed + 1).to(dtype),
                 dv = draw(of.v_dim, seed + 2).to(dtype);
    BackwardTensors backward{q, k, v, o, lse, d_o};
    backward.dq = dq, backward.dk = dk, backward.dv = dv;
    context.forward({q, k, v, o, lse});
    context.backward(backward, added);
    for (const auto& [i, gradient] : {std::pair(0, dq), {1, dk}, {2, dv}}) {
      made[static_cast<std::size_t>(3 * rank + i)] = gradient;
    }
  });
  return made;
}

// The sum of f32 is added in f32 to what was there, and stored.
TEST(AddedGradients, HoldTheirTypesSums) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
    for (const std::int64_t groups : {1, 2}) {
      SCOPED_TRACE(testing::Message() << name(dtype) << ", " << groups << " groups");
      const std::vector<Tensor> sums = gradients_from(DType::bf16, DType::f32, groups, 6, {}),
                                written = gradients_from(DType::bf16, dtype, groups, 6, {}),
                                added = gradients_from(DType::bf16, dtype, groups, 6, {true, false, true});
      Whole of;
      of.dtype = DType::bf16;
      for (std::size_t i = 0; i < added.size(); ++i) {
        const Tensor& one = added[i];
        if (i % 3 == 1) {  // dk is written
          EXPECT_EQ(std::memcmp(one.data(), written[i].data(), static_cast<std::size_t>(one.count() * size_of(dtype))),
                    0);
          continue;
        }
        const Tensor before = of.draw(4, one.shape()[2], one.shape()[3], static_cast<unsigned>(6 + i % 3)).to(dtype),
                     before_in_f32 = before.to(DType::f32);
        const Tensor expected = Tensor::empty(DType::f32, one.shape());
        for (std::int64_t n = 0; n < one.count(); ++n) {
          static_cast<float*>(expected.data())[n] =
              static_cast<const float*>(before_in_f32.data())[n] + static_cast<const float*>(sums[i].data())[n];
        }
        const Tensor rounded = expected.to(dtype);
        EXPECT_EQ(std::memcmp(one.data(), rounded.data(), static_cast<std::size_t>(one.count() * size_of(dtype))), 0)
            << i;
      }
    }
  }
}

TEST(AddedGradients, AreRefusedOnEveryRankBeforeAnythingIsSent) {
  Whole of;
  of.heads = of.kv_heads = 4;
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  const auto refused = [&](const auto& change, const AddedGradients& added, const char* text) {
    std::vector<std::string> messages(3);
    ThreadRanks ranks(3);
    ranks.run([&](Communicator& communicator) {
      const std::int64_t rank = communicator.rank(), rows = partition.queries.rows(rank);
      ContextAttention context(partition, blocks, of.options(), communicator);
      const Tensor q = of.draw(4, rows, of.dim, 1), v = of.draw(4, rows, of.v_dim, 3), dq = of.draw(4, rows, of.dim, 6),
                   dk = of.draw(4, rows, of.dim, 7), lse = Tensor::empty(DType::f32, {1, 4, rows});
      BackwardTensors tensors{q, q, v, v, lse, v};
      tensors.dq = dq, tensors.dk = dk;
      if (rank == 2) change(tensors);
      try {
        context.backward(tensors, rank == 2 ? added : AddedGradients{});
      } catch (const Error& error) {
        messages[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    EXPECT_THAT(messages, ElementsAre(HasSubstr("rank 0 of 3 stops"), HasSubstr("rank 1 of 3 stops"), HasSubstr(text)));
    EXPECT_EQ(ranks.exchanges(), 0);
  };
  const auto nothing = [](BackwardTensors&) {};
  refused(nothing, {.v = true}, "added.v is true, and dv is absent; a tensor that holds what is added to is accepted");
  refused([](BackwardTensors& tensors) { tensors.dq.reset(); }, {.q = true}, "added.q is true, and dq is absent");
  refused([](BackwardTensors& tensors) { tensors.dk->strides[1] = 0; }, {.k = true},
          "; elements that share no memory are accepted");
  refused([](BackwardTensors& tensors) { tensors.dk->strides[2] = 4; }, {.k = true}, "dk is added to, and has shape");
  refused([](BackwardTensors& tensors) { tensors.dq->shape[3] = 4; }, {.q = true},
          "; a floating dtype, [1, 4, 24, 8] and 1 are accepted");
  refused([](BackwardTensors& tensors) { tensors.dq->dtype = DType::i32; }, {.q = true}, "dq is i32");
}

}  // namespace
}  // namespace heddle::test
