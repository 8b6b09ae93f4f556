// Attention over ranks on the fake CUDA driver and the fake NCCL: a later call enqueues its launches and one group, and
// waits, allocates and compares nothing; streams wait for each other where memory passes between them.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/nccl/fake_nccl.h"
#include "heddle/heddle.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

class ContextRanks : public LaunchCase {
 protected:
  static constexpr std::int64_t kRanks = 2, kLength = 1024;

  void SetUp() override {
    LaunchCase::SetUp();
    ::setenv("HEDDLE_NCCL", FAKE_NCCL, 1);
  }

  /// Calls call(context, forward, backward, device) on each rank, a thread and a device each, all of which pass
  /// `together`.
  template <class Ranks>
  static void on_ranks(std::int64_t heads, Ranks&& call) {
    const BlockMask mask = BlockMask::build(mods::causal(), MaskShape::uniform(1, 1, kLength, kLength), {128, 128});
    const WeightedMask weighted = {&mask, 1};
    const MadePartition partition = make_partition({&weighted, 1}, kRanks, {.chunk = 128, .only = Placing::zigzag});
    const NcclId id = make_nccl_id();
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        NcclCommunicator communicator(id, rank, kRanks, rank, std::chrono::seconds(20));
        ContextAttention context(partition, mask, {}, communicator);
        const Device device = communicator.device();
        const Dims rows{1, heads, partition.queries.rows(rank), 128};
        const auto make = [&](DType dtype, const Dims& shape) { return Tensor::empty_on(device, dtype, shape); };
        const Tensor q = make(DType::bf16, rows), k = make(DType::bf16, rows), v = make(DType::bf16, rows),
                     o = make(DType::bf16, rows), d_o = make(DType::bf16, rows), dq = make(DType::bf16, rows),
                     dk = make(DType::bf16, rows), dv = make(DType::bf16, rows),
                     lse = make(DType::f32, {1, heads, rows[2]});
        BackwardTensors backward{q, k, v, o, lse, d_o};
        backward.dq = dq, backward.dk = dk, backward.dv = dv;
        call(context, AttentionTensors{q, k, v, o, lse}, backward, device);
      });
    }
  }
};

TEST_F(ContextRanks, ALaterCallOnlyEnqueues) {
  for (const auto& [groups, adds] : {std::pair<std::int64_t, bool>{1, false}, {4, false}, {1, true}, {4, true}}) {
    std::barrier together(kRanks);
    on_ranks(4, [&, groups = groups, adds = adds](ContextAttention& context, const AttentionTensors& forward,
                                                  const BackwardTensors& backward, const Device&) {
      context.set_head_groups(groups);
      const auto call = [&] {
        context.forward(forward);
        context.backward(backward, {.q = adds, .k = adds, .v = adds});
      };
      call();
      together.arrive_and_wait();
      const FakeNccl& nccl = *fake_nccl(FAKE_NCCL);
      const int started = nccl.groups, waits = fake().synchronizes, allocations = fake().allocations,
                launches = fake().launches, on_default = nccl.on_the_default_stream;
      together.arrive_and_wait();
      call();
      together.arrive_and_wait();
      EXPECT_EQ(nccl.groups, started + 3 * kRanks * groups) << "keys there twice, gradients back";
      EXPECT_EQ(nccl.outside_of_groups, 0);
      EXPECT_EQ(nccl.on_the_default_stream > on_default, groups == 1) << "several groups: beside attention";
      EXPECT_EQ(fake().synchronizes, waits);
      EXPECT_EQ(fake().allocations, allocations);
      EXPECT_GT(fake().launches, launches);
      together.arrive_and_wait();
    });
  }
}

/// Which launches of each stream of a device are known to have ended, by the events that were recorded and waited for.
class StreamClocks {
 public:
  /// Steps [begin, end) of the fake driver.
  StreamClocks(int device, int begin, int end) {
    for (int n = begin; n < end; ++n) {
      const FakeStep& step = fake().stepped[n % kFakeStepsKept];
      if (step.device != device) continue;
      Clock& own = known_[step.stream];
      if (step.kind == FakeStep::record) events_[step.event] = own;
      if (step.kind == FakeStep::wait) {
        for (const auto& [stream, count] : events_[step.event]) own[stream] = std::max(own[stream], count);
      }
      if (step.kind != FakeStep::launch) continue;
      ++own[step.stream];
      launches_.push_back({step.stream, step.name, own});
    }
  }
  using Clock = std::map<CUstream, int>;
  struct Launched {
    CUstream stream;
    std::string name;
    Clock known;
  };
  const std::vector<Launched>& launches() const { return launches_; }
  int known_to(CUstream stream, CUstream of) { return known_[stream][of]; }

 private:
  std::map<CUstream, Clock> known_;
  std::map<CUevent, Clock> events_;
  std::vector<Launched> launches_;
};

TEST_F(ContextRanks, StreamsWaitForWhatTheyReadAndForNoMore) {
  constexpr int kGroups = 4;
  std::barrier together(kRanks);
  on_ranks(kGroups, [&](ContextAttention& context, const AttentionTensors& forward, const BackwardTensors& backward,
                        const Device& device) {
    context.set_head_groups(kGroups);
    context.forward(forward);
    context.backward(backward);
    for (const bool is_forward : {true, false}) {
      together.arrive_and_wait();
      const int begin = fake().steps;
      together.arrive_and_wait();
      is_forward ? context.forward(forward) : context.backward(backward);
      together.arrive_and_wait();
      StreamClocks clocks(device.index, begin, fake().steps);
      CUstream side = nullptr;
      for (const auto& launch : clocks.launches()) {
        if (launch.stream != nullptr) side = launch.stream;
      }
      ASSERT_NE(side, nullptr);
      int on_main = 0, on_side = 0;
      std::vector<int> keys_known;     // launches of the side stream that each attention waits for
      std::vector<int> on_main_until;  // launches of the main stream up to each attention
      for (const auto& launch : clocks.launches()) {
        const bool moves = launch.name.starts_with("move_rows");
        EXPECT_TRUE(moves || launch.stream != side) << launch.name;
        ++(launch.stream == side ? on_side : on_main);
        if (moves || !is_forward) continue;  // own rows are copied on the main stream
        keys_known.push_back(launch.known.contains(side) ? launch.known.at(side) : 0);
        on_main_until.push_back(on_main);
      }
      EXPECT_EQ(clocks.known_to(nullptr, side), on_side) << "the caller's stream waits for all in the end";
      if (!is_forward) continue;
      ASSERT_EQ(std::ssize(keys_known), kGroups);
      const int each = on_side / kGroups;
      EXPECT_GT(each, 0);
      for (int group = 0; group < kGroups; ++group) {
        EXPECT_EQ(keys_known[static_cast<std::size_t>(group)], (group + 1) * each) << "its own keys, not the next ones";
      }
      // Keys of a group overwrite those of the third one before, so they wait for its attention.
      int copied = 0;
      for (const auto& launch : clocks.launches()) {
        if (launch.stream != side) continue;
        const int group = copied++ / each;
        if (group < 3) continue;
        EXPECT_GE(launch.known.contains(nullptr) ? launch.known.at(nullptr) : 0,
                  on_main_until[static_cast<std::size_t>(group - 3)])
            << group;
      }
    }
  });
}

}  // namespace
}  // namespace heddle::cuda
