// Tensors that TMA does not take (odd and negative strides, addresses that 16 does not divide), and strides of zero,
// which it takes. Against the reference, by the one criterion, NaN between all rows. HEDDLE_TEST_REDUCED=1 runs some;
// HEDDLE_TEST_BACKEND=cpu sends the same cases through the CPU.
#include <gtest/gtest.h>

#include "engine/deck.h"
#include "kernels/cuda/crossings.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

class GpuLayout : public GpuTest {};

struct Dims2 {
  std::int64_t qk, v;
};
const std::vector<Dims2> kDims = {{64, 64}, {128, 128}, {256, 256}, {192, 128}, {96, 80},  {100, 100},
                                  {20, 33}, {1, 1},     {61, 41},   {72, 8},    {130, 255}};

/// The rest of a case, dealt.
class Source {
 public:
  explicit Source(std::uint64_t first_seed) : seed_(first_seed) {}
  CaseSpec draw(const Dims2& dims) {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = seed_ % 4 == 0 ? DType::f16 : DType::bf16;
    spec.batch = batch_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.group = group_.deal();
    spec.q_rows = rows_.deal();
    spec.kv_rows = keys_.deal();
    spec.mask = mask_.deal();
    spec.score = score_.deal();
    spec.late = seed_ % 5 == 0 ? 100 : 1;
    spec.with_lse = seed_ % 6 != 0;
    return spec;
  }

 private:
  std::uint64_t seed_;
  Deck<std::int64_t> batch_{{1, 2, 3}, 1}, kv_heads_{{1, 2}, 2}, group_{{1, 2, 3}, 3};
  Deck<std::int64_t> rows_{{1, 63, 64, 65, 130, 200, 300}, 4}, keys_{{1, 16, 63, 65, 129, 200, 300, 520}, 5};
  Deck<std::string> mask_{{"", "", "causal", "by_head"}, 6}, score_{{"", "", "", "alibi", "softcap"}, 7};
};

TEST_F(GpuLayout, EveryLayout) {
  std::vector<CaseSpec> specs;
  Source source(100'000);
  for (const Dims2& dims : kDims) {
    for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::gaps, Layout::sliced, Layout::reversed,
                                Layout::expanded, Layout::one_row}) {
      CaseSpec spec = source.draw(dims);
      spec.layout = layout;
      specs.push_back(spec);
    }
  }
  run_all(specs);
}

// Words of 8, 4 and 2 bytes, of rows that TMA could step over.
TEST_F(GpuLayout, AddressesThat16DoesNotDivide) {
  std::vector<CaseSpec> specs;
  Source source(101'000);
  for (const Dims2& dims : kDims) {
    for (const int alignment : {2, 4, 8}) {
      CaseSpec spec = source.draw(dims);
      spec.layout = alignment == 8 ? Layout::sliced : Layout::padded;
      spec.alignment = alignment;
      specs.push_back(spec);
    }
  }
  run_all(specs);
}

TEST_F(GpuLayout, SequencesThatDiffer) {
  std::vector<CaseSpec> specs;
  Source source(102'000);
  Deck<Layout> layouts({Layout::bhsd, Layout::bshd, Layout::gaps, Layout::reversed, Layout::one_row}, 8);
  Deck<std::string> masks({"", "causal_lower_right", "prefix_by_sequence"}, 9),
      starts({"none", "ahead", "aligned"}, 10);
  for (const Dims2& dims : kDims) {
    for (const char* sequences : {"lengths", "packed"}) {
      for (const int alignment : {16, 2}) {
        CaseSpec spec = source.draw(dims);
        spec.sequences = sequences;
        spec.layout = layouts.deal();
        spec.alignment = alignment;
        spec.mask = masks.deal();
        spec.q_start = starts.deal();
        spec.batch = 3;
        specs.push_back(spec);
      }
    }
  }
  run_all(specs);
}

// One CTA brings many tiles, some of them twice.
TEST_F(GpuLayout, ManyTilesOfACta) {
  std::vector<CaseSpec> specs;
  Source source(103'000);
  const std::pair<Dims2, BlockSize> kernels[] = {
      {{64, 64}, {128, 128}}, {{128, 128}, {128, 128}}, {{256, 256}, {128, 64}}, {{100, 33}, {128, 128}}};
  for (const auto& [dims, tile] : kernels) {
    for (const int ctas : {1, 2}) {
      for (const double late : {1.0, 300.0}) {
        for (const int alignment : {16, 4, 2}) {
          CaseSpec spec = source.draw(dims);
          spec.layout = alignment == 16 ? Layout::reversed : Layout::padded;
          spec.alignment = alignment;
          spec.rows = "given";
          spec.tile = tile;
          spec.block = BlockSize{64, tile.kv};
          spec.mask = late > 1 ? "causal" : "";
          spec.score.clear();
          spec.ctas = ctas;
          spec.late = late;
          spec.batch = 2;
          spec.group = 3;
          spec.q_rows = spec.kv_rows = 300;
          specs.push_back(spec);
        }
      }
    }
  }
  run_all(specs);
}

TEST_F(GpuLayout, WithWhatElseAKernelDoes) {
  std::vector<CaseSpec> specs;
  Source source(104'000);
  Deck<Layout> layouts({Layout::reversed, Layout::padded, Layout::gaps, Layout::bhsd}, 11);
  Deck<int> alignments({16, 8, 4}, 12);
  const Dims2 all[] = {{64, 64}, {128, 128}, {256, 256}, {100, 33}};
  std::uint64_t seed = 104'100;
  for (const Dims2& dims : all) {
    CaseSpec base = source.draw(dims);
    base.seed = seed += 100;
    for (CaseSpec spec : crossings(base)) {
      spec.layout = layouts.deal();
      spec.alignment = alignments.deal();
      specs.push_back(spec);
    }
  }
  run_all(specs);
}

// Biases whose rows TMA does not take, which are copied; and biases that all queries share, whose rows it takes.
TEST_F(GpuLayout, CapturesAtOddPlaces) {
  std::vector<CaseSpec> specs;
  Source source(105'000);
  Deck<std::string> masks({"", "causal", "by_head"}, 13), sequences({"whole", "lengths", "packed"}, 14),
      starts({"none", "ahead"}, 15);
  for (const std::int64_t dim : {64, 128, 256, 100}) {
    for (const char* score : {"streamed_odd", "streamed_odd_f32", "streamed_shared", "streamed_odd_shared"}) {
      for (int i = 0; i < 3; ++i) {
        CaseSpec spec = source.draw({dim, dim});
        spec.score = score;
        spec.mask = masks.deal();
        spec.sequences = sequences.deal();
        spec.q_start = starts.deal();
        spec.layout = i == 2 ? Layout::gaps : Layout::bshd;
        spec.batch = 2 + i;
        specs.push_back(spec);
      }
    }
  }
  run_all(specs);
  if (gpu_backend() == BackendChoice::cpu) return;
  for (const CaseSpec& spec : specs) {
    GpuCase c(spec);
    const std::string text = AttentionPlan(c.tensors(), c.options_there()).explain();
    // A single row is where TMA takes it.
    const bool in_place =
        spec.score == "streamed_shared" || (spec.score == "streamed_odd_shared" && spec.q_heads() == 1);
    EXPECT_EQ(text.find("a capture is copied") == std::string::npos, in_place) << text;
    EXPECT_EQ(text.find("element by element:"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace heddle::test
