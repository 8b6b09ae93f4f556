// The criterion of gradients passes what is right and fails each planted error.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/element.h"
#include "check/plain_backward.h"
#include "check/tile_backward.h"
#include "expect_error.h"
#include "heddle/check.h"
#include "reference/reference_backward.h"

namespace heddle::test {
namespace {

constexpr DType kStorage[] = {DType::f32, DType::f16, DType::bf16};

TEST(CheckGradients, PassesATiledBackward) {
  for (const DType dtype : kStorage) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const GradientReport report = TileBackward(dtype, seed).check(Fault::none);
      EXPECT_TRUE(report.passed) << name(dtype) << ", seed " << seed << '\n' << report.text();
    }
  }
}

// If one key has most of the weight, dP is near delta, and most of the error comes from rounding o.
TEST(CheckGradients, PassesPeakedRows) {
  for (const DType dtype : kStorage) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      TileBackward backward(dtype, seed, dtype, TileBackward::Scores::peaked);
      const GradientReport report = backward.check(Fault::none);
      EXPECT_TRUE(report.passed) << name(dtype) << ", seed " << seed << '\n' << report.text();
    }
  }
}

// delta is what the stored o gives: an o of fewer bits than q's costs more than q's roundoff.
TEST(CheckGradients, PassesBesideACoarserO) {
  for (const DType dtype : kStorage) {
    for (const DType o_dtype : {DType::bf16, DType::e4m3, DType::e5m2}) {
      EXPECT_FALSE(TileBackward(dtype, 1, o_dtype).check(Fault::no_slopes_batch).passed);
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        TileBackward backward(dtype, seed, o_dtype, TileBackward::Scores::peaked);
        const GradientReport report = backward.check(Fault::none);
        EXPECT_TRUE(report.passed) << name(dtype) << " beside " << name(o_dtype) << ", seed " << seed << '\n'
                                   << report.text();
      }
    }
  }
}

// f32 has a floor of 8 units, so numbers rounded to fewer bits pass there.
bool hides_in_f32(Fault fault) { return fault == Fault::coarse_weights || fault == Fault::coarse_sums; }

TEST(CheckGradients, FailsPlantedErrors) {
  for (const DType dtype : kStorage) {
    TileBackward backward(dtype, 1);
    for (int i = 1; i < kFaults; ++i) {
      const auto fault = static_cast<Fault>(i);
      if (fault == Fault::slopes_of_rounded || (dtype == DType::f32 && hides_in_f32(fault))) continue;
      const GradientReport report = backward.check(fault);
      EXPECT_FALSE(report.passed) << name(dtype) << ", fault " << i << '\n' << report.text();
    }
  }
}

// Captures' gradients are sums of unrounded dt. Beside what a rounded o costs, dt rounded to the storage type is
// little.
TEST(CheckGradients, FailsCapturesFromRoundedScoresBesideAnExactO) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const GradientReport report = TileBackward(dtype, 1, DType::f32).check(Fault::slopes_of_rounded);
    EXPECT_FALSE(report.tensors.at("d_captures['slopes']").passed) << report.text();
    EXPECT_TRUE(report.tensors.at("dq").passed) << report.text();
    EXPECT_TRUE(TileBackward(dtype, 1, DType::f32).check(Fault::none).passed);
  }
}

TEST(CheckGradients, TextHasALineATensor) {
  const std::string text = TileBackward(DType::bf16, 1).check(Fault::no_slopes_batch).text();
  EXPECT_THAT(text, testing::ContainsRegex(
                        "\nd_captures..slopes.. .*FAILED\nd_sinks .*passed\ndk .*passed\ndq .*passed\ndv .*passed"));
}

// The reference's gradients, rounded once, which a test then spoils.
struct Rounded {
  Tensor q, k, v, o, lse, d_o;
  AttentionOptions options;
  Tensor d_q, d_k, d_v;

