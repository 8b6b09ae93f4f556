// Costs of the CPU forward, for explain(). Every number but AMX's was measured by bench_cpu_forward on one core of a
// virtual machine (Xeon of model 207, AVX-512), which also did 176 GFLOP/s of bare multiply-adds. AMX's are fitted to
// one thread's figures in docs/notes/cpu_amx.md.
//
// A run takes the time of its products at the rate of its head dimension, and that of converting and transposing each
// key and value into a panel, or of converting them where they are read in place; or, where its tensors do not fit in
// L3, that of reading them, if this is longer. By AMX, the arithmetic of mods is added; by vectors it is not counted: a
// quarter more for a softcap at D 64, 8 % for ALiBi.
#pragma once

#include <array>

#include "plan/plan.h"

namespace heddle::plan {

struct CpuRates {
  double packed_key_elements;      // what packing a key and its value costs, in score elements
  double in_place_key_elements;    // what reading them in place costs: bench_cpu_decode, bf16, keys in L3
  double backward_key_elements;    // packing a key and its value for the backward, and storing their gradients
  double memory_bytes_per_second;  // the first line: of one core
  double vector_bytes;             // of the machine that did this; narrower vectors take as many more
};
inline constexpr CpuRates kCpuRates = {.packed_key_elements = 21,
                                       .in_place_key_elements = 2,
                                       .backward_key_elements = 18,
                                       .memory_bytes_per_second = 8.8e9,
                                       .vector_bytes = 64};

/// The cases *_full. 16-bit and 8-bit inputs are computed in f32, at f32's rate (bf16: 1 % more).
struct CpuRate {
  int head_dim;
  double f32_gflops, f64_gflops;
};
inline constexpr std::array<CpuRate, 5> kCpuForwardRates = {{
    {16, 85, 39},
    {32, 123, 52.6},
    {64, 141, 61},
    {128, 146, 64},
    {256, 142, 66},
}};

/// Costs of plans whose products AMX computes, on one core. A score's time has a part for each dimension, which is that
/// of the products, and one that is the softmax and whatever else a score takes.
struct CpuUnitCosts {
  double score_seconds;
  double dim_seconds;   // of each dimension of the mean of qk's and v's, up to whole bricks
  double key_elements;  // what packing a key and its value costs, in score elements
};
/// S 2048, full: 711 GFLOP/s at D 64, 936 at D 128. Packing takes as long as a prototype's.
inline constexpr CpuUnitCosts kCpuForwardByUnit = {
    .score_seconds = 0.170e-9, .dim_seconds = 2.87e-12, .key_elements = 35};
/// Seconds that mods add to each score's time where AMX computes. Fitted to 13 mods at D 64 and 128 (docs/notes/
/// cpu_amx.md), whose time the sum meets within a fourth.
struct CpuModCosts {
  double added, added_step;  // terms that are added among the products, and each operation that makes them
  double capped;             // a tanh among the products
  double program;            // any other program, beside its operations
  double step, function, draw;
  double weights;  // of a weight mod, beside its program
};
inline constexpr CpuModCosts kCpuModsByUnit = {.added = 0.18e-9,
                                               .added_step = 0.15e-9,
                                               .capped = 0.41e-9,
                                               .program = 0.10e-9,
                                               .step = 0.11e-9,
                                               .function = 0.35e-9,
                                               .draw = 0.50e-9,
                                               .weights = 0.25e-9};

/// S 2048, full: 503 GFLOP/s at D 64, 610 at D 128. Packing takes as long as a prototype's.
inline constexpr CpuUnitCosts kCpuBackwardByUnit = {
    .score_seconds = 0.422e-9, .dim_seconds = 12.2e-12, .key_elements = 120};
/// Few queries by AMX read their keys and values from L3 at this rate (a prototype); from memory as the others.
inline constexpr double kUnitInPlaceBytesPerSecond = 19e9;

/// Seconds of a score by those costs.
double cpu_unit_seconds(const problem::AttentionProblem& problem, const CpuUnitCosts& costs);

/// Seconds that the problem's mods add to a score by those costs.
double cpu_mod_seconds(const problem::AttentionProblem& problem, const CpuModCosts& costs);

/// The rate of one core, by the row of the largest head dimension that is not larger. Smaller ones take as long as the
/// first.
double cpu_flops_per_second(expr::Precision precision, double head_dim);

/// Pairs of a query and a key in those rows' blocks (null: everything attends), of all heads.
double cpu_elements(const problem::AttentionProblem& problem, const BlockMask* rows);

/// For a plan of family cpu_forward, which walks those rows (null: everything attends).
Prediction cpu_forward_prediction(const problem::AttentionProblem& problem, const Plan& plan,
                                  const BlockMask* block_mask, const device::Caps& caps);

}  // namespace heddle::plan
