// Lengths in a GPU's memory together with a page table there, as an engine has them, and with tensors that are copied:
// the host's bits; what else a kernel may do; lengths and tables that change between runs and under a captured graph,
// and say nonsense. HEDDLE_TEST_REDUCED=1 runs some; HEDDLE_TEST_BACKEND=cpu sends the same cases through the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/crossings.h"
#include "kernels/cuda/gpu_runs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

class GpuPagedLengths : public GpuTest {};

/// The rest of a case, dealt. Sequences without keys or queries are among those of three.
class Source {
 public:
  explicit Source(std::uint64_t first_seed) : seed_(first_seed) {}
  CaseSpec draw(std::int64_t page_rows, std::int64_t qk_dim, std::int64_t v_dim) {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    spec.device_lengths = true;
    spec.page_rows = page_rows;
    spec.qk_dim = qk_dim;
    spec.v_dim = v_dim;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = seed_ % 4 == 0 ? DType::f16 : DType::bf16;
    spec.batch = 3;
    spec.kv_heads = 2;
    spec.group = group_.deal();
    spec.q_rows = rows_.deal();
    spec.kv_rows = keys_.deal();
    spec.mask = mask_.deal();
    spec.score = score_.deal();
    spec.sequences = sequences_.deal();
    spec.q_start = starts_.deal();
    spec.late = seed_ % 5 == 0 ? 100 : 1;
    return spec;
  }

 private:
  std::uint64_t seed_;
  Deck<std::int64_t> group_{{1, 2, 3}, 3}, rows_{{1, 63, 65, 130, 200}, 4}, keys_{{1, 16, 65, 129, 200, 300, 520}, 5};
  Deck<std::string> mask_{{"", "causal_lower_right", "causal", "sliding_window"}, 6}, score_{{"", "", "", "alibi"}, 7};
  Deck<std::string> sequences_{{"lengths", "packed"}, 8}, starts_{{"none", "aligned"}, 9};
};

