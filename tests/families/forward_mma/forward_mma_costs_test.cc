// Predicted times of many rows beside what runs took on one H100 (docs/notes/portable_family.md), and what chips that
// were not measured are predicted.
#include "families/forward_mma/forward_mma_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/known_gpus.h"
#include "families/forward_mma/forward_mma.h"
#include "heddle/mods.h"
#include "plan/hopper.h"

namespace heddle::test {
namespace {

const device::CudaCaps& caps_of(std::string_view gpu) {
  return std::ranges::find(device::kKnownGpus, gpu, &device::KnownGpu::name)->caps;
}

std::vector<plan::Choice> offered(const HopperCall& call, const device::CudaCaps& caps) {
  return plan::forward_mma(call.problem(), call.tensors(), call.all_options(), caps,
                           [&](BlockSize block) { return call.rows_of(block); });
}

/// 16384 tokens of 2048 columns.
HopperCall call_of(std::int64_t dim, bool causal, std::int64_t length, DType dtype, bool tf32) {
  HopperCall call = {.batch = 16384 / length,
                     .q_heads = 2048 / dim,
                     .kv_heads = 2048 / dim,
                     .q_rows = length,
                     .kv_rows = length,
                     .dim = dim,
                     .dtype = dtype};
  if (causal) call.mask = mods::causal();
  call.options.allow_tf32 = tf32;
  return call;
}

/// TFLOP/s that the kernel of this tile is predicted; 0: there is none.
double predicted_rate(const HopperCall& call, BlockSize tile, const device::CudaCaps& caps) {
  for (const plan::Choice& choice : offered(call, caps)) {
    if (choice.plan.tile == tile && choice.plan.predicted) {
      const double share = call.mask.empty() ? 1 : 0.5;
      return share * 4e-12 * 16384 * 2048 * static_cast<double>(call.kv_rows) / choice.plan.predicted->seconds;
    }
  }
  return 0;
}

struct Measured {
  std::int64_t dim;
  BlockSize tile;
  std::int64_t length;
  double full, causal;  // TFLOP/s
  DType dtype = DType::bf16;
  bool tf32 = false;
};

TEST(ForwardMmaCosts, AreThoseThatWereMeasured) {
  constexpr double kMost = 0.06;
  for (const Measured& one :
       {Measured{64, {128, 128}, 2048, 302, 262}, Measured{64, {128, 128}, 8192, 318, 302},
        Measured{64, {128, 64}, 8192, 274, 274}, Measured{128, {128, 64}, 2048, 337, 312},
        Measured{128, {128, 64}, 8192, 364, 362}, Measured{128, {128, 32}, 8192, 307, 297},
        Measured{64, {128, 64}, 2048, 40.6, 38.7, DType::f32}, Measured{64, {128, 32}, 2048, 39.3, 38.4, DType::f32},
        Measured{64, {64, 32}, 2048, 35.4, 34.8, DType::f32}, Measured{128, {128, 32}, 2048, 39.8, 38.0, DType::f32},
        Measured{64, {128, 64}, 2048, 112, 105, DType::f32, true},
        Measured{128, {128, 32}, 2048, 112, 108, DType::f32, true}}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << one.dim << ' ' << one.tile.kv << ' ' << one.length << ' ' << causal);
      const double measured = causal ? one.causal : one.full;
      const HopperCall call = call_of(one.dim, causal, one.length, one.dtype, one.tf32);
      EXPECT_NEAR(predicted_rate(call, one.tile, caps_of("h100")) / measured, 1, kMost);
    }
  }
}

// A chip is never predicted more than a share of its peak, which NVIDIA's documents have.
TEST(ForwardMmaCosts, OtherChipsStayBelowTheirPeaks) {
  struct Chip {
    const char* name;
    double halves, tf32, floats;  // TFLOP/s
  };
  for (const Chip& chip :
       {Chip{"a100", 312, 156, 19.5}, Chip{"a6000", 155, 77, 38.7}, Chip{"rtx3090", 71, 35.6, 35.6},
        Chip{"rtx4090", 165, 82.6, 82.6}, Chip{"l40s", 362, 181, 91.6}, Chip{"rtx5090", 210, 105, 105}}) {
    const device::CudaCaps& caps = caps_of(chip.name);
    const auto first_rate = [&](const HopperCall& call) {
      return predicted_rate(call, offered(call, caps).front().plan.tile, caps);
    };
    SCOPED_TRACE(chip.name);
    const double halves = first_rate(call_of(128, false, 8192, DType::bf16, false)),
                 tf32 = first_rate(call_of(64, false, 8192, DType::f32, true)),
                 floats = first_rate(call_of(64, false, 8192, DType::f32, false));
    EXPECT_THAT(halves / chip.halves, testing::AllOf(testing::Gt(0.5), testing::Lt(0.9)));
    EXPECT_THAT(tf32 / chip.tf32, testing::AllOf(testing::Gt(0.25), testing::Lt(0.9)));
    EXPECT_THAT(floats / chip.floats, testing::AllOf(testing::Gt(0.45), testing::Lt(0.9)));
  }
}

TEST(ForwardMmaCosts, WhatWasNotMeasuredHasNone) {
  const auto predicted = [](const HopperCall& call, const device::CudaCaps& caps) {
    return offered(call, caps).front().plan.predicted.has_value();
  };
  const HopperCall many = {.q_heads = 8, .kv_heads = 8, .q_rows = 2048, .kv_rows = 2048};
  HopperCall wide = many, narrow = many;
  wide.dim = 512;  // two launches
  narrow.dtype = DType::f64;
  narrow.with_lse = false;
  narrow.dim = 64;
  EXPECT_TRUE(predicted(many, caps_of("a100")));
  EXPECT_FALSE(predicted(wide, caps_of("a100")));
  EXPECT_FALSE(predicted(narrow, caps_of("a100")));
  device::CudaCaps unknown = caps_of("a100");
  unknown.minor = 7;
  EXPECT_FALSE(predicted(many, unknown));
}

// 72 tiles of 128 rows would leave half of the multiprocessors idle, 136 of 64 rows do not.
TEST(ForwardMmaCosts, FewTilesOfManyRowsAreHalved) {
  const HopperCall few = {.q_heads = 8, .kv_heads = 8, .q_rows = 1088, .kv_rows = 8192, .dim = 64};
  const std::vector<plan::Choice> choices = offered(few, caps_of("h100"));
  EXPECT_EQ(choices.front().plan.tile.q, 64);
  EXPECT_THAT(choices.front().plan.rejected, testing::Contains(testing::HasSubstr("% slower")));
  HopperCall many = few;
  many.q_rows = 8192;
  EXPECT_EQ(offered(many, caps_of("h100")).front().plan.tile.q, 128);
}

TEST(ForwardMmaCosts, MemoryBindsWhereMostQueriesAttendNothing) {
  const HopperCall call = {
      .batch = 16, .q_heads = 32, .kv_heads = 8, .q_rows = 8192, .kv_rows = 512, .mask = mods::causal_lower_right()};
  const plan::Prediction predicted = *offered(call, caps_of("h100")).front().plan.predicted;
  EXPECT_GT(predicted.seconds, predicted.bytes / 4.2e12);
}

}  // namespace
}  // namespace heddle::test
