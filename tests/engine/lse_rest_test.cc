// lse in two words: lse + lse_rest is m + ln l where lse alone has lost digits of ln l, and gradients that take both
// are right however large the scores are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/element.h"
#include "engine/backward_case.h"
#include "engine/grid_specs.h"
#include "expect_error.h"

namespace heddle::test::lse_rest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = std::numeric_limits<float>::lowest();
constexpr std::int64_t kRows = 5, kKeys = 37, kDim = 8;

double element(const Tensor& tensor, std::int64_t i) { return base::load_element(tensor.data(), tensor.dtype(), i); }
void set(const Tensor& tensor, std::int64_t i, double x) { base::store_element(tensor.data(), tensor.dtype(), i, x); }

/// An attention of one head whose scores are small integers plus bias[q_idx, kv_idx], forward and backward.
struct Large {
  DType dtype;
  Tensor q, k, v, d_o, bias, o, lse, rest, dq, dk, dv, sinks, d_sinks;
  AttentionOptions options;

  Large(DType given, const std::function<double(std::int64_t, std::int64_t)>& bias_at, std::int64_t keys = kKeys)
      : dtype(given) {
    const DType real = dtype == DType::f64 ? DType::f64 : DType::f32;
    const auto zeros = [&](std::int64_t rows) { return Tensor::zeros(dtype, {1, 1, rows, kDim}); };
    q = zeros(kRows), k = zeros(keys), v = zeros(keys), d_o = zeros(kRows), o = zeros(kRows);
    dq = zeros(kRows), dk = zeros(keys), dv = zeros(keys);
    lse = Tensor::zeros(real, {1, 1, kRows}), rest = Tensor::zeros(real, {1, 1, kRows});
    bias = Tensor::zeros(real, {kRows, keys});
    std::mt19937 rng(3);
    for (const Tensor* small : {&q, &k}) {
      for (std::int64_t i = 0; i < small->count(); ++i) set(*small, i, static_cast<int>(rng() % 3) - 1);
    }
    std::normal_distribution<double> normal;
    for (const Tensor* drawn : {&v, &d_o}) {
      for (std::int64_t i = 0; i < drawn->count(); ++i) set(*drawn, i, normal(rng));
    }
    for (std::int64_t i = 0; i < bias.count(); ++i) set(bias, i, bias_at(i / keys, i % keys));
    options.scale = 0.5;
    options.threads = 2;
    const Capture capture("bias", real, 2);
    options.score_mod = leaf::score() + capture(leaf::q_idx(), leaf::kv_idx());
    options.bindings.captures["bias"] = bias;
  }
  void set_sink(double sink) {
    sinks = Tensor::zeros(lse.dtype(), {1}), d_sinks = Tensor::zeros(lse.dtype(), {1});
    set(sinks, 0, sink);
    options.sinks = sinks;
  }
  void attend(BackendChoice backend) {
    options.backend = backend;
    attention_into({.q = q, .k = k, .v = v, .o = o, .lse = lse, .lse_rest = rest}, options);
  }
  void differentiate(BackendChoice backend) {
    attend(backend);
    attention_backward_into(tensors(), options);
  }
  BackwardTensors tensors() const {
    BackwardTensors tensors{
        .q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .lse_rest = rest, .dq = dq, .dk = dk, .dv = dv};
    if (options.sinks) tensors.d_sinks = d_sinks;
    return tensors;
  }

