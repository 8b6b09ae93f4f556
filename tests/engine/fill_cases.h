// Rows whose dO is NaN and whose mod has indices outside of a table only: it takes the fill of `at`, or another branch.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/backward_case.h"
#include "engine/poison.h"
#include "heddle/check.h"

namespace heddle::test::fill {

// Row 3 attends keys before 30.
inline constexpr std::int64_t kRows = 40, kKeys = 50, kPoisonedRow = 3, kItsKeys = 30;

/// A score mod or a weight mod that reads a table by `at`.
struct FillCase {
  const char* name;
  Dims shape;
  std::function<Expr(const Capture&)> read;
  bool of_head_0 = false;  // else row 3 of all heads takes the fill
  bool of_score = false;
};

inline Expr at(const Capture& table, std::vector<Expr> indices) { return table.at(indices, 1.5); }

inline const FillCase kFillCases[] = {
    {"of pairs", {40}, [](const Capture& t) { return at(t, {leaf::q_idx() - leaf::kv_idx() - 10}); }, false},
    {"past the end", {12}, [](const Capture& t) { return at(t, {leaf::kv_idx() - leaf::q_idx() + 20}); }, false},
    {"of scores",
     {9},
     [](const Capture& t) { return at(t, {to_i32(leaf::score() * 4) + leaf::q_idx() - 30}); },
     false,
     true},
    {"of queries", {15}, [](const Capture& t) { return at(t, {leaf::q_idx() - 20}); }, false},
    {"behind a guard",
     {20},
     [](const Capture& t) { return where(leaf::q_idx() >= 20, t(leaf::q_idx() - 20), 1.5); },
     false},
    {"of keys", {8}, [](const Capture& t) { return at(t, {leaf::kv_idx() - kItsKeys}); }, false},
    {"of rows of keys",
     {25, kKeys},
     [](const Capture& t) {
       return at(t, {leaf::q_idx() - 20, leaf::kv_idx()});
     },
     false},
    {"of heads", {2}, [](const Capture& t) { return at(t, {leaf::h() - 1}); }, true},
    {"of heads and keys",
     {1, kKeys},
     [](const Capture& t) {
       return at(t, {leaf::h() - 1, leaf::kv_idx()});
     },
     true},
};

inline CaseSpec fill_spec(DType dtype) {
  CaseSpec spec;
  spec.batch = spec.group = 2;
  spec.q_rows = kRows;
  spec.kv_rows = kKeys;
  spec.qk_dim = spec.v_dim = 16;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  return spec;
}

/// Gives a case of fill_spec() its mods.
inline void add_mods(AttentionCase& c, const FillCase& fill, bool of_weight) {
  const Tensor table = Tensor::empty(DType::f32, fill.shape);
  for (std::int64_t i = 0; i < table.count(); ++i) {
    static_cast<float*>(table.data())[i] = 0.25F * static_cast<float>(i % 7);
  }
  c.capture("table", table);
  const Expr read = fill.read(Capture("table", DType::f32, fill.shape.size()));
  c.options().mask_mod = leaf::q_idx() != kPoisonedRow || leaf::kv_idx() < kItsKeys;
  (of_weight ? c.options().weight_mod : c.options().score_mod) = of_weight ? read : leaf::score() + read;
}

inline void poison_d_o(const BackwardCase& c, const FillCase& fill) {
  poison_rows(c.d_o, [&](auto, std::int64_t h, std::int64_t i) { return fill.of_head_0 ? h == 0 : i == kPoisonedRow; });
}

inline void expect_finite_table(const BackwardCase& c) {
  const Tensor table = copy(c.gradient("d_captures['table']").view, DType::f64);
  for (std::int64_t i = 0; i < table.count(); ++i) {
    EXPECT_TRUE(std::isfinite(static_cast<const double*>(table.data())[i])) << i;
  }
}

/// Judges the gradients of bf16 that run(tensors, options) computes of what the mods read.
template <class Run>
void run_and_judge_reads(const FillCase& fill, bool of_weight, Run&& run) {
  AttentionCase attention_case(fill_spec(DType::bf16));
  add_mods(attention_case, fill, of_weight);
  BackwardCase backward_case(attention_case, {.wanted = "reads"});
  SCOPED_TRACE(fill.name);
  backward_case.run_forward();
  poison_d_o(backward_case, fill);
  run(backward_case.tensors(), attention_case.options());
  const GradientReport report = check_backward(backward_case.tensors(), attention_case.options());
  EXPECT_TRUE(report.passed) << report.text();
  expect_finite_table(backward_case);
}

}  // namespace heddle::test::fill
