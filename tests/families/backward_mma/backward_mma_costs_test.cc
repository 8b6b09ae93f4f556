// Predicted times of backwards beside what runs took on one H100 (docs/notes/portable_backward.md), what chips that
// were not measured are predicted, and that backward_sm90 stays first.
#include "families/backward_mma/backward_mma_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/known_gpus.h"
#include "families/backward_mma/portable_call.h"
#include "families/table.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

const device::CudaCaps& caps_of(std::string_view gpu) {
  return std::ranges::find(device::kKnownGpus, gpu, &device::KnownGpu::name)->caps;
}

/// 16384 tokens of 2048 columns.
PortableCall call_of(std::int64_t dim, bool causal, std::int64_t length, DType dtype = DType::bf16, bool tf32 = false) {
  PortableCall of;
  of.call = {.batch = 16384 / length,
             .q_heads = 2048 / dim,
             .kv_heads = 2048 / dim,
             .q_rows = length,
             .kv_rows = length,
             .dim = dim,
             .dtype = dtype};
  if (causal) of.call.mask = mods::causal();
  of.call.options.allow_tf32 = tf32;
  return of;
}

double rate_of(const PortableCall& of, const plan::Prediction& predicted) {
  const double share = of.call.mask.empty() ? 1 : 0.5;
  return share * 10e-12 * 16384 * 2048 * static_cast<double>(of.call.kv_rows) / predicted.seconds;
}

/// TFLOP/s of five products that the kernels are predicted whose passes have these rows and steps; 0: there are none.
double predicted_rate(const PortableCall& of, const std::vector<BlockSize>& passes, const device::CudaCaps& caps) {
  const problem::AttentionProblem problem = of.problem(of.tensors());
  for (const plan::Choice& choice : of.offered(caps)) {
    const auto& kernels = choice.plan.part<plan::BackwardMmaKernels>();
    const bool same =
        std::ranges::equal(passes, kernels.passes, [](BlockSize wanted, const shared::BackwardMmaConfig& pass) {
          return wanted == BlockSize{pass.rows(), pass.step};
        });
    if (!same || !plan::has_known_times(kernels, plan::portable_rates(caps))) continue;
    plan::BackwardSchedule schedule;
    const auto schedule_of = [&](const shared::BackwardMmaConfig& pass) -> const plan::BackwardSchedule& {
      return schedule = plan::backward_mma_schedule(problem, pass, choice.block_mask.get());
    };
    const plan::Prediction predicted =
        plan::backward_mma_prediction(problem, kernels, schedule_of, caps.multiprocessors, *plan::portable_rates(caps));
    if (choice.plan.predicted) {
      EXPECT_EQ(choice.plan.predicted->seconds, predicted.seconds);
    }
    return rate_of(of, predicted);
  }
  return 0;
}

struct Measured {
  std::int64_t dim;
  std::vector<BlockSize> passes;  // rows and steps
  std::int64_t length;
  double full, causal;  // TFLOP/s; 0: not measured
  DType dtype = DType::bf16;
  bool tf32 = false;
};