  /// The scores as f32 (f64) has them, then p, in doubles.
  std::vector<double> weights(std::int64_t row, double* sink_weight = nullptr) const {
    const std::int64_t keys = k.shape()[2];
    std::vector<double> p;
    for (std::int64_t j = 0; j < keys; ++j) {
      double s = 0;
      for (std::int64_t d = 0; d < kDim; ++d) s += element(q, row * kDim + d) * element(k, j * kDim + d);
      const double t = 0.5 * s + element(bias, row * keys + j);
      p.push_back(dtype == DType::f64 ? t : static_cast<double>(static_cast<float>(t)));
    }
    const double sink = options.sinks ? element(sinks, 0) : -kInfinity;
    const double top = std::max(sink, *std::ranges::max_element(p));
    double sum = std::exp(sink - top);
    for (double& t : p) sum += t = top == -kInfinity ? 0 : std::exp(t - top);
    for (double& x : p) x = top == -kInfinity ? 0 : x / sum;
    if (sink_weight != nullptr) *sink_weight = std::exp(sink - top) / sum;
    return p;
  }
  /// The largest error of dq, dk, dv and d_sinks relative to the largest element of their tensor.
  double error() const {
    const std::int64_t keys = k.shape()[2];
    std::vector<double> want_q(static_cast<std::size_t>(kRows * kDim)), want_k(static_cast<std::size_t>(keys * kDim)),
        want_v(want_k.size());
    double want_sink = 0;
    for (std::int64_t i = 0; i < kRows; ++i) {
      double sink_weight = 0, delta = 0;
      const std::vector<double> p = weights(i, &sink_weight);
      std::vector<double> d_p(p.size());
      for (std::int64_t j = 0; j < keys; ++j) {
        const auto at = static_cast<std::size_t>(j);
        for (std::int64_t d = 0; d < kDim; ++d) d_p[at] += element(d_o, i * kDim + d) * element(v, j * kDim + d);
        delta += p[at] * d_p[at];
      }
      want_sink -= sink_weight * delta;
      for (std::int64_t j = 0; j < keys; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const double ds = 0.5 * p[at] * (d_p[at] - delta);
        for (std::int64_t d = 0; d < kDim; ++d) {
          want_q[static_cast<std::size_t>(i * kDim + d)] += ds * element(k, j * kDim + d);
          want_k[static_cast<std::size_t>(j * kDim + d)] += ds * element(q, i * kDim + d);
          want_v[static_cast<std::size_t>(j * kDim + d)] += p[at] * element(d_o, i * kDim + d);
        }
      }
    }
    double worst = std::max({error_of(dq, want_q), error_of(dk, want_k), error_of(dv, want_v)});
    if (options.sinks) worst = std::max(worst, error_of(d_sinks, {want_sink}));
    return worst;
  }
  static double error_of(const Tensor& got, const std::vector<double>& want) {
    double worst = 0, largest = 1e-3;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double error = std::abs(element(got, static_cast<std::int64_t>(i)) - want[i]);
      worst = std::isnan(error) ? kInfinity : std::max(worst, error);
      largest = std::max(largest, std::abs(want[i]));
    }
    return worst / largest;
  }
};

const std::vector<BackendChoice> kBackends = {BackendChoice::cpu, BackendChoice::reference};

// f32 keeps 24 bits of a number, so that lse beside -1e6 has lost 3 % of p, and beside -1e9 all of ln l.
TEST(LseRest, MakesGradientsRightHoweverLargeScoresAre) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const BackendChoice backend : kBackends) {
      for (const double level : {0.0, -31360.0, 31360.0, -1e6, 1048576.0, -8e6}) {
        Large large(dtype, [&](auto, auto) { return level; });
        large.differentiate(backend);
        EXPECT_LT(large.error(), 3e-6) << name(dtype) << ' ' << name(backend) << ' ' << level;
      }
    }
  }
}

TEST(LseRest, MakesGradientsRightOfRowsThatAMaskOfHugeNumbersHides) {
  const auto padded = [](double low) {  // row 0 has nothing but masked keys, row 1 one other key, the rest a few
    return [low](std::int64_t row, std::int64_t key) { return key < 7 * row ? 0.0 : low; };
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double low : {-1e9, kLowest, dtype == DType::f64 ? -1e300 : -1e30}) {
      for (const double sink : {-kInfinity, low, -2.0}) {
        Large large(dtype, padded(low));
        if (sink != -kInfinity) large.set_sink(sink);
        large.differentiate(BackendChoice::cpu);
        EXPECT_LT(large.error(), 3e-6) << name(dtype) << ' ' << low << ' ' << sink;
        // In float64 the reference keeps the scores beside -1e9, so that it computes another function.
        if (low == -1e9 && dtype == DType::f32) continue;
        large.differentiate(BackendChoice::reference);
        EXPECT_LT(large.error(), 3e-6) << name(dtype) << ' ' << low << ' ' << sink << " of the reference";
      }
    }
  }
}

