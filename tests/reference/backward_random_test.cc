// The reference's backward against finite differences, with random mods and options.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "reference/movable_attention.h"
#include "expr/movable_captures.h"
#include "expr/random_expression.h"

namespace heddle::test {
namespace {

using expr::Leaf;

Vocabulary smooth(bool with_score) {
  Vocabulary vocabulary;
  vocabulary.leaves = {Leaf::q_idx, Leaf::kv_idx, Leaf::h, Leaf::b, Leaf::kv_len};
  if (with_score) vocabulary.leaves.insert(vocabulary.leaves.end(), {Leaf::score, Leaf::score, Leaf::score});
  vocabulary.extreme_constants = false;
  return vocabulary;
}

// Draws attentions of two or three queries and keys. Everything that has a gradient may be moved.
class RandomAttentions {
 public:
  explicit RandomAttentions(std::uint64_t seed)
      : scores_(seed, smooth(true)), others_(seed + 1, smooth(false)), captures_(scores_.bindings()) {
    sinks_ = normal_tensor({2}, seed);
    lengths_ = Tensor::zeros(DType::i32, {2});
    static_cast<std::int32_t*>(lengths_.data())[0] = 2;
    static_cast<std::int32_t*>(lengths_.data())[1] = 3;
  }

  MovableAttention draw() {
    AttentionOptions options;
    options.bindings = captures_.bindings();
    options.bindings.params["beta"] = -0.7;
    options.clamp_reads = true;
    options.normalizer = static_cast<Normalizer>(std::max(0, below(5) - 2));
    const Expr drawn = with_f64_captures(scores_.draw(ExprType::f32, 2 + below(12)));
    // Most drawn alone saturate the softmax.
    const std::array<Expr, 3> forms = {drawn, leaf::score() + 2.0 * tanh(drawn),
                                       leaf::score() * (0.5 + sigmoid(drawn))};
    options.score_mod = forms[static_cast<std::size_t>(below(3))];
    if (below(3) == 0) options.weight_mod = with_f64_captures(others_.draw(ExprType::f32, 2 + below(8)));
    if (below(4) == 0) options.mask_mod = with_f64_captures(others_.draw(ExprType::boolean, 2 + below(8)));
    if (below(3) == 0 && options.normalizer == Normalizer::softmax) options.sinks = sinks_;
    if (below(4) == 0) options.kv_lengths = lengths_;
    return {{2, 2, 2, 2}, {2, 1, 3, 2}, {2, 1, 3, 2}, options, static_cast<std::uint64_t>(below(1 << 20))};
  }
  int below(int bound) { return scores_.below(bound); }

 private:
  RandomExpressions scores_, others_;
  MovableCaptures captures_;
  Tensor sinks_, lengths_;
};

std::string describe(const AttentionOptions& options) {
  std::string text = problem::name(options.normalizer) == "softmax" ? "" : "not softmax; ";
  text += "score_mod " + print(options.score_mod);
  if (!options.weight_mod.empty()) text += "; weight_mod " + print(options.weight_mod);
  if (!options.mask_mod.empty()) text += "; mask_mod " + print(options.mask_mod);
  if (options.sinks) text += "; sinks";
  return text;
}

TEST(BackwardOfRandomMods, AgreesWithFiniteDifferences) {
  constexpr int kWanted = 3000;
  RandomAttentions random(31);
  std::array<int, expr::kOpCount> met{};
  int judged = 0;
  int asked = 0;
  for (int drawn = 0; judged < kWanted; ++drawn) {
    ASSERT_LT(drawn, 20 * kWanted) << "too few smooth points";
    MovableAttention attention = random.draw();
    const GradientVerdict verdict = attention.check([&] { return random.below(12) == 0; });
    ASSERT_EQ(verdict.fault, "") << describe(attention.options);
    judged += verdict.nonzero;
    asked += verdict.points;
    for (const Expr& mod : {attention.options.score_mod, attention.options.weight_mod}) {
      if (mod.empty()) continue;
      for (const expr::Node* node : expr::post_order(mod)) met[static_cast<std::size_t>(node->op)] += verdict.nonzero;
    }
  }
  EXPECT_GT(judged, asked / 3);
  for (int i = 0; i < expr::kOpCount; ++i) {
    EXPECT_GE(met[static_cast<std::size_t>(i)], 20) << expr::info(static_cast<expr::Op>(i)).name;
  }
}

}  // namespace
}  // namespace heddle::test
