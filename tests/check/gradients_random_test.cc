// Under random mods plain's backward passes its own criterion: (b) allows each element what f32 costs it. Mods that
// amplify rounding errors (exp of exp, a jump beside the score) may fail, as check.h says.
#include <gtest/gtest.h>

#include <random>

#include "check/plain_backward.h"
#include "expr/random_expression.h"
#include "heddle/check.h"
#include "reference/reference_backward.h"

namespace heddle::test {
namespace {

using expr::Leaf;

Tensor normal(const Dims& shape, DType dtype, std::mt19937_64& rng) {
  const Tensor tensor = Tensor::empty(DType::f64, shape);
  std::normal_distribution<double> draw;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<double*>(tensor.data())[i] = draw(rng);
  return tensor.to(dtype);
}

// One attention with random mods; its forward by the CPU backend, as users have it.
struct RandomCase {
  Tensor q, k, v, d_o, o, lse;
  AttentionOptions options;

  RandomCase(DType dtype, const AttentionOptions& given, std::mt19937_64& rng) : options(given) {
    const Dims shape = {2, 2, 5, 4};
    q = normal(shape, dtype, rng), d_o = normal(shape, dtype, rng);
    k = normal({2, 1, 6, 4}, dtype, rng), v = normal({2, 1, 6, 4}, dtype, rng);
    const AttentionResult result = attention(q, k, v, options, true);
    o = result.o, lse = result.lse;
  }
  AttentionTensors tensors() const { return {q, k, v, o, lse}; }

  GradientReport check_plain() const {
    const problem::AttentionProblem problem = problem::validate(tensors(), options);
    const backend::RunArguments arguments{tensors(), &options, &options.bindings, nullptr, nullptr};
    const reference::BackwardArguments backward{.d_o = d_o, .d_lse = {}, .of = {true, true}};
    const check::PlainGradients plain = check::plain_backward(problem, arguments, backward, {o, lse});
    const Tensor d_q = plain.q.to(q.dtype()), d_k = plain.k.to(q.dtype()), d_v = plain.v.to(q.dtype());
    BackwardTensors given{.q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .dq = d_q, .dk = d_k, .dv = d_v};
    for (const auto& [name, tensor] : plain.captures) given.d_captures[name] = tensor;
    for (const auto& [name, tensor] : plain.params) given.d_params[name] = tensor;
    return check_backward(given, options);
  }
};

TEST(CheckGradients, PassesPlainUnderRandomMods) {
  Vocabulary vocabulary;
  vocabulary.leaves = {Leaf::score, Leaf::score, Leaf::score, Leaf::q_idx, Leaf::kv_idx, Leaf::h};
  vocabulary.extreme_constants = false;
  RandomExpressions scores(5, vocabulary);
  vocabulary.leaves = {Leaf::q_idx, Leaf::kv_idx, Leaf::h};
  RandomExpressions weights(6, vocabulary);
  std::mt19937_64 rng(7);
  constexpr int kDrawn = 1000;
  int failed = 0;
  for (int drawn = 0; drawn < kDrawn; ++drawn) {
    AttentionOptions options;
    options.bindings = scores.bindings();
    options.bindings.params["beta"] = -0.7;
    options.clamp_reads = true;
    options.score_mod = scores.draw(ExprType::f32, 2 + scores.below(8));
    if (drawn % 2 == 0) options.score_mod = leaf::score() + 2.0 * tanh(options.score_mod);
    if (drawn % 3 == 0) options.weight_mod = weights.draw(ExprType::f32, 2 + scores.below(6));
    const RandomCase random(drawn % 4 < 2 ? DType::f32 : DType::bf16, options, rng);
    if (!random.check_plain().passed) ++failed;
  }
  EXPECT_LE(failed, kDrawn / 75);
}

}  // namespace
}  // namespace heddle::test
