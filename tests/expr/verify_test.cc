// Type rules: nodes that break them cannot be made, and are found when they exist; what a mod must be.
#include "expr/verify.h"

#include <gmock/gmock.h>

#include <array>
#include <functional>

#include "expr/random_expression.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

using leaf::kv_idx;
using leaf::q_idx;
using leaf::score;

std::string refusal(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
}

TEST(Verify, MakeRefusesOperandsThatDoNotFit) {
  const auto made = [](Op op, std::vector<Expr> operands, Payload payload = {}) {
    return refusal(ErrorCode::internal, [&] { make(op, ExprType::f32, operands, std::move(payload)); });
  };
  const CaptureDecl capture{"x", DType::f32, 1};
  EXPECT_EQ(made(Op::add, {score(), q_idx()}),
            "operation add needs all i32 or all f32; its operands are: `score` (f32), `q_idx` (i32)");
  EXPECT_EQ(made(Op::add, {score()}), "operation add takes 2; its operands are: `score` (f32)");
  EXPECT_EQ(made(Op::neg, {Expr(true)}), "operation neg needs all i32 or all f32; its operands are: `True` (bool)");
  EXPECT_EQ(made(Op::div, {q_idx(), q_idx()}),
            "operation div needs f32; its operands are: `q_idx` (i32), `q_idx` (i32)");
  EXPECT_EQ(made(Op::eq, {Expr(true), Expr(true)}),
            "operation eq compares two i32 or two f32; its operands are: `True` (bool), `True` (bool)");
  EXPECT_EQ(made(Op::logical_not, {q_idx()}), "operation logical_not needs bool; its operands are: `q_idx` (i32)");
  EXPECT_EQ(made(Op::where, {Expr(true), score(), q_idx()}),
            "operation where needs a bool and two of one type; its operands are: `True` (bool), `score` (f32), "
            "`q_idx` (i32)");
  EXPECT_EQ(made(Op::to_f32, {score()}), "operation to_f32 is not a conversion; its operands are: `score` (f32)");
  EXPECT_EQ(made(Op::random_uniform, {1, 2, 3, 4, score()}),
            "operation random_uniform needs i32; its operands are: `1` (i32), `2` (i32), `3` (i32), `4` (i32), "
            "`score` (f32)");
  EXPECT_EQ(made(Op::read, {score()}, capture), "operation read needs i32 indices; its operands are: `score` (f32)");
  EXPECT_EQ(made(Op::read, {}, capture), "operation read has not one index a dimension; its operands are: none");
  EXPECT_EQ(made(Op::at, {q_idx(), q_idx()}, capture),
            "operation at needs a fill of the capture's type; its operands are: `q_idx` (i32), `q_idx` (i32)");
  EXPECT_EQ(made(Op::read, {q_idx()}), "operation read carries no capture; its operands are: `q_idx` (i32)");
  EXPECT_EQ(made(Op::exp, {Expr()}), "operation exp lacks an operand; its operands are: nothing");
  EXPECT_EQ(made(Op::exp, {score()}, 1.0), "operation exp carries a payload; its operands are: `score` (f32)");
  EXPECT_EQ(made(Op::constant, {}), "operation constant carries no constant; its operands are: none");
  EXPECT_EQ(made(Op::leaf, {}, 1.0), "operation leaf carries no leaf; its operands are: none");
  EXPECT_EQ(made(Op::param, {}, 1.0), "operation param carries no param; its operands are: none");
}

/// A node that make() would not give.
Expr forged(const Expr& honest, const std::function<void(Node&)>& change) {
  auto node = std::make_shared<Node>(*honest.node());
  change(*node);
  return Expr(std::shared_ptr<const Node>(std::move(node)));
}

TEST(Verify, BrokenNodesAreFound) {
  test::RandomExpressions random(2);
  for (int i = 0; i < 500; ++i) EXPECT_NO_THROW(verify(random.draw()));

  const Expr sum = score() + 1;
  const auto verified = [](const Expr& e) { return refusal(ErrorCode::internal, [&] { verify(e); }); };
  EXPECT_EQ(verified(sum), "accepted");
  EXPECT_EQ(verified(forged(sum, [](Node& node) { node.type = ExprType::i32; })),
            "operation add is f32 but says i32; its operands are: `score` (f32), `1.0` (f32)");
  EXPECT_EQ(verified(forged(sum, [](Node& node) { node.operands[0] = q_idx().shared(); })),
            "operation add needs all i32 or all f32; its operands are: `q_idx` (i32), `1.0` (f32)");
  EXPECT_THAT(verified(forged(sum, [](Node& node) { node.depth = 7; })), ::testing::HasSubstr("wrong depth or uses"));
  EXPECT_THAT(verified(forged(sum, [](Node& node) { node.uses = {}; })), ::testing::HasSubstr("wrong depth or uses"));
  const Expr below = forged(sum, [](Node& node) { node.op = Op::logical_or; });
  EXPECT_THAT(verified(exp(below)), ::testing::HasSubstr("operation logical_or needs bool"));
}

TEST(Roles, AModFitsItsRole) {
  const auto role = [](const Expr& e, Role wanted) {
    return refusal(ErrorCode::invalid_argument, [&] { as_role(e, wanted); });
  };
  const Expr causal = kv_idx() <= q_idx();
  EXPECT_TRUE(same(as_role(score(), Role::score), score()));
  EXPECT_EQ(print(as_role(q_idx(), Role::score)), "f32(q_idx)");
  EXPECT_EQ(print(as_role(q_idx(), Role::weight)), "f32(q_idx)");
  EXPECT_EQ(print(as_role(2, Role::weight)), "2.0");
  EXPECT_TRUE(same(as_role(causal, Role::mask), causal));

  EXPECT_EQ(role(causal, Role::score),
            "a score_mod must be f32 or i32, but `kv_idx <= q_idx` is bool; convert it with f32(...) or choose with "
            "where(...)");
  EXPECT_EQ(role(causal, Role::weight),
            "a weight_mod must be f32 or i32, but `kv_idx <= q_idx` is bool; convert it with f32(...) or choose with "
            "where(...)");
  EXPECT_EQ(role(q_idx(), Role::mask), "a mask_mod must be bool, but `q_idx` is i32; compare it with something");
  EXPECT_EQ(role(causal & (exp(score()) > 2), Role::mask), "a mask_mod cannot read the score, but `exp(score)` does");
  EXPECT_EQ(role(score(), Role::weight), "a weight_mod cannot read the score, but `score` does");
  EXPECT_EQ(role(Expr(), Role::mask), "the mask_mod is empty");
}

}  // namespace
}  // namespace heddle::expr
