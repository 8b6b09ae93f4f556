// Lengths in a GPU's memory together with a page table there, as an engine has them, and with tensors that are copied:
// the host's bits; what else a kernel may do; lengths and tables that change between runs and under a captured graph,
// and say nonsense. HEDDLE_TEST_REDUCED=1 runs some; HEDDLE_TEST_BACKEND=cpu sends the same cases through the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/changing_tables.h"
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
    spec.listed_pages = page_rows > 0 && seed_ % 3 == 0;
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

// Few CTAs with many tiles, some of them twice: rings of orders go round past steps that no row attends.
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

constexpr std::int64_t kQueries = 150;
constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();

TEST_F(GpuPagedLengths, MayChangeBetweenRunsAndBeNonsense) {
  const std::vector<Change> changes = {
      {{150, 150, 150, 150}, {336, 336, 336, 336}}, {{1, 1, 1, 1}, {17, 0, 336, 200}},
      {{0, 1, 128, 149}, {0, 1, 80, 335}, true},    {{0, 0, 0, 0}, {0, 0, 0, 0}},
      {{150, 5, 0, 64}, {0, 0, 333, 129}},          {{151, kFar, -1, -kFar}, {337, -kFar, 5, kFar}, true}};
  for (const bool graph : {false, true}) {
    CaseSpec spec = changing(124'000, false, kQueries);
    if (graph) spec.group = 20;  // more tiles than multiprocessors: they are drawn
    GpuCase c(spec);
    expect_each_change(c, changes, false, graph);
  }
}

TEST_F(GpuPagedLengths, ListsMayChangeBetweenRuns) {
  for (const bool graph : {false, true}) {
    GpuCase c(changing(126'000, false, kQueries));
    expect_each_list(c, graph);
  }
}

TEST_F(GpuPagedLengths, OfPackedQueriesMayChange) {
  const std::vector<Change> changes = {{{0, 40, 80, 100, 150}, {336, 336, 336, 336}},
                                       {{0, 1, 2, 3, 4}, {17, 0, 336, 200}},
                                       {{0, 0, 100, 100, 150}, {5, 64, 16, 0}, true},
                                       {{0, 0, 0, 0, 0}, {3, 0, 2, 1}},
                                       {{0, 70, 70, 71, 149}, {kFar, -5, -kFar, 337}, true}};
  for (const bool graph : {false, true}) {
    GpuCase c(changing(125'000, true, kQueries));
    expect_each_change(c, changes, true, graph);
  }
}

}  // namespace
}  // namespace heddle::test
