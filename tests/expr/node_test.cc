#include "expr/node.h"

#include <gmock/gmock.h>

#include <thread>

#include "expr/interpret.h"
#include "expr/verify.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

using leaf::h;
using leaf::kv_idx;
using leaf::q_idx;
using leaf::score;
using ::testing::HasSubstr;

Expr alibi() { return score() + Capture("slopes", DType::f32, 1)(h()) * (kv_idx() - q_idx()); }

TEST(Node, EqualExpressionsAreOneNode) {
  const Expr x = alibi();
  EXPECT_TRUE(same(x, alibi()));
  EXPECT_FALSE(same(x, score() + Capture("slopes", DType::f16, 1)(h()) * (kv_idx() - q_idx())));
  EXPECT_FALSE(same(x, score() + Capture("slope", DType::f32, 1)(h()) * (kv_idx() - q_idx())));
  EXPECT_FALSE(same(Expr(0.0), Expr(-0.0)));
  EXPECT_FALSE(same(Expr(1), Expr(true)));
  EXPECT_TRUE(same(Expr(NAN), Expr(-NAN)));
}

TEST(Node, PrintsAndInterprets) {
  EXPECT_EQ(print(alibi()), "score + slopes[h] * f32(kv_idx - q_idx)");
  const std::vector<float> slopes = {0.5F, 0.25F};
  Bindings bindings;
  bindings.captures["slopes"] = ConstTensorView(slopes.data(), DType::f32, Dims{2});
  Element element;
  element.score = 1.0;
  element[Leaf::h] = 1;
  element[Leaf::kv_idx] = 3;
  element[Leaf::q_idx] = 7;
  EXPECT_EQ(Interpreter(alibi(), bindings, Precision::f32).real(element), 0.0);
}

TEST(Node, TheTableIsEmptyAfterTheLastHandle) {
  { const Expr x = alibi(); }
  EXPECT_EQ(live_nodes(), 0U);
}

}  // namespace
}  // namespace heddle::expr
