// o of another type than q's, on a GPU: every type that it may have, against the reference; and bit by bit, all numbers
// of 16 bits. HEDDLE_TEST_REDUCED and HEDDLE_TEST_BACKEND as in gpu_grid_test.cc.
#include <gtest/gtest.h>

#include <cmath>

#include "base/element.h"
#include "check/plain.h"
#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

const std::vector<DType> kTypes = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};

class GpuOutput : public GpuTest {};

/// A type other than o's.
DType other_than(DType o) { return o == DType::bf16 ? DType::f16 : DType::bf16; }

CaseSpec spec_of(std::uint64_t seed, DType o, plan::HeadDims dims) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.qk_dim = dims.qk;
  spec.v_dim = dims.v;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = other_than(o);
  spec.o_dtype = o;
  spec.layout = dims.qk % 8 == 0 && dims.v % 8 == 0 ? Layout::bshd : Layout::padded;
  return spec;
}

TEST_F(GpuOutput, EveryTypeOfEveryHeadDim) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 90'000;
  Deck<std::int64_t> rows({64, 130, 200, 1}, 1), keys({16, 100, 129, 300}, 2);
  Deck<std::string> mask({"", "causal", "sliding_window"}, 3), sequences({"whole", "whole", "lengths", "packed"}, 4);
  Deck<Layout> layout({Layout::bshd, Layout::bhsd, Layout::sliced, Layout::padded}, 5);
  const std::vector<plan::HeadDims> all = {{64, 64},   {96, 96}, {128, 128}, {192, 128}, {192, 192},
                                           {256, 256}, {40, 40}, {20, 33},   {100, 1},   {64, 36}};
  for (const plan::HeadDims& dims : all) {
    for (const DType o : kTypes) {
      CaseSpec spec = spec_of(++seed, o, dims);
      if (spec.layout == Layout::bshd) spec.layout = layout.deal();
      spec.batch = 3;
      spec.group = 2;
      spec.q_rows = rows.deal();
      spec.kv_rows = keys.deal();
      spec.mask = mask.deal();
      spec.sequences = sequences.deal();
      spec.with_lse = seed % 3 != 0;
      specs.push_back(spec);
    }
  }
  run_all(specs, 7);
}

// Queries that attend nothing are written by other code.
TEST_F(GpuOutput, ZerosOfEveryType) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 91'000;
  for (const DType o : kTypes) {
    for (const char* mask : {"nothing", "causal_lower_right"}) {
      ++seed;
      CaseSpec spec = spec_of(seed, o, seed % 2 == 0 ? plan::HeadDims{64, 64} : plan::HeadDims{64, 33});
      spec.mask = mask;
      spec.batch = spec.group = 2;
      spec.q_rows = 300;
      spec.kv_rows = 90;
      specs.push_back(spec);
    }
  }
  run_all(specs, 5);
}

// Late keys far above the first: a tile is computed again, and what it stored is overwritten.
TEST_F(GpuOutput, OfTilesThatAreRepeated) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 92'000;
  Deck<DType> type(kTypes, 6);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (kernel.spare) continue;
    CaseSpec spec = spec_of(++seed, type.deal(), plan::dims_of(kernel));
    spec.rows = "given";
    spec.tile = {kernel.config().rows(), kernel.kv_block};
    spec.block = {shared::kWarpgroupRows, kernel.kv_block};
    spec.ctas = 1;
    spec.late = 300;
    spec.batch = reduced() ? 1 : 2;
    spec.group = 3;
    spec.mask = seed % 2 == 0 ? "causal" : "";
    spec.q_rows = spec.kv_rows = kernel.config().rows() + 70;
    specs.push_back(spec);
  }
  run_all(specs, 4);
}

// With one key, o is the key's value. All 65536 patterns come: each is rounded once, to nearest even, and overflows
// past the largest number. f32 and f64 show the error of sums in f32.
TEST_F(GpuOutput, RoundsEveryNumberOf16Bits) {
  constexpr std::int64_t kColumns = 64, kHeads = 16;
  for (const DType o : kTypes) {
    CaseSpec spec = spec_of(93'000, o, {kColumns, kColumns});
    spec.layout = Layout::bhsd;
    spec.kv_heads = kHeads;
    spec.batch = 65536 / kColumns / kHeads;
    spec.q_rows = spec.kv_rows = 1;
    SCOPED_TRACE(spec.text());
    GpuCase c(spec);
    const TensorView &values = c.host().v.view(), &result = c.host().o.view();
    for (std::int64_t i = 0; i < 65536; ++i) {
      static_cast<std::uint16_t*>(values.data)[i] = static_cast<std::uint16_t>(i);
    }
    c.run();
    std::int64_t wrong = 0, finite = 0;
    for (std::int64_t i = 0; i < 65536; ++i) {
      const double x = base::load_element(values.data, values.dtype, i);
      // Numbers that are subnormal in f32 are products' to keep or to flush.
      if (x != 0 && std::abs(x) < 0x1p-126) continue;
      const double expected = check::round_to(o, x), got = base::load_element(result.data, o, i);
      if (std::isfinite(expected)) ++finite;
      const double error = o == DType::f32 || o == DType::f64 ? 0x1p-21 * std::abs(expected) : 0;
      const bool right = std::isnan(expected)   ? std::isnan(got)
                         : std::isinf(expected) ? expected == got
                                                : std::abs(expected - got) <= error;
      if (!right && ++wrong < 4) ADD_FAILURE() << x << " became " << got << ", not " << expected;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(finite, 30'000);
  }
}

}  // namespace
}  // namespace heddle::test
