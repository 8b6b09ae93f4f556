// Predicted times beside what runs took on an H100 and on an H200, as docs/notes/decode.md has them.
#include "families/decode_mma/decode_mma_costs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "families/decode_mma/decode_calls.h"
#include "families/decode_mma/decode_mma.h"

namespace heddle::test {
namespace {

/// An H100's rates of reading.
constexpr plan::DecodeMemoryTimes kH100 = {9e-6, 3.12e12, 3.0e12};

/// Microseconds that the first kernel by wgmma, or by mma.sync, is predicted to take.
double predicted_us(const HopperCall& call, bool by_warpgroups, const plan::DecodeMemoryTimes& times = kH100) {
  const problem::AttentionProblem problem = call.problem();
  const Bindings bindings;
  for (const plan::Choice& choice : plan::decode_mma(problem, call.tensors(), {.bindings = bindings}, caps_of("h100"),
                                                     [&](BlockSize block) { return call.rows_of(block); })) {
    const auto& config = choice.plan.part<shared::ForwardMmaConfig>();
    if (config.by_warpgroups() != by_warpgroups) continue;
    const plan::DecodeKeys keys = plan::decode_mma_keys(problem, choice.plan.mods, bindings, config);
    return 1e6 * plan::decode_mma_prediction(problem, config, keys, 132, times).seconds;
  }
  return 0;
}

struct Cell {
  std::int64_t batch, keys, heads;
  double measured_us;
};

void expect_near(double predicted, double measured, double share) {
  EXPECT_GT(predicted, (1 - share) * measured);
  EXPECT_LT(predicted, (1 + share) * measured);
}

void expect_latent(const std::vector<Cell>& cells, bool by_warpgroups) {
  for (const Cell& cell : cells) {
    SCOPED_TRACE(testing::Message() << cell.batch << " x " << cell.keys << ", " << cell.heads << " heads");
    HopperCall call = latent(cell.heads);
    call.batch = cell.batch;
    call.kv_rows = cell.keys;
    expect_near(predicted_us(call, by_warpgroups), cell.measured_us, 0.06);
  }
}

TEST(DecodeMmaCosts, LatentByWarpgroups) {
  expect_latent({{128, 4096, 16, 228.5},
                 {128, 4096, 64, 233.1},
                 {128, 4096, 128, 296.2},
                 {1, 8192, 16, 29.9},
                 {16, 8192, 16, 76.4}},
                true);
}
TEST(DecodeMmaCosts, LatentByMmaSync) {
  expect_latent({{128, 4096, 16, 252.0},
                 {128, 4096, 64, 393.9},
                 {128, 4096, 128, 685.3},
                 {1, 8192, 16, 53.3},
                 {16, 8192, 16, 109.5}},
                false);
}

/// 8 heads of keys of 8192 keys.
struct RowsCell {
  std::int64_t batch, heads, queries, dim;
  double measured_us;
};

TEST(DecodeMmaCosts, ManyRowsByWarpgroups) {
  const std::vector<RowsCell> cells = {{1, 64, 8, 128, 42.7},   {16, 64, 8, 128, 199.0}, {1, 8, 40, 128, 33.6},
                                       {16, 8, 40, 128, 197.8}, {1, 8, 64, 64, 26.3},    {1, 8, 64, 256, 71.8}};
  for (const RowsCell& cell : cells) {
    SCOPED_TRACE(testing::Message() << cell.batch << ", " << cell.heads << " heads x " << cell.queries << ", D "
                                    << cell.dim);
    HopperCall call = few(cell.queries, 8192, cell.dim);
    call.batch = cell.batch;
    call.q_heads = cell.heads;
    expect_near(predicted_us(call, true), cell.measured_us, 0.08);
  }
}

void expect_few_rows(const std::vector<Cell>& cells, const plan::DecodeMemoryTimes& times) {
  for (const Cell& cell : cells) {
    SCOPED_TRACE(testing::Message() << cell.batch << " x " << cell.keys);
    HopperCall call = few(1, cell.keys);
    call.batch = cell.batch;
    expect_near(predicted_us(call, false, times), cell.measured_us, 0.12);
  }
}
TEST(DecodeMmaCosts, FewRowsByMmaSync) {
  expect_few_rows({{1, 1024, 32, 10.1},
                   {1, 8192, 32, 22.3},
                   {1, 65536, 32, 105.7},
                   {16, 8192, 32, 188.6},
                   {8, 65536, 32, 703.7},
                   {256, 1024, 32, 367.7}},
                  kH100);
}
TEST(DecodeMmaCosts, FewRowsByMmaSyncOnAnH200) {
  expect_few_rows({{1, 1024, 32, 9.4},
                   {1, 8192, 32, 17.7},
                   {1, 65536, 32, 75.0},
                   {16, 8192, 32, 133.3},
                   {8, 65536, 32, 490.8},
                   {256, 1024, 32, 258.0}},
                  plan::kHopperTimes);
}

}  // namespace
}  // namespace heddle::test