// TMA's boxes, pages whose rows do not divide by 8, and strides and addresses that TMA does not take.
TEST_F(GpuPagedLengths, PagesOfEverySize) {
  std::vector<CaseSpec> specs;
  Source source(120'000);
  Deck<std::int64_t> dims({64, 128, 256, 96, 33, 192}, 10);
  Deck<Layout> layouts({Layout::bhsd, Layout::bshd, Layout::gaps, Layout::padded, Layout::reversed}, 11);
  Deck<int> alignments({16, 16, 8, 2}, 12);
  for (const std::int64_t rows : {1, 3, 7, 8, 16, 24, 64, 128, 256}) {
    for (int i = 0; i < 4; ++i) {
      CaseSpec spec = source.draw(rows, dims.deal(), dims.deal());
      spec.layout = i < 2 ? Layout::bshd : layouts.deal();
      spec.alignment = i < 2 ? 16 : alignments.deal();
      specs.push_back(spec);
    }
  }
  run_all_and_in_place(specs);
}

// Only rows of each sequence that the device knows are copied.
TEST_F(GpuPagedLengths, TensorsThatAreCopied) {
  std::vector<CaseSpec> specs;
  Source source(121'000);
  Deck<Layout> layouts({Layout::bhsd, Layout::gaps, Layout::reversed, Layout::sliced}, 13);
  Deck<int> alignments({16, 8, 4, 2}, 14);
  for (const auto& [qk, v] : {std::pair(64, 64), {128, 128}, {256, 256}, {192, 128}, {100, 33}, {20, 130}}) {
    for (int i = 0; i < 4; ++i) {
      CaseSpec spec = source.draw(0, qk, v);
      spec.layout = layouts.deal();
      spec.alignment = alignments.deal();
      specs.push_back(spec);
    }
  }
  run_all(specs);
}

// Few CTAs with many tiles, some of them twice: rings of orders go round past steps that nobody attends.
TEST_F(GpuPagedLengths, GiveTheBitsOfTheHosts) {
  std::vector<CaseSpec> specs;
  Source source(122'000);
  Deck<int> ctas({0, 1, 2}, 15);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const int rows : {8, kernel.kv_block, 5}) {
      if (rows == 5 && kernel.warpgroups == 3) continue;  // it does not gather
      CaseSpec spec = source.draw(rows, kernel.qk_dim, kernel.v_dim);
      spec.layout = Layout::bshd;
      spec.rows = "given";
      spec.tile = {kernel.config().rows(), kernel.kv_block};
      spec.block = BlockSize{64, kernel.kv_block};
      spec.score.clear();
      spec.mask = spec.seed % 2 == 0 ? "causal" : "";
      spec.q_start = "none";  // by what only the device knows its blocks are classified otherwise
      spec.ctas = ctas.deal();
      spec.late = spec.seed % 3 == 0 ? 300 : 1;
      spec.q_rows = 300;
      spec.kv_rows = 3 * kernel.kv_block + 30;
      specs.push_back(spec);
    }
  }
  const ScopedVariable nothing("HEDDLE_COPY_BYTES", "0");  // pages of 5 are gathered
  for_each_spec(some_if_reduced(specs), [](CaseSpec spec) {
    GpuCase there(spec);
    there.run_and_judge();
    if (!other_family().empty()) return;  // forward_mma's CTAs share keys by what planning knows of lengths
    spec.device_lengths = false;
    GpuCase here(spec);
    here.run();
    EXPECT_EQ(outputs_of(there.host()), outputs_of(here.host()));
  });
}

// Decoding as an engine has it: few queries of many heads, a table, and lengths that only the device knows.
TEST_F(GpuPagedLengths, OfHeadsThatArePacked) {
  std::vector<CaseSpec> specs;
  Source source(124'000);
  Deck<std::int64_t> pages({16, 1, 64, 3, 128, 8}, 16), groups({4, 8, 3, 5}, 17), rows({1, 16, 4, 40}, 18);
  Deck<std::string> scores({"", "streamed_inside", "softcap"}, 19), sinks({"none", "normal"}, 20);
  for (const std::size_t i : {0, 1, 7, 8, 14}) {
    const plan::ForwardSm90Kernel& kernel = plan::kForwardSm90Kernels[i];
    for (const int packed : {16, 32, 64}) {
      for (int n = 0; n < 2; ++n) {
        CaseSpec spec = source.draw(kernel.warpgroups == 3 ? 16 : pages.deal(), kernel.qk_dim, kernel.v_dim);
        spec.layout = Layout::bshd;
        spec.batch = 8;  // of which some have queries, or there is nothing to pack
        spec.group = groups.deal();
        spec.q_rows = rows.deal();
        spec.score = i == 14 ? "" : scores.deal();
        spec.sinks = sinks.deal();
        spec.tile = {kernel.config().rows(), kernel.kv_block};
        spec.packed = packed;
        specs.push_back(spec);
      }
    }
  }
  run_all_and_in_place(std::move(specs));
}

TEST_F(GpuPagedLengths, WithWhatElseAKernelDoes) {
  std::vector<CaseSpec> specs;
  Source source(123'000);
  Deck<std::int64_t> dims({64, 128, 256, 96}, 16);
  Deck<std::string> sequences({"lengths", "packed"}, 17);
  std::uint64_t seed = 123'000;
  for (const std::int64_t rows : {16, 3, 0}) {
    CaseSpec base = source.draw(rows, 64, 64);
    base.seed = seed += 100;
    base.q_start = "none";  // where the device has them biases must be guarded: gpu_lengths_test
    for (CaseSpec spec : crossings(base)) {
      spec.qk_dim = spec.v_dim = dims.deal();
      spec.layout = rows == 0 ? Layout::reversed : Layout::bshd;
      spec.sequences = sequences.deal();
      specs.push_back(spec);
    }
  }
  run_all_and_in_place(specs);
}

using Lengths = std::vector<std::int64_t>;
using Table = std::vector<std::int32_t>;

constexpr std::int64_t kSequences = 4, kColumns = 21, kRows = 16, kKeys = kColumns * kRows, kQueries = 150;
constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();

Lengths clamped(const Lengths& values, std::int64_t most) {
  Lengths all = values;
  for (std::int64_t& value : all) value = std::clamp<std::int64_t>(value, 0, most);
  return all;
}

/// All of its pages hold keys: 4 sequences of up to 21 pages, and two pages more.
CaseSpec changing(std::uint64_t seed, bool packed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.batch = packed ? 1 : kSequences;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.q_rows = kQueries;
  spec.kv_rows = packed ? kSequences * kKeys : kKeys;
  spec.page_rows = kRows;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  spec.mask = "causal_lower_right";
  return spec;
}

/// Changes before one run. The table is dealt anew each time from the pages that hold keys; `nonsense`: the first
/// entries of sequences are no pages, but stand for the first and the last one.
struct Change {
  Lengths q, kv;  // lengths; packed: q's sums
  bool nonsense = false;
};

class Tables {
 public:
  explicit Tables(GpuCase& c) {
    const ConstTensorView& table = *c.options().page_table;
    const auto* entries = static_cast<const std::int32_t*>(table.data);
    const std::int64_t used = c.host().spec().kv_rows / kRows;
    for (std::int64_t b = 0; b < table.shape[0]; ++b) {
      for (std::int64_t n = 0; n < used; ++n) pages_.push_back(entries[b * table.shape[1] + n]);
    }
    last_ = static_cast<std::int32_t>(c.tensors().k.shape[0] - 1);
  }
  /// [kSequences + 1, kColumns], of which the last row is of no sequence of the plan's.
  void deal(std::mt19937_64& rng, bool nonsense) {
    std::ranges::shuffle(pages_, rng);
    there_.assign(pages_.begin(), pages_.begin() + kSequences * kColumns);
    right_ = there_;
    for (std::int64_t b = 0; nonsense && b < kSequences; ++b) {
      // Where the nearest page holds keys.
      const auto i = static_cast<std::size_t>(b * kColumns);
      const std::int32_t nearest = b % 2 == 0 ? 0 : last_;
      if (std::ranges::find(pages_, nearest) == pages_.end()) continue;
      there_[i] = b % 2 == 0 ? -7 : 2'000'000'000;
      right_[i] = nearest;
    }
    right_.resize((kSequences + 1) * kColumns, 0);
  }
  const Table& there() const { return there_; }
  const Table& right() const { return right_; }

 private:
  Table pages_, there_, right_;
  std::int32_t last_;
};

void expect_each_change(GpuCase& c, const std::vector<Change>& changes, bool packed, bool graph) {
  Tables tables(c);
  Numbers<std::int64_t> q({kSequences + packed}), kv({kSequences});
  Numbers<std::int32_t> table({kSequences, kColumns});
  AttentionOptions options = c.options();
  options.cu_seqlens_q = {};
  (packed ? options.cu_seqlens_q : options.q_lengths) = q.view();
  if (packed) options.max_q_len = 100;
  options.kv_lengths = kv.view();
  options.page_table = table.view();
  Runs runs(c, options);
  std::optional<cuda::ContextScope> scope;
  if (gpu_backend() == BackendChoice::cuda) scope.emplace(0);
  if (graph) runs.capture();
  for (const Change& change : changes) {
    tables.deal(c.host().rng(), change.nonsense);
    q.set(change.q);
    kv.set(change.kv);
    table.set(tables.there());
    // Packed: queries behind the last sequence are one more, without keys.
    Lengths right_q = packed ? change.q : clamped(change.q, kQueries), right_kv = clamped(change.kv, kKeys);
    if (packed) right_q.push_back(kQueries), right_kv.push_back(0);
    const auto view = [](const Lengths& values) {
      return ConstTensorView(values.data(), DType::i64, {std::ssize(values)});
    };
    AttentionOptions& right = c.options();
    right.cu_seqlens_q = {};
    (packed ? right.cu_seqlens_q : right.q_lengths) = view(right_q);
    right.kv_lengths = view(right_kv);
    right.page_table = ConstTensorView(tables.right().data(), DType::i32, {std::ssize(right_kv), kColumns});
    graph ? runs.replay() : runs.run();
    judge(c.host());
  }
  if (graph) runs.destroy_graph();
}

TEST_F(GpuPagedLengths, MayChangeBetweenRunsAndBeNonsense) {
  const std::vector<Change> changes = {
      {{150, 150, 150, 150}, {336, 336, 336, 336}}, {{1, 1, 1, 1}, {17, 0, 336, 200}},
      {{0, 1, 128, 149}, {0, 1, 80, 335}, true},    {{0, 0, 0, 0}, {0, 0, 0, 0}},
      {{150, 5, 0, 64}, {0, 0, 333, 129}},          {{151, kFar, -1, -kFar}, {337, -kFar, 5, kFar}, true}};
  for (const bool graph : {false, true}) {
    CaseSpec spec = changing(124'000, false);
    if (graph) spec.group = 20;  // more tiles than multiprocessors: they are drawn
    GpuCase c(spec);
    expect_each_change(c, changes, false, graph);
  }
}

TEST_F(GpuPagedLengths, OfPackedQueriesMayChange) {
  const std::vector<Change> changes = {{{0, 40, 80, 100, 150}, {336, 336, 336, 336}},
                                       {{0, 1, 2, 3, 4}, {17, 0, 336, 200}},
                                       {{0, 0, 100, 100, 150}, {5, 64, 16, 0}, true},
                                       {{0, 0, 0, 0, 0}, {3, 0, 2, 1}},
                                       {{0, 70, 70, 71, 149}, {kFar, -5, -kFar, 337}, true}};
  for (const bool graph : {false, true}) {
    GpuCase c(changing(125'000, true));
    expect_each_change(c, changes, true, graph);
  }
}

}  // namespace
}  // namespace heddle::test
