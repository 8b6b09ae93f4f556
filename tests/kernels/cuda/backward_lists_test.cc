// The kernels that write backward_sm90's lists for lengths on the device, run on the host: their lists equal the host's
// for the same lengths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

// Order matters: the stand-ins for the GPU (host_cta.h) come before the kernels, and the library's max() after headers
// that take CUDA's.
// clang-format off
#include "kernels/cuda/host_cta.h"
#include "around/backward_lists_kernels.cuh"
#include "plan/tiles/backward_schedule.h"
#include "shared/sequences.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
// clang-format on

namespace heddle::cuda {
namespace {

using shared::BackwardItem;
using shared::BackwardListsParams;

struct Lengths {
  std::vector<std::int32_t> q, kv;  // of each sequence
  bool packed;
  int q_rows, kv_rows;  // of the tensors
};

problem::AttentionProblem problem_of(const Lengths& lengths, bool there) {
  problem::AttentionProblem problem;
  problem.batch = std::ssize(lengths.q);
  problem.q_heads = 4;
  problem.kv_heads = 2;
  problem.qk_dim = problem.v_dim = 64;
  problem.q_dtype = DType::bf16;
  problem.packed = lengths.packed;
  problem.q_rows = lengths.q_rows;
  problem.kv_rows = lengths.kv_rows;
  problem.device_lengths = there;
  std::int64_t q_begin = 0, kv_begin = 0;
  for (std::size_t i = 0; i < lengths.q.size(); ++i) {
    Sequence sequence{.q_len = lengths.q[i], .kv_len = lengths.kv[i]};
    if (there) {
      sequence = {.q_len = lengths.packed ? std::ranges::max(lengths.q) : lengths.q_rows,
                  .kv_len = lengths.packed ? std::ranges::max(lengths.kv) : lengths.kv_rows};
    } else if (lengths.packed) {
      sequence.q_begin = std::exchange(q_begin, q_begin + lengths.q[i]);
      sequence.kv_begin = std::exchange(kv_begin, kv_begin + lengths.kv[i]);
    }
    problem.sequences.push_back(sequence);
  }
  return problem;
}

shared::BackwardSm90Config config_of() {
  shared::BackwardSm90Config config;
  config.qk_dim = config.v_dim = config.columns = 64;
  config.warpgroups = 2;
  return config;
}

/// The rows of q that each tile visits, over all heads, in the order of its steps: first row, live ones, head.
using Steps = std::map<std::tuple<int, int, int>, std::vector<std::tuple<int, int, int>>>;
Steps steps_of(const std::vector<BackwardItem>& items, const std::vector<shared::QueryRun>& runs,
               const std::vector<shared::RowBlock>& blocks, const std::vector<shared::SequenceSpan>* spans) {
  Steps all;
  for (const BackwardItem& item : items) {
    auto& steps = all[{item.batch, item.kv_head, item.kv_tile}];
    EXPECT_TRUE(steps.empty());
    for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
      const shared::QueryRun& run = runs[static_cast<std::size_t>(r)];
      int end = run.end;
      if (spans != nullptr) {
        end = std::min(end, shared::blocks_of_rows((*spans)[static_cast<std::size_t>(item.batch)].q_len));
      }
      for (int block = run.begin; block < end; ++block) {
        const shared::RowBlock& rows = blocks.at(static_cast<std::size_t>(item.first_block + block));
        steps.emplace_back(rows.row, rows.live, run.head);
      }
    }
    EXPECT_EQ(std::ssize(steps), item.steps);
  }
  return all;
}

struct Listed {
  std::vector<shared::SequenceSpan> spans;
  std::vector<shared::RowBlock> blocks;
  std::vector<BackwardItem> items;
};

/// As place_sequences and the kernels behind it do.
Listed listed(const Lengths& lengths, const plan::BackwardSchedule& longest, const problem::AttentionProblem& problem,
              BackwardListsParams lists = {}) {
  Listed to;
  to.blocks.assign(longest.blocks.size(), {-1, -1, -1, -1});
  to.items.resize(longest.items.size());
  int count = 0;
  shared::SequencesParams params{};
  lists.packed = lengths.packed;
  lists.count = static_cast<int>(lengths.q.size());
  lists.q_rows = lengths.q_rows;
  lists.kv_rows = lengths.kv_rows;
  params.max_q_len = static_cast<int>(problem.sequences.front().q_len);
  params.max_kv_len = static_cast<int>(problem.sequences.front().kv_len);
  int q_begin = 0, kv_begin = 0;
  for (std::size_t i = 0; i < lengths.q.size(); ++i) {
    to.spans.push_back(
        shared::span_of(params, {q_begin, q_begin + lengths.q[i]}, {kv_begin, kv_begin + lengths.kv[i]}, 0));
    if (lengths.packed) q_begin += lengths.q[i], kv_begin += lengths.kv[i];
  }
  to.spans.push_back({});
  to.spans.back().q_begin = lengths.q_rows;
  lists.left_count = &count;
  lists.spans = to.spans.data();
  lists.padded_blocks = lengths.packed ? -1 : shared::blocks_of_rows(lengths.q_rows);
  lists.blocks = to.blocks.data();
  lists.block_count = static_cast<int>(to.blocks.size());
  lists.items = longest.items.data();
  lists.item_count = static_cast<int>(longest.items.size());
  lists.runs = longest.runs.data();
  lists.tile_keys = config_of().keys();
  lists.left = to.items.data();
  constexpr int kThreads = shared::kBackwardListThreads;
  host_cta::launch(list_backward_blocks, lists.count, kThreads, lists);
  host_cta::launch(list_backward_tiles, (lists.item_count + kThreads - 1) / kThreads, kThreads, lists);
  if (lengths.packed) host_cta::launch(fill_backward_gaps, lists.count + 1, kThreads, lists);
  to.items.resize(static_cast<std::size_t>(count));
  return to;
}

TEST(BackwardLists, AreTheHostsForTheSameLengths) {
  std::mt19937 random(5);
  for (int draw = 0; draw < 40; ++draw) {
    Lengths lengths{.q = {}, .kv = {}, .packed = draw % 2 == 0, .q_rows = 0, .kv_rows = 0};
    for (unsigned i = 0; i < 1 + random() % 5; ++i) {
      lengths.q.push_back(static_cast<int>(random() % 3 == 0 ? random() % 3 : random() % 300));
      lengths.kv.push_back(static_cast<int>(random() % 4 == 0 ? 0 : random() % 400));
    }
    const auto rows = [&](const std::vector<std::int32_t>& of) {
      return lengths.packed ? std::accumulate(of.begin(), of.end(), 0) : std::ranges::max(of) + static_cast<int>(draw);
    };
    lengths.q_rows = rows(lengths.q);
    lengths.kv_rows = rows(lengths.kv);
    const problem::AttentionProblem here = problem_of(lengths, false), there = problem_of(lengths, true);
    const plan::BackwardSchedule own = plan::backward_sm90_schedule(here, config_of(), nullptr, 132),
                                 longest = plan::backward_sm90_schedule(there, config_of(), nullptr, 132);
    EXPECT_EQ(std::ssize(longest.items), plan::count_tiles(there, config_of()));
    EXPECT_EQ(std::ssize(longest.blocks), plan::count_row_blocks(there));
    const Listed left = listed(lengths, longest, there);
    EXPECT_EQ(steps_of(left.items, longest.runs, left.blocks, &left.spans),
              steps_of(own.items, own.runs, own.blocks, nullptr));
    int stored = 0, live = 0;
    for (const shared::RowBlock& block : left.blocks) {
      EXPECT_GE(block.batch, 0) << "a block that nobody wrote";
      stored += block.stored, live += block.live;
    }
    EXPECT_EQ(live, std::accumulate(lengths.q.begin(), lengths.q.end(), 0));
    EXPECT_EQ(stored, lengths.packed ? live : lengths.q_rows * there.batch);
  }
}

// Sequences that the maxima cut, and rows behind the last one.
TEST(BackwardLists, FillWhatNoSequenceHas) {
  const Lengths lengths{.q = {70, 0, 20}, .kv = {10, 90, 30}, .packed = true, .q_rows = 100, .kv_rows = 131};
  problem::AttentionProblem there = problem_of(lengths, true);
  for (Sequence& sequence : there.sequences) sequence = {.q_len = 64, .kv_len = 80};
  const plan::BackwardSchedule longest = plan::backward_sm90_schedule(there, config_of(), nullptr, 132);
  constexpr int kRowBytes = 6, kHeads = 2, kApart = 8;
  const auto filled = [](std::vector<char>& memory, int rows) {
    memory.assign(static_cast<std::size_t>(kHeads * rows * kApart), 1);
    return shared::FilledRows{memory.data(), {rows * kApart, kApart}, kHeads, kRowBytes};
  };
  std::vector<char> d_q, d_k;
  BackwardListsParams params{};
  params.d_q = filled(d_q, lengths.q_rows);
  params.d_k = filled(d_k, lengths.kv_rows);
  (void)listed(lengths, longest, there, params);
  const auto expect = [](const std::vector<char>& memory, int rows, const auto& is_filled) {
    for (int i = 0; i < kHeads * rows * kApart; ++i) {
      const bool zero = i % kApart < kRowBytes && is_filled(i / kApart % rows);
      EXPECT_EQ(memory[static_cast<std::size_t>(i)], zero ? 0 : 1) << i;
    }
  };
  expect(d_q, lengths.q_rows, [](int row) { return (row >= 64 && row < 70) || row >= 90; });
  expect(d_k, lengths.kv_rows, [](int row) { return (row >= 90 && row < 100) || row >= 130; });
}

}  // namespace
}  // namespace heddle::cuda
