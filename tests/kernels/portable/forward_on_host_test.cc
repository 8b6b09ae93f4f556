// The portable forward on the host, against the reference by the one criterion: first its own text over fragments that
// are plain loops, then over each architecture's fragments, whose instructions the host computes. Every value of every
// list occurs about equally often, in combinations that follow from a seed. Each case is a compilation of a second, so
// a fifth of the counts below is drawn; HEDDLE_TEST_FULL=1 draws ten times the counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "engine/large_scores.h"
#include "heddle/error.h"
#include "kernels/portable/host_kernel.h"
#include "kernels/portable/specs.h"
#include "sample.h"

namespace heddle::test {
namespace {

using shared::FragmentKind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Cases with given blocks of fewer keys than a fragment has are refused.
bool has_32_keys(FragmentKind fragments) {
  return fragments == FragmentKind::gfx9 || fragments == FragmentKind::outer || fragments == FragmentKind::tf32;
}

/// The grid of an architecture's fragments.
struct Grid {
  FragmentKind fragments;
  int count;
  std::uint64_t seed;
  std::int64_t most_elements;
  std::vector<DType> dtypes = {DType::bf16, DType::f16};
  std::vector<PortableDims> dims = {};  // instead of those drawn
  bool bytes = false;                   // types of 8 bits instead
};

/// The next case of the grid.
class GridSpecs {
 public:
  explicit GridSpecs(const Grid& grid) : source_(grid.seed, grid.most_elements, grid.dtypes) {
    if (!grid.dims.empty()) dims_.emplace(grid.dims, grid.seed + 7);
    if (grid.bytes) bytes_.emplace();
  }
  CaseSpec draw() {
    CaseSpec spec = source_.draw();
    if (bytes_) bytes_->turn(spec);
    if (!dims_) return spec;
    const PortableDims dims = dims_->deal();
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    return spec;
  }

 private:
  PortableSpecs source_;
  std::optional<Deck<PortableDims>> dims_;
  std::optional<BytesDeck> bytes_;
};

void run_grid(const Grid& grid) {
  const FragmentKind fragments = grid.fragments;
  const auto [count, seed] = std::pair(grid.count, grid.seed);
  GridSpecs source(grid);
  Deck<int> candidates({0, 0, 1, 2, 3}, seed + 1);
  for (int i = 0; i < count;) {
    CaseSpec spec = source.draw();
    spec.allow_tf32 = fragments == FragmentKind::tf32;
    if (!fits(spec)) continue;
    ++i;
    SCOPED_TRACE(spec.text());
    try {
      AttentionCase c(spec);
      // Queries of 512 columns of f32 have no room on smaller chips. Some chips convert e4m3 by an instruction.
      // f64's products are other instructions on sm_90.
      const bool differs = grid.bytes || fragments == FragmentKind::dmma;
      const bool large = !grid.dims.empty() || (differs && i % 2 == 0);
      run_on_host_and_judge(c,
                            {.fragments = fragments, .gpu = large ? "h200" : "a100", .candidate = candidates.deal()});
    } catch (const Error& error) {
      const bool may = has_32_keys(fragments) && spec.block;
      const bool refused = may && error.code() == ErrorCode::unsupported;
      EXPECT_TRUE(refused) << error.what();
    }
  }
}

/// Few queries and many keys, whose steps several CTAs share.
void run_decodes(const Grid& grid) {
  const FragmentKind fragments = grid.fragments;
  const auto [count, seed] = std::pair(grid.count, grid.seed);
  GridSpecs source(grid);
  Deck<std::int64_t> q_rows({1, 1, 2, 3, 5, 16, 31}, seed + 1), kv_rows({1, 60, 129, 500, 900}, seed + 2),
      group({1, 2, 4, 7, 8, 20, 71}, seed + 3);
  Deck<int> splits({1, 2, 3, 7}, seed + 4), candidates({0, 0, 1}, seed + 5);
  // Rings of different lengths.
  Deck<std::string_view> gpus({"h200", "a100", fragments == FragmentKind::dmma ? "a100" : "l4"}, seed + 6);
  for (int i = 0; i < count;) {
    CaseSpec spec = source.draw();
    spec.q_rows = q_rows.deal();
    spec.kv_rows = kv_rows.deal();
    spec.group = group.deal();
    spec.kv_heads = 1 + i % 2;
    spec.batch = std::min<std::int64_t>(spec.batch, 2);
    if (spec.q_rows > 2) spec.group = std::min<std::int64_t>(spec.group, 8);
    if (!fits(spec)) continue;
    ++i;
    SCOPED_TRACE(spec.text());
    try {
      AttentionCase c(spec);
      run_on_host_and_judge(
          c, {.fragments = fragments, .gpu = gpus.deal(), .candidate = candidates.deal(), .splits = splits.deal()});
    } catch (const Error& error) {
      const bool may = has_32_keys(fragments) && spec.block;
      const bool refused = may && error.code() == ErrorCode::unsupported;
      EXPECT_TRUE(refused) << error.what();
    }
  }
}

/// Runs cases that a drawn sample may lack: rows that are copied 16 bytes at a time, several steps, ends inside of
/// fragments, partial blocks, groups, in both types.
void run_steps(FragmentKind fragments) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    if (!is_drawn(static_cast<unsigned>(fragments) + (dtype == DType::f16 ? 1 : 0), 2)) continue;
    CaseSpec spec;
    spec.seed = dtype == DType::bf16 ? 1 : 2;  // one has its copies early, the other late
    spec.threads = 1;
    spec.batch = spec.kv_heads = 1;
    spec.group = 2;
    spec.q_rows = 70;
    spec.kv_rows = dtype == DType::bf16 ? 150 : 200;
    spec.qk_dim = 64;
    spec.v_dim = dtype == DType::bf16 ? 64 : 80;
    const bool of_f32 = fragments == FragmentKind::outer || fragments == FragmentKind::tf32;
    const bool of_f64 = fragments == FragmentKind::dmma;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = of_f64 ? DType::f64 : of_f32 ? DType::f32 : dtype;
    spec.allow_tf32 = fragments == FragmentKind::tf32;
    spec.mask = "causal_lower_right";
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    run_on_host_and_judge(c, {.fragments = fragments, .gpu = of_f64 && dtype == DType::f16 ? "h200" : "a100"});
  }
}