// Without it p is 1 where it should be 1 / n.
TEST(LseRest, IsZeroWhereItIsNotGiven) {
  Large large(DType::f32, [](auto, auto) { return -1e9; });
  large.attend(BackendChoice::cpu);
  BackwardTensors tensors = large.tensors();
  tensors.lse_rest.reset();
  attention_backward_into(tensors, large.options);
  EXPECT_GT(large.error(), 1);
  attention_backward_into(large.tensors(), large.options);  // no plan serves both
  EXPECT_LT(large.error(), 3e-6);
}

TEST(LseRest, SpecialValues) {
  const double ulp = 0.0625;  // of 1e6 in f32
  for (const BackendChoice backend : kBackends) {
    SCOPED_TRACE(name(backend));
    const auto rows = [&](double level, std::int64_t keys, std::optional<double> sink) {
      Large large(
          DType::f32, [&](auto, auto) { return level; }, keys);
      for (std::int64_t i = 0; i < large.q.count(); ++i) set(large.q, i, 0);
      if (sink) large.set_sink(*sink);
      set(large.rest, 2, 99);
      large.attend(backend);
      return std::pair(element(large.lse, 2), element(large.rest, 2));
    };
    using Pair = std::pair<double, double>;
    EXPECT_EQ(rows(-kInfinity, 3, {}), Pair(-kInfinity, 0));
    EXPECT_EQ(rows(-kInfinity, 3, -1e9), Pair(-1e9, 0));
    EXPECT_EQ(rows(0, 0, {}), Pair(-kInfinity, 0));
    EXPECT_EQ(rows(0, 0, 2.5), Pair(2.5, 0));
    EXPECT_EQ(rows(kLowest, 10, {}), Pair(kLowest, static_cast<float>(std::log(10.0))));
    EXPECT_EQ(rows(kLowest, 10, kLowest), Pair(kLowest, static_cast<float>(std::log(11.0))));
    EXPECT_TRUE(std::isnan(rows(std::nan(""), 3, {}).second));
    const auto [lse, rest] = rows(1e6, 3, {});
    EXPECT_NEAR((lse - 1e6) + rest, std::log(3.0), 1e-7);
    EXPECT_LE(std::abs(rest), ulp / 2);
  }
}

TEST(LseRest, AgreesWithTheReference) {
  SpecSource source;
  for (int i = 0; i < scaled(200); ++i) {
    CaseSpec spec = source.draw();
    spec.seed += 4'000'000;
    spec.normalizer = Normalizer::softmax;
    spec.with_lse_rest = true;
    spec.with_max_scores = i % 3 == 0;
    AttentionCase attention_case(spec);
    run_and_judge(attention_case);
  }
}

// Parts of the keys are attended apart, and their rows merged.
TEST(LseRest, OfManyKeys) {
  for (const std::int64_t keys : {2048, 5000}) {
    for (const char* mask : {"", "causal_lower_right", "some_queries_blind"}) {
      CaseSpec spec;
      spec.seed = 8;
      spec.q_rows = 3;
      spec.kv_rows = keys;
      spec.mask = mask;
      spec.sinks = "large";
      spec.with_lse_rest = true;
      AttentionCase attention_case(spec);
      run_and_judge(attention_case);
    }
  }
}