TEST(BackwardMmaCosts, AreThoseThatWereMeasured) {
  constexpr double kMost = 0.035;
  constexpr DType f32 = DType::f32;
  for (const Measured& one : std::vector<Measured>{{64, {{128, 32}}, 512, 200, 121},
                                                   {64, {{128, 32}}, 2048, 278, 210},
                                                   {64, {{128, 32}}, 8192, 309, 270},
                                                   {128, {{128, 64}}, 512, 186, 118},
                                                   {128, {{128, 64}}, 2048, 262, 212},
                                                   {128, {{128, 64}}, 8192, 298, 283},
                                                   {128, {{64, 64}}, 8192, 276, 0},
                                                   {128, {{64, 32}}, 8192, 237, 0},
                                                   {64, {{128, 32}, {128, 32}}, 2048, 192, 164},
                                                   {64, {{128, 32}, {128, 32}}, 8192, 209, 198},
                                                   {128, {{64, 64}, {128, 32}}, 2048, 220, 185},
                                                   {128, {{64, 64}, {128, 32}}, 8192, 236, 220},
                                                   {64, {{128, 32}}, 2048, 37.6, 34.6, f32},
                                                   {64, {{128, 64}}, 2048, 35.1, 32.9, f32},
                                                   {64, {{64, 64}}, 2048, 36.9, 34.4, f32},
                                                   {64, {{64, 32}}, 2048, 34.1, 32.3, f32},
                                                   {64, {{128, 32}, {128, 32}}, 2048, 27.9, 25.7, f32},
                                                   {128, {{128, 64}}, 2048, 36.4, 33.7, f32},
                                                   {128, {{64, 32}}, 2048, 36.3, 33.6, f32},
                                                   {128, {{128, 64}, {128, 64}}, 2048, 27.7, 25.6, f32},
                                                   {64, {{128, 32}}, 2048, 103.7, 88.3, f32, true},
                                                   {64, {{128, 64}}, 2048, 79.7, 72.2, f32, true},
                                                   {64, {{128, 32}, {128, 32}}, 2048, 80.2, 70.1, f32, true},
                                                   {128, {{128, 64}}, 2048, 83.2, 73.7, f32, true},
                                                   {128, {{64, 32}}, 2048, 84.0, 75.1, f32, true},
                                                   {128, {{128, 64}, {128, 64}}, 2048, 76.4, 68.3, f32, true}}) {
    for (const bool causal : {false, true}) {
      const double measured = causal ? one.causal : one.full;
      if (measured == 0) continue;
      SCOPED_TRACE(testing::Message() << one.dim << ' ' << one.passes.front().q << " x " << one.passes.front().kv
                                      << ", " << one.passes.size() << " passes, " << one.length
                                      << (causal ? " causal " : " ") << name(one.dtype) << (one.tf32 ? " tf32" : ""));
      PortableCall of = call_of(one.dim, causal, one.length, one.dtype, one.tf32);
      if (one.passes.size() > 1) of.call.options.deterministic = true;
      EXPECT_NEAR(predicted_rate(of, one.passes, caps_of("h100")) / measured, 1, kMost);
    }
  }
}

// A chip is never predicted more than a share of its peak, which NVIDIA's documents have.
TEST(BackwardMmaCosts, OtherChipsStayBelowTheirPeaks) {
  struct Chip {
    const char* name;
    double halves, floats;  // TFLOP/s
  };
  for (const Chip& chip : {Chip{"a100", 312, 19.5}, Chip{"a6000", 155, 38.7}, Chip{"rtx3090", 71, 35.6},
                           Chip{"rtx4090", 165, 82.6}, Chip{"l40s", 362, 91.6}, Chip{"rtx5090", 210, 105}}) {
    SCOPED_TRACE(chip.name);
    const auto first_rate = [&](const PortableCall& of) {
      return rate_of(of, *of.offered(caps_of(chip.name)).front().plan.predicted);
    };
    EXPECT_THAT(first_rate(call_of(128, false, 8192)) / chip.halves,
                testing::AllOf(testing::Gt(0.4), testing::Lt(0.9)));
    EXPECT_THAT(first_rate(call_of(64, false, 8192, DType::f32)) / chip.floats,
                testing::AllOf(testing::Gt(0.35), testing::Lt(0.9)));
  }
}

TEST(BackwardMmaCosts, WhatWasNotMeasuredHasNone) {
  const auto predicted = [](const PortableCall& of, const device::CudaCaps& caps) {
    return of.offered(caps).front().plan.predicted.has_value();
  };
  const PortableCall any = call_of(64, true, 2048);
  PortableCall ordered = any;
  ordered.call.options.deterministic = true;  // two passes
  EXPECT_EQ(ordered.offered(caps_of("h100")).front().plan.predicted->flops,
            any.offered(caps_of("h100")).front().plan.predicted->flops);
  EXPECT_TRUE(predicted(any, caps_of("h100")));
  EXPECT_TRUE(predicted(any, caps_of("rtx4090")));
  PortableCall wide = any, alone = any;
  wide.call.dim = 160;
  EXPECT_FALSE(predicted(wide, caps_of("h100")));
  alone.dv = alone.dq = false;
  EXPECT_FALSE(predicted(alone, caps_of("h100")));
  device::CudaCaps unknown = caps_of("a100");
  unknown.minor = 7;
  EXPECT_FALSE(predicted(any, unknown));
}