/// Rings over pages that go round several times, in one CTA and in three; copies as early and as late as they may be.
void run_paged_rings(FragmentKind fragments, DType dtype) {
  for (const std::int64_t page_rows : {16, 5}) {
    CaseSpec spec;
    spec.seed = page_rows == 16 ? 1 : 2;
    spec.threads = 1;
    spec.batch = spec.kv_heads = 2;
    spec.group = 4;
    spec.q_rows = 1;
    spec.kv_rows = 700;
    spec.qk_dim = spec.v_dim = 64;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
    spec.page_rows = page_rows;
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    run_on_host_and_judge(c, {.fragments = fragments,
                              .gpu = page_rows == 16                   ? "h200"
                                     : fragments == FragmentKind::dmma ? "a100"
                                                                       : "l4",
                              .splits = page_rows == 16 ? 1 : 3});
  }
}

/// Rows whose scores are far from 0: o, and both words of lse; also where several waves and CTAs share the keys.
void run_large(FragmentKind fragments, DType dtype) {
  const double of_o = dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-9 : 1e-6;
  unsigned number = 0;
  // near: a maximum in powers of two is rounded, which 16 bits bear.
  const auto expect_right = [&](LargeScores& large, bool near = false) {
    const int splits = std::array{1, 3}[number % 2];
    run_on_host(large.forward(), large.options,
                {.fragments = fragments, .candidate = static_cast<int>(number / 2 % 2), .splits = splits});
    EXPECT_LE(large.error_of_o(), of_o);
    EXPECT_LE(large.error_of_lse(), near && of_o > 1e-5 ? 4e-5 : 2e-6);
    ++number;
  };
  const LargeShape shape = {.dtype = dtype, .queries = 3, .keys = 150, .dim = 16, .kv_heads = 2, .group = 2};
  for (const LargeForm form : {LargeForm::added, LargeForm::plain}) {
    for (const double level : {-0x1p9, 0x1p20, -0x1p30}) {
      if (form == LargeForm::plain && level == -0x1p30 && dtype == DType::f16) continue;  // past its range
      for (const double sink : {-kInfinity, level, level + 8}) {
        if (!is_drawn(number + static_cast<unsigned>(dtype), 6)) {
          ++number;
          continue;
        }
        SCOPED_TRACE(fmt::format("form {} level {} sink {}", static_cast<int>(form), level, sink));
        LargeScores large(
            shape, [&](auto, auto) { return level; }, form);
        if (sink != -kInfinity) large.set_sink(sink);
        expect_right(large, std::abs(level) < 1024);
      }
    }
  }
  for (const double low : {-1e9, static_cast<double>(std::numeric_limits<float>::lowest())}) {
    SCOPED_TRACE(fmt::format("a mask of {}", low));
    LargeScores large(shape, [&](auto row, auto key) { return key < 40 * row ? 0.0 : low; });
    if (low == -1e9) large.set_sink(low);
    expect_right(large);
  }
}
TEST(ForwardOnHost, LargeScores) { run_large(FragmentKind::host, DType::bf16); }
TEST(ForwardOnHost, LargeScoresOverMma) { run_large(FragmentKind::mma, DType::f16); }
TEST(ForwardOnHost, LargeScoresOverFma) { run_large(FragmentKind::fma, DType::f32); }
TEST(ForwardOnHost, LargeScoresOverOuter) { run_large(FragmentKind::outer, DType::f32); }
TEST(ForwardOnHost, LargeScoresOverGfx11) { run_large(FragmentKind::gfx11, DType::bf16); }
TEST(ForwardOnHost, LargeScoresOfF64) { run_large(FragmentKind::fma, DType::f64); }
TEST(ForwardOnHost, LargeScoresOverDmma) { run_large(FragmentKind::dmma, DType::f64); }

