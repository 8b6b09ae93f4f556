// Weights that are infinite, of keys whose values are not all finite: each element of o is their product, and what
// stands in other columns of the values does not matter to it. In the backward, the same of dS, q and k.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/element.h"
#include "engine/backward_case.h"
#include "tile_evaluator/on_every_target.h"

namespace heddle::test::infinite_weights {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void set(const GuardedTensor& tensor, std::int64_t row, std::int64_t column, double x) {
  const TensorView& view = tensor.view();
  base::store_element(view.data, view.dtype, row * view.strides[2] + column * view.strides[3], x);
}

// Row 2 has one key whose weight is +inf or -inf, among others whose weight is finite.
void judge_infinite_key(DType dtype, std::int64_t queries, bool by_mod, double sign) {
  CaseSpec spec;
  spec.seed = 3;
  spec.q_rows = queries;
  spec.kv_rows = 150;
  spec.qk_dim = spec.v_dim = 40;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  spec.normalizer = by_mod ? Normalizer::softmax : Normalizer::none;
  AttentionCase c(spec);
  const Expr pair = (leaf::q_idx() == 2) & (leaf::kv_idx() == 77);
  if (by_mod) {
    c.options().weight_mod = where(pair, sign * kInfinity, 0.5);
  } else {
    c.options().score_mod = where(pair, kInfinity, leaf::score());
    c.options().weight_mod = Expr(sign);
  }
  set(c.v, 77, 1, kInfinity);
  set(c.v, 77, 3, std::numeric_limits<double>::quiet_NaN());
  set(c.v, 77, 5, 0);
  SCOPED_TRACE(fmt::format("{} {} queries {} {}", name(dtype), queries, by_mod ? "weight mod" : "score", sign));
  run_and_judge(c);
  EXPECT_EQ(get_element(c.o.view(), {0, 0, 2, 1}), sign * kInfinity);
  EXPECT_TRUE(std::isinf(get_element(c.o.view(), {0, 0, 2, 0})));
}

// Row 2 and key 5 attend each other alone. Their score, dP and so dS are infinite, and each holds infinite elements.
void judge_infinite_gradients(DType dtype, std::int64_t queries) {
  CaseSpec spec;
  spec.seed = 4;
  spec.q_rows = queries;
  spec.kv_rows = 70;
  spec.qk_dim = spec.v_dim = 40;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  spec.normalizer = Normalizer::none;
  AttentionCase c(spec);
  c.options().mask_mod = (leaf::q_idx() == 2) == (leaf::kv_idx() == 5);
  BackwardCase backward_case(c, {});
  set(c.q, 2, 1, kInfinity), set(c.k, 5, 1, 1);
  set(c.q, 2, 2, 1), set(c.k, 5, 2, kInfinity);
  set(backward_case.d_o, 2, 0, kInfinity), set(c.v, 5, 0, 1);
  SCOPED_TRACE(fmt::format("{} {} queries", name(dtype), queries));
  run_and_judge(backward_case, BackendChoice::cpu);
  for (const auto& [name, row] : {std::pair("dq", 2), {"dk", 5}, {"dv", 5}}) {
    for (std::int64_t d = 0; d < spec.qk_dim; ++d) {
      EXPECT_TRUE(std::isinf(get_element(backward_case.gradient(name).view, {0, 0, row, d}))) << name << ' ' << d;
    }
  }
}

TEST(InfiniteWeights, MultiplyEachColumnOfTheirValues) {
  on_every_target([] {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      for (const std::int64_t queries : {3, 20, 130}) {
        for (const bool by_mod : {false, true}) {
          for (const double sign : {1.0, -1.0}) judge_infinite_key(dtype, queries, by_mod, sign);
        }
      }
    }
  });
}

TEST(InfiniteWeights, MultiplyEachColumnOfGradients) {
  on_every_target([] {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      for (const std::int64_t queries : {3, 130}) judge_infinite_gradients(dtype, queries);
    }
  });
}

}  // namespace
}  // namespace heddle::test::infinite_weights