/// The families that are offered, the first one first, and its plan.
struct Offered {
  std::string first;
  plan::Plan plan;
};
Offered offered_of(const PortableCall& of, const device::CudaCaps& caps) {
  const BackwardTensors tensors = of.tensors();
  const problem::AttentionProblem problem = of.problem(tensors);
  const AttentionTensors forward = problem::forward_tensors(tensors);
  const AttentionOptions options = of.call.all_options();
  const device::Machine machine = {.cpu = {}, .cuda = {caps}, .cuda_missing = {}};
  const plan::Request request{problem, forward, options, machine, &tensors};
  plan::Choice first = plan::choose(request, [&](BlockSize block) { return of.call.rows_of(block); }).front();
  return {std::string(first.plan.family->name), std::move(first.plan)};
}

// bench/compare.py --backward on one H200 (docs/notes/compare_backward.md).
TEST(BackwardMmaCosts, StandBesideThoseOfHopper) {
  struct Cell {
    std::int64_t dim, length;
    double full, causal;
    double most = 0.06;
  };
  for (const Cell& cell :
       {Cell{64, 512, 396, 244}, Cell{64, 2048, 544, 439}, Cell{64, 8192, 569, 546}, Cell{128, 512, 388, 246},
        Cell{128, 2048, 571, 492}, Cell{128, 8192, 630, 601}, Cell{256, 512, 272, 185, 0.08},
        Cell{256, 2048, 404, 356, 0.08}, Cell{256, 8192, 413, 421, 0.08}}) {
    for (const bool causal : {false, true}) {
      const PortableCall of = call_of(cell.dim, causal, cell.length);
      const Offered offered = offered_of(of, caps_of("h200"));
      SCOPED_TRACE(testing::Message() << cell.dim << ' ' << cell.length << ' ' << causal);
      EXPECT_EQ(offered.first, "backward_sm90");
      EXPECT_NEAR(rate_of(of, *offered.plan.predicted) / (causal ? cell.causal : cell.full), 1, cell.most);
      const char* const behind =
          cell.dim > 128 ? "backward_mma: its time is not predicted" : "backward_mma: predicted .* ms, .* % slower";
      EXPECT_THAT(offered.plan.rejected, testing::Contains(testing::ContainsRegex(behind)));
    }
  }
}

// It is the faster one wherever both were measured.
TEST(BackwardMmaCosts, HopperKeepsItsOwnBackward) {
  int problems = 0;
  for (const char* gpu : {"h200", "h20"}) {
    for (const std::int64_t dim : {8, 40, 64, 96, 128}) {
      for (const std::int64_t queries : {1, 65, 2048, 8192}) {
        for (const std::int64_t keys : {100, 512, 8192}) {
          for (const std::int64_t group : {1, 8}) {
            for (const int form : {0, 1, 2}) {
              PortableCall of;
              of.call = {.batch = form == 0 ? 4 : 1,
                         .q_heads = 8,
                         .kv_heads = 8 / group,
                         .q_rows = queries,
                         .kv_rows = keys,
                         .dim = dim};
              if (form == 1) of.call.mask = mods::causal();
              if (form == 2) of.call.mask = mods::sliding_window(256);
              ++problems;
              EXPECT_EQ(offered_of(of, caps_of(gpu)).first, "backward_sm90")
                  << gpu << " D " << dim << ' ' << queries << " x " << keys << " group " << group << " form " << form;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(problems, 720);
}

}  // namespace
}  // namespace heddle::test