const std::vector<DType> kWide = {DType::f32, DType::f64};

TEST(ForwardOnHost, AgreesWithTheReference) { run_grid({FragmentKind::host, cases_on_host(30), 0, 60'000}); }
TEST(ForwardOnHost, FewQueries) { run_decodes({FragmentKind::host, cases_on_host(12), 2'000'000, 60'000}); }
TEST(ForwardOnHost, PagedRings) { run_paged_rings(FragmentKind::host, DType::bf16); }
TEST(ForwardOnHost, PagedRingsOverMma) { run_paged_rings(FragmentKind::mma, DType::bf16); }
TEST(ForwardOnHost, PagedRingsOverFma) { run_paged_rings(FragmentKind::fma, DType::f32); }
TEST(ForwardOnHost, PagedRingsOverDmma) { run_paged_rings(FragmentKind::dmma, DType::f64); }
TEST(ForwardOnHost, StepsOverMma) { run_steps(FragmentKind::mma); }
TEST(ForwardOnHost, StepsOverOuter) { run_steps(FragmentKind::outer); }
TEST(ForwardOnHost, StepsOverGfx11) { run_steps(FragmentKind::gfx11); }
TEST(ForwardOnHost, StepsOverGfx12) { run_steps(FragmentKind::gfx12); }
TEST(ForwardOnHost, StepsOverGfx9) { run_steps(FragmentKind::gfx9); }
TEST(ForwardOnHost, OverMma) { run_grid({FragmentKind::mma, cases_on_host(16), 1'000'000, 30'000}); }
TEST(ForwardOnHost, FewQueriesOverMma) { run_decodes({FragmentKind::mma, cases_on_host(8), 3'000'000, 30'000}); }
TEST(ForwardOnHost, OverGfx11) { run_grid({FragmentKind::gfx11, cases_on_host(6), 7'000'000, 20'000}); }
TEST(ForwardOnHost, OverGfx12) { run_grid({FragmentKind::gfx12, cases_on_host(6), 8'000'000, 20'000}); }
TEST(ForwardOnHost, OverGfx9) { run_grid({FragmentKind::gfx9, cases_on_host(6), 9'000'000, 20'000}); }
TEST(ForwardOnHost, FewQueriesOverGfx11) { run_decodes({FragmentKind::gfx11, cases_on_host(3), 10'000'000, 20'000}); }
TEST(ForwardOnHost, FewQueriesOverGfx9) { run_decodes({FragmentKind::gfx9, cases_on_host(3), 11'000'000, 20'000}); }
TEST(ForwardOnHost, F32AndF64) { run_grid({FragmentKind::host, cases_on_host(8), 4'000'000, 60'000, kWide}); }
// Each wave that shares the keys rounds its weights beside its own maximum. Here one weight decides the tensor, and
// plain rounds that weight by next to nothing.
TEST(ForwardOnHost, FewQueriesWhereOneWeightDecidesOverMma) {
  CaseSpec spec;
  spec.seed = 630'061;
  spec.threads = 1;
  spec.batch = 1;
  spec.kv_heads = 3;
  spec.group = 1;
  spec.q_rows = 2;
  spec.kv_rows = 60;
  spec.qk_dim = spec.v_dim = 64;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.o_dtype = DType::f64;
  spec.layout = Layout::bshd;
  spec.q_start = "aligned";
  spec.kv_start = "uniform";
  spec.score = "streamed_inside";
  spec.weight = "drops_most";
  spec.spread = 30;
  spec.scale = -0.1;
  spec.page_rows = 5;
  AttentionCase c(spec);
  run_on_host_and_judge(c, {.fragments = FragmentKind::mma});
}

// With a negative scale the largest product has the smallest t: each t is computed before the row's maximum is found,
// and is f64.
TEST(ForwardOnHost, NegativeScaleOfF64) {
  CaseSpec spec;
  spec.threads = 1;
  spec.batch = spec.kv_heads = 1;
  spec.q_rows = 20;
  spec.kv_rows = 40;
  spec.qk_dim = spec.v_dim = 16;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f64;
  spec.scale = -0.1;
  for (const FragmentKind fragments : {FragmentKind::host, FragmentKind::fma, FragmentKind::dmma}) {
    AttentionCase c(spec);
    run_on_host_and_judge(c, {.fragments = fragments});
  }
}

/// 40 queries on 100 keys, of which each row attends a part.
CaseSpec causal_case(std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.batch = 1;
  spec.group = 2;
  spec.q_rows = 40;
  spec.kv_rows = 100;
  spec.qk_dim = spec.v_dim = 64;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.mask = "causal";
  return spec;
}

// Products of a plain score are scaled behind the maximum; a sink is no score.
TEST(ForwardOnHost, LargestScores) {
  for (const bool few : {false, true}) {
    CaseSpec spec = causal_case(few ? 1 : 2);
    spec.with_max_scores = true;
    if (few) spec.q_rows = 2, spec.sinks = "large";
    AttentionCase c(spec);
    run_on_host_and_judge(c, {.fragments = FragmentKind::mma, .splits = few ? 3 : 1});
  }
}

// An element of o has another size than one of v.
TEST(ForwardOnHost, SlicesOfOtherOutputs) {
  CaseSpec spec = causal_case(3);
  spec.v_dim = 300;
  spec.o_dtype = DType::f32;
  AttentionCase c(spec);
  run_on_host_and_judge(c, {.fragments = FragmentKind::mma});
}

TEST(ForwardOnHost, OverFma) { run_grid({FragmentKind::fma, cases_on_host(5), 5'000'000, 6'000, kWide}); }
// AMD's chips without matrix instructions take them.
TEST(ForwardOnHost, Of16BitsOverFma) {
  run_grid({FragmentKind::fma, cases_on_host(6), 32'000'000, 6'000});
  run_decodes({FragmentKind::fma, cases_on_host(4), 33'000'000, 6'000});
}
TEST(ForwardOnHost, StepsOverTf32) { run_steps(FragmentKind::tf32); }
TEST(ForwardOnHost, OverTf32) { run_grid({FragmentKind::tf32, cases_on_host(5), 13'000'000, 20'000, {DType::f32}}); }
TEST(ForwardOnHost, OverOuter) { run_grid({FragmentKind::outer, cases_on_host(5), 12'000'000, 20'000, {DType::f32}}); }
TEST(ForwardOnHost, StepsOverDmma) { run_steps(FragmentKind::dmma); }
TEST(ForwardOnHost, OverDmma) { run_grid({FragmentKind::dmma, cases_on_host(15), 34'000'000, 20'000, {DType::f64}}); }
TEST(ForwardOnHost, FewQueriesOverDmma) {
  run_decodes({FragmentKind::dmma, cases_on_host(8), 35'000'000, 20'000, {DType::f64}});
}
TEST(ForwardOnHost, FewQueriesOverFma) { run_decodes({FragmentKind::fma, cases_on_host(3), 6'000'000, 6'000, kWide}); }

/// Values of more columns than a thread's registers have sums for: two launches, of a slice each.
const std::vector<PortableDims> kSlicedDims = {{512, 512}, {576, 512}, {320, 320}, {64, 300},
                                               {512, 257}, {257, 511}, {300, 64}};
const std::vector<PortableDims> kSlicedDimsOfF64 = {{256, 256}, {160, 160}, {64, 129}, {200, 255}, {256, 64}};
TEST(ForwardOnHost, SlicesOverMma) {
  run_grid({FragmentKind::mma, cases_on_host(12), 14'000'000, 20'000, {DType::bf16, DType::f16}, kSlicedDims});
}
TEST(ForwardOnHost, SlicesOfFewQueries) {
  run_decodes({FragmentKind::mma, cases_on_host(8), 15'000'000, 20'000, {DType::bf16, DType::f16}, kSlicedDims});
}
TEST(ForwardOnHost, SlicesOfF32) {
  run_grid({FragmentKind::outer, cases_on_host(4), 16'000'000, 20'000, {DType::f32}, kSlicedDims});
  run_grid({FragmentKind::tf32, cases_on_host(4), 17'000'000, 20'000, {DType::f32}, kSlicedDims});
  run_grid({FragmentKind::fma, cases_on_host(4), 18'000'000, 20'000, {DType::f32}, kSlicedDims});
}
TEST(ForwardOnHost, SlicesOfF64) {
  run_grid({FragmentKind::fma, cases_on_host(6), 19'000'000, 20'000, {DType::f64}, kSlicedDimsOfF64});
  run_grid({FragmentKind::dmma, cases_on_host(10), 36'000'000, 20'000, {DType::f64}, kSlicedDimsOfF64});
}

/// Blocks of a mask that have fewer than 64 rows, as it was built, or listed whatever it says: tiles of as few rows.
void run_small_blocks(FragmentKind fragments, const std::vector<DType>& dtypes) {
  unsigned number = static_cast<unsigned>(fragments);
  for (const BlockSize block : {BlockSize{16, 16}, BlockSize{32, 64}, BlockSize{48, 32}, BlockSize{96, 16}}) {
    for (const char* rows : {"given", "lists"}) {
      for (const DType dtype : dtypes) {
        if (!is_drawn(number++, 4)) continue;
        CaseSpec spec;
        spec.seed = number;
        spec.threads = 1;
        spec.group = number % 3 == 0 ? 4 : 1;
        spec.kv_heads = 2;
        spec.q_rows = number % 4 == 0 ? 20 : 150;
        spec.kv_rows = 200;
        spec.qk_dim = spec.v_dim = number % 2 == 0 ? 64 : 128;
        spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
        spec.mask = number % 5 < 2 ? "" : "causal_lower_right";
        if (rows == std::string("given")) spec.mask = "by_head";
        spec.rows = rows;
        spec.block = block;
        SCOPED_TRACE(spec.text());
        AttentionCase c(spec);
        run_on_host_and_judge(c, {.fragments = fragments, .candidate = static_cast<int>(number % 2)});
      }
    }
  }
}
TEST(ForwardOnHost, SmallBlocks) { run_small_blocks(FragmentKind::host, {DType::bf16, DType::f64}); }
TEST(ForwardOnHost, SmallBlocksOverMma) { run_small_blocks(FragmentKind::mma, {DType::bf16, DType::f16}); }
TEST(ForwardOnHost, SmallBlocksOverFma) { run_small_blocks(FragmentKind::fma, kWide); }
TEST(ForwardOnHost, SmallBlocksOverDmma) { run_small_blocks(FragmentKind::dmma, {DType::f64}); }
TEST(ForwardOnHost, SmallBlocksOverGfx11) { run_small_blocks(FragmentKind::gfx11, {DType::bf16}); }

/// Keys and values of 8 bits become f16, as do queries.
TEST(ForwardBytesOnHost, AgreesWithTheReference) {
  run_grid({.fragments = FragmentKind::host,
            .count = cases_on_host(20),
            .seed = 20'000'000,
            .most_elements = 60'000,
            .bytes = true});
}
TEST(ForwardBytesOnHost, FewQueries) {
  run_decodes({.fragments = FragmentKind::host,
               .count = cases_on_host(8),
               .seed = 21'000'000,
               .most_elements = 60'000,
               .bytes = true});
}
TEST(ForwardBytesOnHost, ByMma) {
  run_grid({.fragments = FragmentKind::mma,
            .count = cases_on_host(24),
            .seed = 22'000'000,
            .most_elements = 30'000,
            .bytes = true});
}
TEST(ForwardBytesOnHost, FewQueriesByMma) {
  run_decodes({.fragments = FragmentKind::mma,
               .count = cases_on_host(8),
               .seed = 23'000'000,
               .most_elements = 30'000,
               .bytes = true});
}
TEST(ForwardBytesOnHost, ByAmd) {
  for (const FragmentKind fragments :
       {FragmentKind::gfx11, FragmentKind::gfx12, FragmentKind::gfx9, FragmentKind::fma}) {
    const std::uint64_t seed = 25'000'000 + 1'000'000 * static_cast<std::uint64_t>(fragments);
    run_grid(
        {.fragments = fragments, .count = cases_on_host(12), .seed = seed, .most_elements = 30'000, .bytes = true});
    run_decodes({.fragments = fragments,
                 .count = cases_on_host(6),
                 .seed = seed + 500'000,
                 .most_elements = 30'000,
                 .bytes = true});
  }
}
TEST(ForwardBytesOnHost, SlicesByMma) {
  run_grid({.fragments = FragmentKind::mma,
            .count = cases_on_host(10),
            .seed = 24'000'000,
            .most_elements = 20'000,
            .dims = kSlicedDims,
            .bytes = true});
}

}  // namespace
}  // namespace heddle::test