TEST(LseRest, OfABackwardAgreesWithTheReference) {
  SpecSource source({.elements = 18'000, .products = 4'000'000});
  for (int i = 0; i < scaled(60); ++i) {
    CaseSpec spec = source.draw();
    spec.seed += 5'000'000;
    spec.normalizer = Normalizer::softmax;
    spec.with_lse_rest = true;
    spec.q_rows = std::min<std::int64_t>(spec.q_rows, 65);
    spec.kv_rows = std::min<std::int64_t>(spec.kv_rows, 130);
    AttentionCase attention_case(spec);
    BackwardCase backward_case(attention_case, {.with_d_lse = i % 2 == 0});
    run_and_judge(backward_case, backward_backends().front());
  }
}

TEST(LseRest, IsRefusedWhereItDoesNotFit) {
  CaseSpec spec;
  spec.q_rows = 5;
  spec.with_lse_rest = true;
  AttentionCase c(spec);
  const AttentionTensors right = c.tensors();
  const auto expect_refused = [&](const AttentionTensors& tensors, const char* why) {
    expect_error([&] { attention_into(tensors, c.options()); }, ErrorCode::invalid_argument, testing::HasSubstr(why));
  };
  AttentionTensors tensors = right;
  tensors.lse.reset();
  expect_refused(tensors, "lse_rest is given without lse");
  tensors = right;
  tensors.lse_rest->dtype = DType::f64;
  expect_refused(tensors, "lse_rest is f64; f32 is accepted");
  tensors = right;
  tensors.lse_rest->shape = {1, 1, 4};
  expect_refused(tensors, "lse_rest has shape");
  tensors = right;
  tensors.lse_rest->device = {DeviceKind::cuda, 0};
  expect_refused(tensors, "q is on the CPU and lse_rest on cuda:0");
  tensors = right;
  tensors.lse_rest = tensors.lse;
  expect_refused(tensors, "lse overlaps lse_rest in memory");
  const AttentionPlan plan(right, c.options());
  tensors = right;
  tensors.lse_rest.reset();
  expect_error([&] { plan.run(tensors); }, ErrorCode::invalid_argument,
               testing::HasSubstr("lse_rest is not given; the plan was made with it"));
}

TEST(LseRest, IsRefusedByABackwardWhereItDoesNotFit) {
  Large large(DType::f32, [](auto, auto) { return 0.0; });
  large.attend(BackendChoice::cpu);
  const auto expect_refused = [&](const BackwardTensors& tensors, const char* why) {
    expect_error([&] { attention_backward_into(tensors, large.options); }, ErrorCode::invalid_argument,
                 testing::HasSubstr(why));
  };
  BackwardTensors tensors = large.tensors();
  tensors.lse_rest->dtype = DType::f64;
  expect_refused(tensors, "lse_rest is f64; f32 is accepted");
  tensors = large.tensors();
  tensors.lse_rest->shape = {1, 1, 4};
  expect_refused(tensors, "lse_rest has shape");
  tensors = large.tensors();
  tensors.lse.reset();
  expect_refused(tensors, "lse_rest is given without lse");
  tensors = large.tensors();
  tensors.dq = TensorView(const_cast<void*>(tensors.lse_rest->data), DType::f32, {1, 1, kRows, kDim});
  expect_refused(tensors, "dq overlaps lse_rest in memory");
}

// No kernel of a GPU has it yet.
TEST(LseRest, IsRefusedByFamiliesOfGpus) {
  Large large(DType::bf16, [](auto, auto) { return 0.0; });
  for (const char* gpu : {"h200", "a100"}) {
    expect_error(
        [&] {
          explain_on(gpu,
                     {.q = large.q, .k = large.k, .v = large.v, .o = large.o, .lse = large.lse, .lse_rest = large.rest},
                     large.options);
        },
        ErrorCode::unsupported, testing::HasSubstr("lse_rest is asked for; o and lse are accepted"));
    expect_error([&] { explain_on(gpu, large.tensors(), large.options); }, ErrorCode::unsupported,
                 testing::HasSubstr("lse_rest is given; lse without it is accepted"));
  }
}

}  // namespace
}  // namespace heddle::test::lse_rest