  explicit Rounded(DType dtype, const AttentionOptions& given = {}, const Dims& q_shape = {1, 2, 9, 8},
                   const Dims& kv_shape = {1, 1, 11, 8})
      : q(draw(dtype, q_shape, 1)),
        k(draw(dtype, kv_shape, 2)),
        v(draw(dtype, kv_shape, 3)),
        d_o(draw(dtype, q_shape, 4)),
        options(given) {
    compute();
  }
  static Tensor draw(DType dtype, const Dims& shape, std::uint64_t seed) {
    const Tensor tensor = Tensor::empty(DType::f64, shape);
    std::mt19937_64 rng(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<double*>(tensor.data())[i] = normal(rng);
    return tensor.to(dtype);
  }
  void compute() {
    const BackendChoice backend = options.backend;
    options.backend = BackendChoice::reference;
    const AttentionResult result = attention(q, k, v, options, options.normalizer == Normalizer::softmax);
    options.backend = backend;
    o = result.o, lse = result.lse;
    const problem::AttentionProblem problem = problem::validate(tensors(), options);
    const backend::RunArguments arguments{tensors(), &options, &options.bindings, options.block_mask.get(), nullptr};
    const reference::Gradients gradients = reference::attend_backward(problem, arguments, {.d_o = d_o}, 0);
    d_q = gradients.q.value.to(q.dtype());
    d_k = gradients.k.value.to(q.dtype());
    d_v = gradients.v.value.to(q.dtype());
  }
  AttentionTensors tensors() const {
    AttentionTensors tensors{q, k, v, o, {}};
    if (options.normalizer == Normalizer::softmax) tensors.lse = lse;
    return tensors;
  }
  BackwardTensors given() const {
    BackwardTensors given{.q = q, .k = k, .v = v, .o = o, .d_o = d_o, .dq = d_q, .dk = d_k, .dv = d_v};
    if (options.normalizer == Normalizer::softmax) given.lse = lse;
    return given;
  }
  GradientReport check() const { return check_backward(given(), options); }
  static double get(const Tensor& tensor, std::int64_t i) { return get_element(reshaped(tensor), {i}); }
  static void set(const Tensor& tensor, std::int64_t i, double x) {
    base::store_element(tensor.data(), tensor.dtype(), i, x);
  }
  static ConstTensorView reshaped(const Tensor& tensor) {
    return {tensor.data(), tensor.dtype(), Dims{tensor.count()}};
  }
};

TEST(CheckGradients, PassesTheRoundedReference) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}) {
      for (const char* mod : {"score", "max(score, 0.0)", "score * score", "exp(score)", "score - 40.0"}) {
        AttentionOptions options;
        options.normalizer = normalizer;
        options.score_mod = parse(mod);
        const GradientReport report = Rounded(dtype, options).check();
        EXPECT_TRUE(report.passed) << name(dtype) << ' ' << mod << '\n' << report.text();
      }
    }
  }
}

// Weights of e^-17 beside a sink: o is subnormal in f16, and the sink's gradient is delta.
TEST(CheckGradients, PassesBesideASubnormalO) {
  AttentionOptions options;
  const Tensor sinks = Tensor::empty(DType::f32, {2});
  for (int h = 0; h < 2; ++h) static_cast<float*>(sinks.data())[h] = 17;
  options.sinks = sinks;
  const Rounded rounded(DType::f16, options);
  const problem::AttentionProblem problem = problem::validate(rounded.tensors(), options);
  const backend::RunArguments arguments{rounded.tensors(), &options, &options.bindings, nullptr, nullptr};
  const Tensor d_sinks =
      check::plain_backward(problem, arguments, {.d_o = rounded.d_o, .of_sinks = true}, {rounded.o, rounded.lse}).sinks;
  BackwardTensors given = rounded.given();
  given.d_sinks = d_sinks;
  const GradientReport report = check_backward(given, options);
  EXPECT_TRUE(report.passed) << report.text();
  static_cast<double*>(d_sinks.data())[1] *= 2;
  EXPECT_FALSE(check_backward(given, options).passed);
}

// Without a softmax t is p, and may be near f32's end.
TEST(CheckGradients, JudgesHugeScoresThatAreWeights) {
  AttentionOptions options;
  options.normalizer = Normalizer::none;
  options.score_mod = where(leaf::kv_idx() == 2, Expr(-3e38), leaf::score());
  Rounded rounded(DType::f64, options);
  for (std::int64_t d = 0; d < 8; ++d) Rounded::set(rounded.d_o, d, 0);
  rounded.compute();
  const GradientReport report = rounded.check();
  EXPECT_TRUE(report.passed) << report.text();
}

TEST(CheckGradients, FailsOneWrongElement) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const auto tensor : {&Rounded::d_q, &Rounded::d_k, &Rounded::d_v}) {
      Rounded rounded(dtype);
      Rounded::set(rounded.*tensor, 37, Rounded::get(rounded.*tensor, 37) + 1);
      EXPECT_FALSE(rounded.check().passed) << name(dtype);
      Rounded::set(rounded.*tensor, 37, std::nan(""));
      EXPECT_FALSE(rounded.check().passed) << name(dtype);
    }
  }
}

