// Weights that are infinite, of keys whose values are not all finite: each element of o is their product, and what
// stands in other columns of the values does not matter to it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "base/element.h"
#include "engine/attention_case.h"
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

}  // namespace
}  // namespace heddle::test::infinite_weights
