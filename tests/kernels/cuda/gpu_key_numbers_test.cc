// Part of the grid of the cuda backend: what a score_mod makes of the key alone, and tables at a place of the query
// plus one of the key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "kernels/cuda/gpu_grid.h"

namespace heddle::test {
namespace {

// By every kernel: warpgroups of a tile on different blocks, tiles of one step, heads and sequences that differ.
TEST_F(GpuGrid, NumbersOfKeys) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 97'000;
  Deck<std::string> sequences({"", "", "lengths", "packed"}, 61), start({"none", "ahead", "aligned"}, 62),
      mask({"", "", "causal", "by_head", "sliding_window", "some_queries_blind"}, 63);
  Deck<int> ctas({0, 1, 2}, 64), blocks({4, 2, 1}, 65);
  Deck<double> spread({1, 1, 4}, 66);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const char* score :
         {"padded", "alibi_padded", "temperature_and_gate", "scaled_keys_of_head", "grid_bias", "grid_bias_padded"}) {
      CaseSpec spec = spec_of(kernel, ++seed);
      if (seed % 3 == 0) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      spec.score = score;
      spec.sequences = sequences.deal();
      spec.mask = mask.deal();
      spec.q_start = start.deal();
      spec.spread = spread.deal();
      spec.ctas = ctas.deal();
      spec.batch = 3;
      spec.group = 2;
      spec.q_rows = 2 * kernel.config().rows() + 30;
      spec.kv_rows = blocks.deal() * kernel.kv_block + 30;
      if (spec.sequences.empty()) spec.sequences = "whole";
      // Room and registers for these are not in every kernel.
      const bool grid = spec.score.starts_with("grid"), two = spec.score == "scaled_keys_of_head";
      if ((grid && spec.q_start != "none") || (two && kernel.qk_dim != kernel.v_dim)) build_rows(spec);
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 6), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

/// Expects o to be the mean of values, for one head. If |t| is the largest number, the criterion's floor allows any o.
void expect_means_of_values(const AttentionCase& c) {
  const TensorView &v = c.v.view(), &o = c.o.view();
  const auto at = [](const TensorView& view, std::int64_t row, std::int64_t column) {
    return base::load_element(view.data, view.dtype, row * view.strides[2] + column * view.strides[3]);
  };
  double largest = 0;
  for (std::int64_t d = 0; d < v.shape[3]; ++d) {
    double sum = 0;
    for (std::int64_t j = 0; j < v.shape[2]; ++j) sum += at(v, j, d);
    const double mean = sum / static_cast<double>(v.shape[2]);
    for (std::int64_t i = 0; i < o.shape[2]; ++i) largest = std::max(largest, std::abs(at(o, i, d) - mean));
  }
  EXPECT_LT(largest, 2e-3);  // half a unit of bf16 at 0.5; the means themselves are about 0.05
}

// Keys that are all padded by one finite number count alike, however large it is; by -inf, none does. What is padded
// may hold anything but values that are not finite.
TEST_F(GpuGrid, RowsOfPaddedKeys) {
  for (const float excluded : {-1e9F, std::numeric_limits<float>::lowest(), -std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t dim : {64, 128}) {
      CaseSpec spec;
      spec.seed = 98'000;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      spec.qk_dim = spec.v_dim = dim;
      spec.q_rows = 200;
      spec.kv_rows = 333;
      spec.spread = 0;  // t is the padding
      GpuCase padded(spec);
      Tensor padding = Tensor::empty(DType::f32, {spec.kv_rows});
      std::fill_n(static_cast<float*>(padding.data()), spec.kv_rows, excluded);
      padded.host().capture("padding", padding);
      padded.options().score_mod = leaf::score() + Capture("padding", DType::f32, 1)(leaf::kv_idx());
      padded.run_and_judge();
      if (!std::isinf(excluded)) expect_means_of_values(padded.host());
    }
  }
}

// Tiles of one step, whose tables differ: a table is asked for as soon as the keys of two tiles before are given back.
TEST_F(GpuGrid, TablesOfTilesOfOneStep) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 97'600;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (kernel.qk_dim > 128 || kernel.spare) continue;
    for (const int ctas : {1, 3}) {
      CaseSpec spec = spec_of(kernel, ++seed);
      spec.score = "grid_bias";
      spec.ctas = ctas;
      spec.kv_heads = 2;
      spec.group = 4;
      spec.q_rows = 2 * kernel.config().rows();
      spec.kv_rows = kernel.kv_block;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Windows of side x side tokens, one after the other, whose tables fill shared memory: 36 KB leave room at D 128 for
// 192 x 80 alone, 49 KB for a spare kernel; of 64 KB each pair reads its entry.
TEST_F(GpuGrid, TablesThatFillSharedMemory) {
  struct Table {
    std::int32_t side;
    std::int64_t dim;
    const char* sequences;
  };
  const std::vector<Table> tables = {{48, 64, "whole"},   {48, 128, "whole"},   {48, 128, "lengths"},
                                     {48, 128, "packed"}, {56, 128, "lengths"}, {64, 128, "whole"},
                                     {48, 192, "whole"},  {48, 256, "packed"}};
  constexpr std::uint64_t kFirst = 99'000;
  std::vector<CaseSpec> specs;
  for (const Table& table : tables) {
    CaseSpec spec;
    spec.seed = kFirst + specs.size();
    spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.seed % 3 == 0 ? DType::f16 : DType::bf16;
    spec.qk_dim = spec.v_dim = table.dim;
    spec.sequences = table.sequences;
    spec.batch = spec.sequences == "whole" ? 1 : 2;
    spec.group = 2;
    spec.q_rows = 200;                      // more than a tile
    spec.kv_rows = reduced() ? 400 : 2400;  // more than a window
    specs.push_back(spec);
  }
  for_each_spec(specs, [&](const CaseSpec& spec) {
    GpuCase c(spec);
    const std::int32_t side = tables[spec.seed - kFirst].side, wide = 2 * side - 1;
    Tensor entries = Tensor::empty(DType::f32, {std::int64_t{wide} * wide, 2});
    for (std::int64_t i = 0; i < entries.count(); ++i) {
      static_cast<float*>(entries.data())[i] = static_cast<float>(c.host().below(4096)) / 1024.0F - 2.0F;
    }
    c.host().capture("table", entries);
    const Expr q = leaf::q_idx() % (side * side), kv = leaf::kv_idx() % (side * side);
    const Expr index =
        (floor_div(q, side) - floor_div(kv, side) + (side - 1)) * wide + (q % side - kv % side + (side - 1));
    c.options().score_mod = leaf::score() + Capture("table", DType::f32, 2)(index, leaf::h());
    c.run_and_judge();
  });
}

}  // namespace
}  // namespace heddle::test
