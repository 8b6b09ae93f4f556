// Lengths in a GPU's memory that change between runs and under a captured graph, and numbers that the host would have
// refused: they touch no other sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/element.h"
#include "kernels/cuda/gpu_runs.h"
#include "kernels/cuda/gpu_test.h"
#include "kernels/cuda/lengths_spec.h"

namespace heddle::test {
namespace {

using Lengths = std::vector<std::int64_t>;

class GpuChangedLengths : public GpuTest {};

Lengths clamped(const Lengths& values, std::int64_t most) {
  Lengths all = values;
  for (std::int64_t& value : all) value = std::clamp<std::int64_t>(value, 0, most);
  return all;
}

/// Judges the results of `run`, as if lengths and starts were these.
template <class Run>
void judge_with(GpuCase& c, const Lengths& q, const Lengths& kv, const Lengths& starts, Run&& run) {
  AttentionOptions& options = c.options();
  const auto view = [](const Lengths& values) {
    return ConstTensorView(values.data(), DType::i64, {std::ssize(values)});
  };
  options.q_lengths = view(q);
  options.kv_lengths = view(kv);
  options.q_start = view(starts);
  run();
  judge(c.host());
  options.q_lengths = options.kv_lengths = options.q_start = {};
}

struct Change {
  Lengths q, kv, starts;
};
constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max(), kLow = std::numeric_limits<std::int64_t>::min();

/// Lengths out of 300 queries and 333 keys: none, all, and some.
std::vector<Change> changes() {
  return {{{300, 300, 300, 300}, {333, 333, 333, 333}, {0, 0, 0, 0}},
          {{0, 1, 128, 299}, {0, 1, 80, 332}, {0, 7, -7, 100}},
          {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}},
          {{300, 5, 0, 64}, {0, 0, 333, 129}, {33, 0, -100, 1000}},
          {{301, kFar, -1, kLow}, {334, kLow, 5, kFar}, {0, 0, 3, 0}}};
}

void expect_each_change(CaseSpec spec, bool graph) {
  GpuCase c(spec);
  Numbers<std::int64_t> q({4}), kv({4}), starts({4});
  AttentionOptions options = c.options();
  options.q_lengths = q.view();
  options.kv_lengths = kv.view();
  options.q_start = starts.view();
  Runs runs(c, options);
  std::optional<cuda::ContextScope> scope;
  if (gpu_backend() == BackendChoice::cuda) scope.emplace(0);
  if (graph) runs.capture();
  for (const Change& change : changes()) {
    q.set(change.q);
    kv.set(change.kv);
    starts.set(change.starts);
    judge_with(c, clamped(change.q, 300), clamped(change.kv, 333), change.starts,
               [&] { graph ? runs.replay() : runs.run(); });
  }
  if (graph) runs.destroy_graph();
}

TEST_F(GpuChangedLengths, MayChangeBetweenRunsAndBeNonsense) {
  for (const char* mask : {"", "causal"}) {
    CaseSpec spec = spec_with_lengths(3001);
    spec.mask = mask;
    expect_each_change(spec, false);
  }
}

TEST_F(GpuChangedLengths, AreReadAgainByEachReplayOfAGraph) {
  CaseSpec spec = spec_with_lengths(3101);
  spec.mask = "causal";
  spec.group = 20;  // more tiles than multiprocessors: they are drawn
  expect_each_change(spec, true);
}

TEST_F(GpuChangedLengths, KvStartsMayChangeBetweenRuns) {
  for (const bool graph : {false, true}) {
    CaseSpec spec = spec_with_lengths(graph ? 3402 : 3401);
    spec.mask = "causal";
    spec.score = "alibi";
    GpuCase c(spec);
    Numbers<std::int64_t> starts({4});
    AttentionOptions options = c.options_there();
    options.kv_start = starts.view();
    Runs runs(c, options);
    std::optional<cuda::ContextScope> scope;
    if (gpu_backend() == BackendChoice::cuda) scope.emplace(0);
    if (graph) runs.capture();
    for (const Lengths& values : {Lengths{0, 0, 0, 0}, {0, 64, -7, 333}, {1000, 5, -1000, 1}}) {
      starts.set(values);
      c.options().kv_start = ConstTensorView(values.data(), DType::i64, {4});
      graph ? runs.replay() : runs.run();
      judge(c.host());
      c.options().kv_start.reset();
    }
    if (graph) runs.destroy_graph();
  }
}

/// Sequences as the device must take cumulative lengths that may be anything, as a right packed batch: rows and keys
/// that none has are sequences of their own, of the one or the other alone.
struct RightLengths {
  Lengths q = {0}, kv = {0};
  RightLengths(const Lengths& q_given, const Lengths& kv_given, std::int64_t q_rows, std::int64_t kv_rows,
               std::int64_t max_q, std::int64_t max_kv) {
    const auto end_of = [](std::int64_t before, std::int64_t given, std::int64_t rows) {
      return std::max(before, std::clamp<std::int64_t>(given, 0, rows));
    };
    for (std::size_t i = 1; i < q_given.size(); ++i) {
      const std::int64_t q_end = end_of(q.back(), q_given[i], q_rows), kv_end = end_of(kv.back(), kv_given[i], kv_rows);
      add(std::min(q.back() + max_q, q_end), std::min(kv.back() + max_kv, kv_end));
      add(q_end, kv.back());
      add(q.back(), kv_end);
    }
    add(q_rows, kv.back());
    add(q.back(), kv_rows);
  }
  void add(std::int64_t q_end, std::int64_t kv_end) {
    q.push_back(q_end);
    kv.push_back(kv_end);
  }
};

TEST_F(GpuChangedLengths, GarbageInCumulativeLengthsTouchesNothingElse) {
  CaseSpec spec = spec_with_lengths(3201);
  spec.batch = 1;
  GpuCase c(spec);
  Numbers<std::int64_t> q({5}), kv({5});
  AttentionOptions options = c.options();
  options.cu_seqlens_q = q.view();
  options.cu_seqlens_kv = kv.view();
  options.max_q_len = 140;
  options.max_kv_len = 150;
  Runs runs(c, options);
  const std::vector<Change> all = {{{0, 100, 140, 200, 300}, {0, 90, 200, 210, 333}, {}},
                                   {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {}},
                                   {{50, 200, 100, 250, 280}, {7, 20, 200, 190, 300}, {}},
                                   {{-5, kFar, kLow, 3, 4}, {kLow, kLow, 200, kFar, -9}, {}},
                                   {{0, 20, 30, 30, 290}, {0, 0, 160, 160, 333}, {}}};
  for (const Change& change : all) {
    q.set(change.q);
    kv.set(change.kv);
    const RightLengths right(change.q, change.kv, 300, 333, 140, 150);
    const std::int64_t count = std::ssize(right.q);
    c.options().cu_seqlens_q = ConstTensorView(right.q.data(), DType::i64, {count});
    c.options().cu_seqlens_kv = ConstTensorView(right.kv.data(), DType::i64, {count});
    runs.run();
    judge(c.host());
  }
}

// One sequence's NaN is its own.
TEST_F(GpuChangedLengths, KeepPackedSequencesApart) {
  CaseSpec spec = spec_with_lengths(3301);
  spec.sequences = "packed";
  spec.mask = "causal";
  GpuCase clean(spec), poisoned(spec);
  const auto* q_ends = static_cast<const std::int32_t*>(clean.options().cu_seqlens_q->data);
  const auto* kv_ends = static_cast<const std::int64_t*>(clean.options().cu_seqlens_kv->data);
  const std::int64_t count = clean.options().cu_seqlens_q->shape[0] - 1, last = count - 1;
  const auto poison = [&](const GuardedTensor& tensor, std::int64_t begin) {
    tensor.for_each_element([&](const Dims& at, std::int64_t offset) {
      if (at[2] < begin) return;
      base::store_element(tensor.view().data, tensor.view().dtype, offset, std::numeric_limits<double>::quiet_NaN());
    });
  };
  poison(poisoned.host().q, q_ends[last]);
  poison(poisoned.host().k, kv_ends[last]);
  poison(poisoned.host().v, kv_ends[last]);
  clean.run_and_judge();
  poisoned.run();
  const GuardedTensor &o = clean.host().o, &other = poisoned.host().o;
  o.for_each_element([&](const Dims& at, std::int64_t offset) {
    if (at[2] >= q_ends[last]) return;
    EXPECT_EQ(base::load_element(o.view().data, o.view().dtype, offset),
              base::load_element(other.view().data, other.view().dtype, offset));
  });
}

}  // namespace
}  // namespace heddle::test