// Rows that attend nothing, and keys that no row attends, have exact zeros.
TEST(CheckGradients, FailsWhatShouldBeZero) {
  AttentionOptions options;
  options.mask_mod = (leaf::q_idx() != 4) & (leaf::kv_idx() != 6);
  for (const auto& [tensor, row] :
       {std::pair(&Rounded::d_q, 4), std::pair(&Rounded::d_k, 6), std::pair(&Rounded::d_v, 6)}) {
    Rounded rounded(DType::bf16, options);
    ASSERT_TRUE(rounded.check().passed) << rounded.check().text();
    Rounded::set(rounded.*tensor, row * 8 + 3, 1e-30);
    EXPECT_FALSE(rounded.check().passed);
  }
}

// max(score, 0) of a score of 2^-23 or 2^-20 whose terms are 1: f32 may take the first for one below 0.
TEST(CheckGradients, TakesEitherSideOfAKink) {
  for (const auto& [score, either] : {std::pair(0x1p-23, true), std::pair(0x1p-20, false)}) {
    AttentionOptions options;
    options.normalizer = Normalizer::none;
    options.scale = 1;
    options.score_mod = max(leaf::score(), Expr(0.0));
    Rounded rounded(DType::f32, options, {1, 1, 1, 2}, {1, 1, 1, 2});
    for (const int d : {0, 1}) Rounded::set(rounded.q, d, 1);
    Rounded::set(rounded.k, 0, 1 + score), Rounded::set(rounded.k, 1, -1);
    rounded.compute();
    ASSERT_TRUE(rounded.check().passed) << rounded.check().text();
    ASSERT_NE(Rounded::get(rounded.d_q, 0), 0);
    for (const int d : {0, 1}) Rounded::set(rounded.d_q, d, 0), Rounded::set(rounded.d_k, d, 0);
    EXPECT_EQ(rounded.check().passed, either) << rounded.check().text();
  }
}

// A tile of a GPU multiplies what is masked by 0: k reaches dq, q reaches dk, dO reaches dv, each in its column.
TEST(CheckGradients, AllowsMaskedNumbersThatAreNotFiniteToReachGradientsOfAGpu) {
  struct Case {
    Tensor Rounded::*input, Rounded::*gradient;
    std::int64_t poisoned, reached;  // rows; row 2 attends keys 0 to 2
  };
  AttentionOptions options;
  options.mask_mod = leaf::kv_idx() <= leaf::q_idx();
  for (const Case& at : {Case{&Rounded::k, &Rounded::d_q, 5, 2}, Case{&Rounded::q, &Rounded::d_k, 2, 5},
                         Case{&Rounded::d_o, &Rounded::d_v, 2, 5}}) {
    Rounded rounded(DType::f32, options);
    Rounded::set(rounded.*at.input, at.poisoned * 8 + 3, std::nan(""));
    rounded.compute();
    EXPECT_TRUE(rounded.check().passed) << rounded.check().text();
    const std::int64_t column = at.reached * 8 + 3;
    ASSERT_TRUE(std::isfinite(Rounded::get(rounded.*at.gradient, column)));
    Rounded::set(rounded.*at.gradient, column, std::nan(""));
    EXPECT_FALSE(rounded.check().passed) << "the CPU's results are not excused";
    rounded.options.backend = BackendChoice::cuda;
    EXPECT_TRUE(rounded.check().passed) << rounded.check().text();
    Rounded::set(rounded.*at.gradient, column + 1, std::nan(""));
    EXPECT_FALSE(rounded.check().passed) << "a column whose numbers are all finite";
  }
}

TEST(CheckGradients, RefusesOtherShapesAndNames) {
  Rounded rounded(DType::f32);
  BackwardTensors given = rounded.given();
  given.dq = rounded.d_k;
  expect_error([&] { check_backward(given, {}); }, ErrorCode::invalid_argument,
               "dq has shape [1, 1, 11, 8]; [1, 2, 9, 8], that of q, is accepted");
  given = rounded.given();
  given.d_captures["x"] = rounded.d_q;
  expect_error([&] { check_backward(given, {}); }, ErrorCode::invalid_argument,
               "d_captures['x'] is given, but no mod reads it; none is accepted");
}

}  // namespace
}  // namespace heddle::test
