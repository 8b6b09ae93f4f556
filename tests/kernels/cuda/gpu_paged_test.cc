// Keys and values in pages: TMA's boxes of them, rows that are gathered, and copies of them. NaN in the rows
// of pages that no sequence has, and entries of the table past its end that are no pages. Against the reference, by the
// one criterion. HEDDLE_TEST_REDUCED=1 runs some; HEDDLE_TEST_BACKEND=cpu sends the same cases through the CPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "base/element.h"
#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/crossings.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

class GpuPaged : public GpuTest {};

constexpr std::int64_t kPageRows[] = {1, 3, 7, 8, 16, 24, 64, 128, 256};

class Source {
 public:
  explicit Source(std::uint64_t first_seed) : seed_(first_seed) {}
  CaseSpec draw(std::int64_t page_rows) {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    spec.page_rows = page_rows;
    spec.listed_pages = page_rows > 0 && seed_ % 3 == 0;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = seed_ % 4 == 0 ? DType::f16 : DType::bf16;
    spec.batch = batch_.deal();
    spec.kv_heads = kv_heads_.deal();
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
  Deck<std::int64_t> batch_{{1, 2, 3}, 1}, kv_heads_{{1, 2}, 2}, group_{{1, 2, 3}, 3};
  Deck<std::int64_t> rows_{{1, 63, 65, 130, 200}, 4}, keys_{{1, 16, 63, 65, 129, 200, 300, 520}, 5};
  Deck<std::string> mask_{{"", "causal_lower_right", "causal", "sliding_window"}, 6}, score_{{"", "", "", "alibi"}, 7};
  Deck<std::string> sequences_{{"whole", "lengths", "packed"}, 8}, starts_{{"none", "aligned"}, 9};
};

TEST_F(GpuPaged, EveryPageSizeAndHeadDim) {
  std::vector<CaseSpec> specs;
  Source source(110'000);
  Deck<Layout> layouts({Layout::bhsd, Layout::bshd, Layout::padded}, 10);
  for (const std::int64_t rows : kPageRows) {
    for (const std::int64_t dim : {64, 128, 256, 96, 80, 33}) {
      CaseSpec spec = source.draw(rows);
      spec.qk_dim = spec.v_dim = dim;
      spec.layout = layouts.deal();
      specs.push_back(spec);
    }
  }
  run_all_and_in_place(specs);
}

// Pages that TMA does not take, of any size.
TEST_F(GpuPaged, PagesAtOddPlaces) {
  std::vector<CaseSpec> specs;
  Source source(111'000);
  Deck<Layout> layouts({Layout::gaps, Layout::sliced, Layout::reversed, Layout::padded}, 11);
  Deck<int> alignments({2, 4, 8}, 12);
  Deck<std::int64_t> dims({64, 128, 192, 100}, 13);
  for (const std::int64_t rows : kPageRows) {
    for (int i = 0; i < 4; ++i) {
      CaseSpec spec = source.draw(rows);
      spec.qk_dim = dims.deal();
      spec.v_dim = dims.deal();
      spec.layout = layouts.deal();
      spec.alignment = alignments.deal();
      specs.push_back(spec);
    }
  }
  run_all(specs);
}

// Each kernel of the table on TMA's boxes of 8, 16 and its own block; few CTAs with many tiles, some of them twice.
TEST_F(GpuPaged, EveryKernel) {
  std::vector<CaseSpec> specs;
  Source source(112'000);
  Deck<int> ctas({0, 1, 2}, 14);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const int rows : {8, 16, kernel.kv_block}) {
      CaseSpec spec = source.draw(rows);
      spec.qk_dim = kernel.qk_dim;
      spec.v_dim = kernel.v_dim;
      spec.layout = Layout::bshd;
      spec.rows = "given";
      spec.tile = {kernel.config().rows(), kernel.kv_block};
      spec.block = BlockSize{64, kernel.kv_block};
      spec.score.clear();
      spec.mask = spec.seed % 2 == 0 ? "causal_lower_right" : "";
      spec.ctas = ctas.deal();
      spec.late = spec.seed % 3 == 0 ? 300 : 1;
      spec.batch = 3;
      spec.q_rows = 300;
      spec.kv_rows = 3 * kernel.kv_block + 30;
      specs.push_back(spec);
    }
  }
  run_all_and_in_place(specs);
}

// A block's rows past the end of its sequence are zeros, whatever the last value is: infinite, it makes o so, not NaN.
TEST_F(GpuPaged, InfinityInTheLastValue) {
  std::vector<CaseSpec> specs;
  Source source(114'000);
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    for (const std::int64_t rows : {8, 16, 64, 3}) {
      for (const std::int64_t dim : {64, 128}) {
        CaseSpec spec = source.draw(rows);
        // (e4m3 has no infinity.)
        spec.q_dtype = spec.k_dtype = dtype;
        spec.v_dtype = dtype == DType::e4m3 ? DType::e5m2 : dtype;
        spec.qk_dim = spec.v_dim = dim;
        spec.batch = 1;
        spec.listed_pages = false;
        spec.sequences = "whole";
        // Every weight is more than 0.
        spec.mask.clear();
        spec.score.clear();
        spec.late = 1;
        spec.layout = Layout::bshd;
        spec.kv_rows = 2 * 128 + 9;
        specs.push_back(spec);
      }
    }
  }
  // Ten boxes of eight rows a block, some of which end inside; one warp for keys and values.
  CaseSpec boxes = specs[1], streams = specs[1];
  boxes.rows = "given";
  boxes.tile = {192, 80};
  boxes.block = BlockSize{64, 80};
  streams.score = "streamed_bias";
  specs.insert(specs.end(), {boxes, streams});
  const ScopedVariable nothing("HEDDLE_COPY_BYTES", "0");  // pages of 3 are gathered
  for_each_spec(some_if_reduced(specs, 5), [](const CaseSpec& spec) {
    GpuCase c(spec);
    const GuardedTensor& v = c.host().v;
    const auto* table = static_cast<const std::int32_t*>(c.host().options().page_table->data);
    const std::int64_t last = spec.kv_rows - 1, page = table[last / spec.page_rows];
    const Dims& strides = v.view().strides;
    base::store_element(v.view().data, v.view().dtype,
                        page * strides[0] + last % spec.page_rows * strides[2] + 5 * strides[3],
                        std::numeric_limits<double>::infinity());
    c.run_and_judge();
  });
}

// One warp streams a bias beside the one that asks for pages; sinks stand beside a tile's sequence.
TEST_F(GpuPaged, WithWhatElseAKernelDoes) {
  std::vector<CaseSpec> specs;
  Source source(113'000);
  Deck<std::int64_t> pages({16, 3, 64, 7, 128}, 15), dims({64, 128, 256, 96}, 16);
  Deck<std::string> sequences({"whole", "lengths", "packed"}, 17);
  for (std::uint64_t seed = 113'100; seed < 113'600; seed += 100) {
    CaseSpec base = source.draw(pages.deal());
    base.seed = seed;
    for (CaseSpec spec : crossings(base)) {
      spec.qk_dim = spec.v_dim = dims.deal();
      spec.layout = Layout::bshd;
      spec.sequences = sequences.deal();
      specs.push_back(spec);
    }
  }
  run_all_and_in_place(specs);
}

}  // namespace
}  // namespace heddle::test
