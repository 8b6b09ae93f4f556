// Attention over ranks on the fake CUDA driver and the fake NCCL: a later call enqueues its launches and one group, and
// waits, allocates and compares nothing.
#include <fmt/format.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "backend/cuda/nccl/fake_nccl.h"
#include "heddle/heddle.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

class ContextRanks : public LaunchCase {};

TEST_F(ContextRanks, ALaterCallOnlyEnqueues) {
  ::setenv("HEDDLE_NCCL", FAKE_NCCL, 1);
  constexpr std::int64_t kRanks = 2, kLength = 1024;
  const BlockMask mask = BlockMask::build(mods::causal(), MaskShape::uniform(1, 1, kLength, kLength), {128, 128});
  const WeightedMask weighted = {&mask, 1};
  const MadePartition partition = make_partition({&weighted, 1}, kRanks, {.chunk = 128, .only = Placing::zigzag});
  const NcclId id = make_nccl_id();
  std::barrier together(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      NcclCommunicator communicator(id, rank, kRanks, rank, std::chrono::seconds(20));
      const ContextAttention context(partition, mask, {}, communicator);
      const Device device = communicator.device();
      const Dims rows{1, 2, partition.queries.rows(rank), 128};
      const auto make = [&](DType dtype, const Dims& shape) { return Tensor::empty_on(device, dtype, shape); };
      const Tensor q = make(DType::bf16, rows), k = make(DType::bf16, rows), v = make(DType::bf16, rows),
                   o = make(DType::bf16, rows), d_o = make(DType::bf16, rows), dq = make(DType::bf16, rows),
                   dk = make(DType::bf16, rows), dv = make(DType::bf16, rows), lse = make(DType::f32, {1, 2, rows[2]});
      BackwardTensors tensors{q, k, v, o, lse, d_o};
      tensors.dq = dq, tensors.dk = dk, tensors.dv = dv;
      const auto call = [&] {
        context.forward({q, k, v, o, lse});
        context.backward(tensors);
      };
      call();
      together.arrive_and_wait();
      const FakeNccl& nccl = *fake_nccl(FAKE_NCCL);
      const int groups = nccl.groups, waits = fake().synchronizes, allocations = fake().allocations,
                launches = fake().launches;
      together.arrive_and_wait();
      call();
      together.arrive_and_wait();
      EXPECT_EQ(nccl.groups, groups + 3 * kRanks) << "keys there twice, gradients back";
      EXPECT_EQ(nccl.outside_of_groups, 0);
      EXPECT_EQ(fake().synchronizes, waits);
      EXPECT_EQ(fake().allocations, allocations);
      EXPECT_GT(fake().launches, launches);
      together.arrive_and_wait();
    });
  }
}

}  // namespace
}  // namespace heddle::cuda
