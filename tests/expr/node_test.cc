// The graph: equal expressions are one node, also between threads; the table forgets nodes that are no longer held;
// walks.
#include "expr/node.h"

#include <gmock/gmock.h>

#include <barrier>
#include <cmath>
#include <set>
#include <thread>

#include "expr/random_expression.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

using leaf::h;
using leaf::kv_idx;
using leaf::q_idx;
using leaf::score;

Expr alibi() { return score() + Capture("slopes", DType::f32, 1)(h()) * (kv_idx() - q_idx()); }

TEST(Node, EqualExpressionsAreOneNode) {
  const Expr x = alibi();
  EXPECT_TRUE(same(x, alibi()));
  EXPECT_FALSE(same(x, score() + Capture("slopes", DType::f16, 1)(h()) * (kv_idx() - q_idx())));
  EXPECT_FALSE(same(x, score() + Capture("slope", DType::f32, 1)(h()) * (kv_idx() - q_idx())));
  EXPECT_FALSE(same(x, score() + Capture("slopes", DType::f32, 1)(h()) * (q_idx() - kv_idx())));
  EXPECT_FALSE(same(param("x", ExprType::f32), param("x", ExprType::i32)));
  EXPECT_FALSE(same(param("x", ExprType::f32), param("y", ExprType::f32)));
  EXPECT_FALSE(same(Capture("x", DType::f32, 0)(), param("x", ExprType::f32)));
  EXPECT_FALSE(same(h() < q_idx(), h() <= q_idx()));
}

TEST(Node, ConstantsAreComparedByBits) {
  EXPECT_FALSE(same(Expr(0.0), Expr(-0.0)));
  EXPECT_FALSE(same(Expr(1), Expr(true)));
  EXPECT_FALSE(same(Expr(1), Expr(1.0)));
  EXPECT_TRUE(same(Expr(std::nan("")), Expr(-std::nan("7"))));
  EXPECT_TRUE(same(-Expr(3), Expr(-3)));
  EXPECT_TRUE(same(-Expr(0.0), Expr(-0.0)));
  EXPECT_TRUE(same(-Expr(std::numeric_limits<std::int32_t>::min()), Expr(std::numeric_limits<std::int32_t>::min())));
  EXPECT_TRUE(same(to_f32(Expr(7)), Expr(7.0)));
}

TEST(Node, UsesAndDepthComeFromBelow) {
  const Expr x = alibi();
  const Node& node = *x.node();
  EXPECT_EQ(node.uses, (LeafSet{Leaf::score, Leaf::h, Leaf::q_idx, Leaf::kv_idx}));
  EXPECT_EQ(node.depth, 5);
  EXPECT_EQ(Expr(1).node()->depth, 1);
  EXPECT_TRUE(param("x", ExprType::f32).node()->uses.empty());
}

TEST(Node, TheTableForgetsWhatNobodyHolds) {
  const std::size_t before = live_nodes();
  {
    test::RandomExpressions random(7);
    std::vector<Expr> all;
    for (int i = 0; i < 2000; ++i) all.push_back(random.draw());
    EXPECT_GT(live_nodes(), before + 2000);
    const std::size_t held = live_nodes();
    const std::vector<Expr> again = all;
    EXPECT_EQ(live_nodes(), held);
  }
  EXPECT_EQ(live_nodes(), before);
}

TEST(Node, ThreadsThatBuildTheSameGetTheSame) {
  constexpr int kThreads = 4;
  constexpr int kExpressions = 500;
  const std::size_t before = live_nodes();
  {
    std::array<std::vector<Expr>, kThreads> built;
    std::barrier start(kThreads);
    std::vector<std::thread> threads;
    for (std::vector<Expr>& mine : built) {
      threads.emplace_back([&mine, &start] {
        test::RandomExpressions random(11);
        start.arrive_and_wait();
        for (int i = 0; i < kExpressions; ++i) mine.push_back(random.draw());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < kExpressions; ++i) {
      for (const std::vector<Expr>& other : built) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_TRUE(same(built[0][at], other[at])) << print(other[at]);
      }
    }
  }
  EXPECT_EQ(live_nodes(), before);
}

// Some threads drop nodes that others find: a node whose count is already zero must not be handed out again.
TEST(Node, NodesComeAndGoWhileOthersLook) {
  const std::size_t before = live_nodes();
  std::barrier start(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&start] {
      start.arrive_and_wait();
      for (int i = 0; i < 20000; ++i) {
        const Expr x = (q_idx() + i % 3) * (kv_idx() + i % 2);
        ASSERT_EQ(x.node()->operands[0]->operands[0]->leaf(), Leaf::q_idx);
        ASSERT_TRUE(same(x, (q_idx() + i % 3) * (kv_idx() + i % 2)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live_nodes(), before);
}

TEST(Node, DepthIsLimited) {
  Expr e = score();
  for (int i = 0; i < kMaxDepth; ++i) e = exp(e);
  EXPECT_EQ(e.node()->depth, kMaxDepth + 1);
  EXPECT_EQ(post_order(e).size(), static_cast<std::size_t>(kMaxDepth + 1));
  try {
    const Expr deeper = exp(e);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "an expression nests more than 1000 operations deep");
  }
}

TEST(Node, PostOrderListsEachNodeOnceAndOperandsFirst) {
  test::RandomExpressions random(3);
  for (int i = 0; i < 200; ++i) {
    const std::vector<Expr> roots = {random.draw(), random.draw()};
    std::set<const Node*> seen;
    for (const Node* node : post_order(roots)) {
      for (const auto& below : node->operands) ASSERT_TRUE(seen.contains(below.get()));
      ASSERT_TRUE(seen.insert(node).second);
    }
    EXPECT_TRUE(seen.contains(roots[0].node()));
    EXPECT_TRUE(seen.contains(roots[1].node()));
  }
  EXPECT_TRUE(post_order(Expr()).empty());
}

TEST(Node, RewriteReplacesEverywhere) {
  const Expr e = (q_idx() + 1) * (q_idx() + 1) - q_idx();
  const Expr swapped = rewrite(e, [](const Node& node, std::span<const Expr> operands) {
    if (node.op == Op::leaf && node.leaf() == Leaf::q_idx) return kv_idx();
    return with_operands(node, operands);
  });
  EXPECT_EQ(print(swapped), "(kv_idx + 1) * (kv_idx + 1) - kv_idx");
  const Expr same_again =
      rewrite(e, [](const Node& node, std::span<const Expr> operands) { return with_operands(node, operands); });
  EXPECT_TRUE(same(e, same_again));
}

TEST(Shrink, FindsTheSmallestThatStillFails) {
  const auto has = [](Op op) {
    return [op](const Expr& e) {
      const std::vector<const Node*> nodes = post_order(e);
      return std::any_of(nodes.begin(), nodes.end(), [op](const Node* node) { return node->op == op; });
    };
  };
  test::RandomExpressions random(5);
  int shrunk = 0;
  for (int i = 0; i < 300; ++i) {
    const Expr e = random.draw(ExprType::f32, 30);
    if (!has(Op::tanh)(e)) continue;
    EXPECT_EQ(print(test::shrink(e, has(Op::tanh))), "tanh(0.0)") << print(e);
    ++shrunk;
  }
  EXPECT_GT(shrunk, 10);
}

}  // namespace
}  // namespace heddle::expr
