// attention_backward and plans of backwards: what they return, and what they refuse.
#include "heddle/backward.h"

#include <gtest/gtest.h>

#include <random>

#include "expect_error.h"
#include "heddle/check.h"
#include "heddle/error.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

Tensor draw(const Dims& shape, DType dtype, std::uint64_t seed) {
  const Tensor tensor = Tensor::empty(DType::f64, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<double*>(tensor.data())[i] = normal(rng);
  return tensor.to(dtype);
}

// 2 sequences, 4 heads on 2, 9 queries and 11 keys of 8 dimensions, ALiBi with slopes of its own, sinks.
struct Training {
  Tensor q = draw({2, 4, 9, 8}, DType::f32, 1), k = draw({2, 2, 11, 8}, DType::f32, 2),
         v = draw({2, 2, 11, 8}, DType::f32, 3), d_o = draw({2, 4, 9, 8}, DType::f32, 4),
         d_lse = draw({2, 4, 9}, DType::f32, 5), slopes = draw({4}, DType::f32, 6), sinks = draw({4}, DType::f32, 7);
  AttentionOptions options;
  AttentionResult forward;

  explicit Training(BackendChoice backend) {
    options.backend = backend;
    options.sinks = sinks;
    options.bindings.captures["slopes"] = slopes;
    options.bindings.params["cap"] = 3.0F;
    options.score_mod = parse("cap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx)", Symbols(options.bindings));
    options.mask_mod = mods::causal();
    forward = attention(q, k, v, options, true);
  }
  BackwardTensors inputs() const {
    return {.q = q, .k = k, .v = v, .o = forward.o, .lse = forward.lse, .d_o = d_o, .d_lse = d_lse};
  }
};

class Backward : public testing::TestWithParam<BackendChoice> {};
INSTANTIATE_TEST_SUITE_P(Backends, Backward, testing::Values(BackendChoice::reference, BackendChoice::cpu),
                         [](const auto& at) { return std::string(name(at.param)); });

TEST_P(Backward, ReturnsWhatWasAskedFor) {
  const Training training(GetParam());
  const GradientRequest request = {.sinks = true, .captures = {"slopes"}, .params = {"cap"}};
  const BackwardResult result = attention_backward(training.inputs(), training.options, request);
  BackwardTensors given = training.inputs();
  given.dq = result.dq, given.dk = result.dk, given.dv = result.dv, given.d_sinks = result.d_sinks;
  given.d_captures["slopes"] = result.d_captures.at("slopes");
  given.d_params["cap"] = result.d_params.at("cap");
  const GradientReport report = check_backward(given, training.options);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(report.tensors.size(), 6U);
}

TEST_P(Backward, LeavesOutWhatWasNotAskedFor) {
  const Training training(GetParam());
  const BackwardResult all = attention_backward(training.inputs(), training.options);
  const GradientRequest only_k = {.q = false, .k = true, .v = false};
  const BackwardResult result = attention_backward(training.inputs(), training.options, only_k);
  EXPECT_EQ(result.dq.count(), 0);
  EXPECT_EQ(result.dv.count(), 0);
  EXPECT_EQ(result.d_sinks.count(), 0);
  EXPECT_TRUE(result.d_captures.empty() && result.d_params.empty());
  ASSERT_EQ(result.dk.count(), all.dk.count());
  EXPECT_EQ(std::memcmp(result.dk.data(), all.dk.data(), static_cast<std::size_t>(all.dk.count()) * 4), 0);
}

TEST_P(Backward, StridesAndDtypesOfGradientsAreTheCallers) {
  const Training training(GetParam());
  const Tensor dq = Tensor::empty(DType::bf16, {2, 9, 4, 8});  // [B, S, H, D]
  const Tensor d_slopes = Tensor::empty(DType::f64, {4, 3});   // every third element
  BackwardTensors given = training.inputs();
  given.dq = TensorView(dq.data(), DType::bf16, {2, 4, 9, 8}, {9 * 4 * 8, 8, 4 * 8, 1});
  given.d_captures["slopes"] = TensorView(d_slopes.data(), DType::f64, {4}, {3});
  attention_backward_into(given, training.options);
  const GradientReport report = check_backward(given, training.options);
  EXPECT_TRUE(report.passed) << report.text();
}

TEST_P(Backward, PlansRunManyTimes) {
  const Training first(GetParam());
  Training second(GetParam());
  second.d_o = draw({2, 4, 9, 8}, DType::f32, 14);
  const Tensor dq = Tensor::empty(DType::f32, {2, 4, 9, 8});
  BackwardTensors given = first.inputs();
  given.dq = dq;
  const AttentionPlan plan(given, first.options);
  for (const Training* training : {&first, const_cast<const Training*>(&second)}) {
    BackwardTensors tensors = training->inputs();
    tensors.dq = dq;
    plan.run(tensors, {.options = &training->options});
    const GradientReport report = check_backward(tensors, training->options);
    EXPECT_TRUE(report.passed) << report.text();
  }
}

TEST_P(Backward, PassesAreNotMixedUp) {
  const Training training(GetParam());
  const Tensor dq = Tensor::empty(DType::f32, {2, 4, 9, 8});
  BackwardTensors given = training.inputs();
  given.dq = dq;
  const AttentionPlan backward(given, training.options);
  const AttentionTensors tensors = {training.q, training.k, training.v, training.forward.o, training.forward.lse};
  const AttentionPlan forward(tensors, training.options);
  expect_error([&] { backward.run(tensors); }, ErrorCode::invalid_argument,
               "the plan is of a backward, and a forward's tensors are given; a backward's are accepted");
  expect_error([&] { forward.run(given); }, ErrorCode::invalid_argument,
               "the plan is of a forward, and a backward's tensors are given; a forward's are accepted");
}

TEST_P(Backward, IsKeptByThePlanCacheBesideItsForward) {
  clear_plan_cache();
  const Training training(GetParam());
  attention_backward(training.inputs(), training.options);
  const PlanCacheCounts before = plan_cache_counts();
  attention_backward(training.inputs(), training.options);
  EXPECT_EQ(plan_cache_counts().hits, before.hits + 1);
  attention_backward(training.inputs(), training.options, {.q = false});
  EXPECT_EQ(plan_cache_counts().misses, before.misses + 1) << "other gradients are another plan";
  EXPECT_EQ(plan_cache_counts().plans, 3);
}

// Each word of the key counts by itself: a plan with another word would refuse the run, or count as a hit.
TEST_P(Backward, PlansAreKnownByAllThatIsTheBackwards) {
  clear_plan_cache();
  Training training(GetParam());
  const Tensor other = draw({4}, DType::f32, 8);
  training.options.bindings.captures["other"] = other;
  training.options.score_mod = parse("score + slopes[h] * other[h] + cap", Symbols(training.options.bindings));
  const auto is_new = [&](auto&& change) {
    BackwardTensors tensors = training.inputs();
    AttentionOptions options = training.options;
    GradientRequest request = {.q = false, .captures = {"slopes"}};
    change(tensors, options, request);
    const std::int64_t before = plan_cache_counts().misses;
    attention_backward(tensors, options, request);
    return plan_cache_counts().misses == before + 1;
  };
  const auto nothing = [](BackwardTensors&, AttentionOptions&, GradientRequest&) {};
  EXPECT_TRUE(is_new(nothing));
  EXPECT_FALSE(is_new(nothing));
  EXPECT_TRUE(is_new([](BackwardTensors& t, AttentionOptions&, GradientRequest&) { t.d_lse.reset(); }));
  EXPECT_TRUE(is_new([](BackwardTensors&, AttentionOptions& o, GradientRequest&) { o.deterministic = true; }));
  EXPECT_TRUE(is_new([](BackwardTensors&, AttentionOptions&, GradientRequest& r) { r.captures = {"other"}; }));
  EXPECT_TRUE(is_new([](BackwardTensors&, AttentionOptions&, GradientRequest& r) { r.sinks = true; }));
  EXPECT_TRUE(is_new([](BackwardTensors&, AttentionOptions&, GradientRequest& r) { r.params = {"cap"}; }));
}

TEST_P(Backward, GradientsHaveTheDtypesThatTheHeaderSays) {
  struct Case {
    DType inputs, rows, real;
  };
  for (const Case& at : {Case{DType::f64, DType::f64, DType::f64},
                         {DType::f16, DType::f16, DType::f32},
                         {DType::e4m3, DType::bf16, DType::f32}}) {
    SCOPED_TRACE(name(at.inputs));
    Training training(GetParam());
    const Tensor q = training.q.to(at.inputs), k = training.k.to(at.inputs), v = training.v.to(at.inputs),
                 sinks = training.sinks.to(at.real);
    training.options.sinks = sinks;
    for (const auto& [own, expected] : {std::pair(DType::f64, DType::f64),
                                        {DType::f16, DType::f16},
                                        {DType::bf16, DType::bf16},
                                        {DType::e5m2, DType::f32}}) {
      const Tensor slopes = training.slopes.to(own);
      training.options.bindings.captures["slopes"] = slopes;
      training.options.score_mod = parse("score + cap * slopes[h]", Symbols(training.options.bindings));
      const AttentionResult forward = attention(q, k, v, training.options, true);
      const Tensor d_o = training.d_o.to(forward.o.dtype());
      const BackwardResult result =
          attention_backward({.q = q, .k = k, .v = v, .o = forward.o, .lse = forward.lse, .d_o = d_o}, training.options,
                             {.sinks = true, .captures = {"slopes"}, .params = {"cap"}});
      for (const Tensor* rows : {&result.dq, &result.dk, &result.dv}) EXPECT_EQ(rows->dtype(), at.rows);
      EXPECT_EQ(result.d_sinks.dtype(), at.real);
      EXPECT_EQ(result.d_params.at("cap").dtype(), at.real);
      EXPECT_EQ(result.d_captures.at("slopes").dtype(), expected);
    }
  }
}

TEST_P(Backward, RefusesGradientsWhereItAllocatesThem) {
  const Training training(GetParam());
  const Tensor any = Tensor::empty(DType::f32, {4});
  const auto refused = [&](auto&& give) {
    BackwardTensors tensors = training.inputs();
    give(tensors);
    expect_error(
        [&] { attention_backward(tensors, training.options); }, ErrorCode::invalid_argument,
        "tensors has gradients, which attention_backward allocates; attention_backward_into takes the caller's");
  };
  for (const auto member :
       {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv, &BackwardTensors::d_sinks}) {
    refused([&](BackwardTensors& t) { t.*member = any; });
  }
  refused([&](BackwardTensors& t) { t.d_captures["slopes"] = any; });
  refused([&](BackwardTensors& t) { t.d_params["cap"] = any; });
}

TEST_P(Backward, RefusesWhatHasNoGradient) {
  Training training(GetParam());
  const Tensor ids = Tensor::zeros(DType::i32, {16}), limit = Tensor::zeros(DType::f32, {4});
  training.options.bindings.captures["ids"] = ids;
  training.options.bindings.captures["limit"] = limit;
  training.options.bindings.params["n"] = std::int32_t{2};
  const Symbols symbols(training.options.bindings);
  training.options.score_mod = parse("score + slopes[h] * cap * f32(ids[q_idx] + n)", symbols);
  training.options.mask_mod = parse("f32(q_idx) >= limit[h]", symbols);
  const auto refused = [&](const GradientRequest& request, const char* sentence) {
    expect_error([&] { attention_backward(training.inputs(), training.options, request); }, ErrorCode::invalid_argument,
                 sentence);
  };
  refused({.captures = {"ids"}},
          "d_captures['ids'] is given, but capture 'ids' is i32; gradients of floating captures are accepted");
  refused({.captures = {"limit"}},
          "d_captures['limit'] is given, but only the mask reads capture 'limit'; a mask has no gradient");
  refused({.captures = {"other"}}, "request.captures has 'other', but bindings has no such capture");
  refused({.params = {"n"}}, "d_params['n'] is given, but param 'n' is no real; gradients of f32 params are accepted");
  refused({.params = {"m"}}, "d_params['m'] is given, but no mod reads it; 'cap', 'n' is accepted");
  refused({.q = false, .k = false, .v = false},
          "no gradient is asked for; at least one of dq, dk, dv, d_sinks, d_captures and d_params is accepted");
  training.options.sinks.reset();
  refused({.sinks = true}, "request.sinks is true, but there are no sinks");
}

TEST_P(Backward, RefusesTensorsThatDoNotFit) {
  const Training training(GetParam());
  const auto refused = [&](auto&& change, const char* sentence) {
    BackwardTensors tensors = training.inputs();
    change(tensors);
    expect_error([&] { attention_backward_into(tensors, training.options); }, ErrorCode::invalid_argument, sentence);
  };
  const Tensor dq = Tensor::empty(DType::f32, {2, 4, 9, 8}), other = Tensor::empty(DType::f32, {2, 4, 9, 4});
  const Tensor half = Tensor::empty(DType::f16, {2, 4, 9, 8}), whole = Tensor::empty(DType::i32, {2, 4, 9, 8});
  refused([](BackwardTensors& t) { t.lse.reset(); },
          "lse is not given; the backward of softmax takes the lse that the forward stored");
  refused([&](BackwardTensors& t) { t.d_o = other; }, "d_o has shape [2, 4, 9, 4]; [2, 4, 9, 8], o's, is accepted");
  refused([&](BackwardTensors& t) { t.d_o = half; }, "d_o is f16; f32, o's dtype, and f32, q's, are accepted");
  refused([&](BackwardTensors& t) { t.d_o = {}; }, "d_o has shape []; 4 axes [B, Hq, Sq, Dv] are accepted");
  refused([&](BackwardTensors& t) { t.d_lse = other; },
          "d_lse has shape [2, 4, 9, 4]; 3 axes [B, Hq, Sq] are accepted");
  refused([&](BackwardTensors& t) { t.dq = other; }, "dq has shape [2, 4, 9, 4]; [2, 4, 9, 8], that of q, is accepted");
  refused([&](BackwardTensors& t) { t.dq = whole; }, "dq is i32; f64, f32, f16, bf16, e4m3 and e5m2 are accepted");
  refused(
      [&](BackwardTensors& t) {
        t.dq = TensorView(dq.data(), DType::f32, {2, 4, 9, 8}, {0, 72, 8, 1});
      },
      "dq has shape [2, 4, 9, 8] and strides [0, 72, 8, 1], so that elements share memory; one place an element is "
      "accepted");
  refused([&](BackwardTensors& t) { t.dq = training.q; },
          "dq overlaps q in memory; an output that shares no byte with an input is accepted");
  refused([&](BackwardTensors& t) { t.dq = training.forward.o; },
          "dq overlaps o in memory; an output that shares no byte with an input is accepted");
  refused(
      [&](BackwardTensors& t) {
        t.dk = training.k;
        t.dq = dq;
      },
      "dk overlaps k in memory; an output that shares no byte with an input is accepted");
  refused(
      [&](BackwardTensors& t) {
        t.d_sinks = TensorView(dq.data(), DType::f32, {4});
        t.dq = dq;
      },
      "dq overlaps d_sinks in memory; outputs that share no byte are accepted");
}

TEST_P(Backward, RefusesWhatTheNormalizerDoesNotHave) {
  Training training(GetParam());
  training.options.sinks.reset();
  training.options.normalizer = Normalizer::sigmoid;
  BackwardTensors tensors = training.inputs();
  expect_error([&] { attention_backward(tensors, training.options); }, ErrorCode::invalid_argument,
               "lse is asked for with normalizer sigmoid; only softmax has one");
  tensors.lse.reset();
  expect_error([&] { attention_backward(tensors, training.options); }, ErrorCode::invalid_argument,
               "d_lse is given with normalizer sigmoid; only softmax has an lse");
}

TEST_P(Backward, RefusesPages) {
  Training training(GetParam());
  const Tensor table = Tensor::zeros(DType::i32, {2, 1}), lengths = Tensor::zeros(DType::i32, {2});
  training.options.page_table = table;
  training.options.kv_lengths = lengths;
  expect_error([&] { attention_backward(training.inputs(), training.options); }, ErrorCode::invalid_argument,
               "page_table is given; a backward takes keys and values that are not in pages");
}

TEST_P(Backward, RefusesRowsOfTwoTensors) {
  Training training(GetParam());
  const BackwardTensors tensors = training.inputs();
  const auto refused = [&](std::optional<ConstTensorView> AttentionOptions::*rest, const ConstTensorView& of,
                           std::string_view name) {
    BackwardTensors cut = tensors;
    ConstTensorView& first = &of == &tensors.q ? cut.q : cut.k;
    const ConstTensorView one(static_cast<const std::byte*>(of.data) + (of.shape[3] - 1) * size_of(of.dtype), of.dtype,
                              {of.shape[0], of.shape[1], of.shape[2], 1}, of.strides, of.device);
    first.shape[3] -= 1;
    AttentionOptions options = training.options;
    options.*rest = one;
    expect_error([&] { attention_backward(cut, options); }, ErrorCode::invalid_argument,
                 std::string(name) + " is given; a backward takes queries and keys that are one tensor each");
  };
  refused(&AttentionOptions::q_rest, tensors.q, "q_rest");
  refused(&AttentionOptions::k_rest, tensors.k, "k_rest");
}

TEST_P(Backward, RunsRefuseOtherGradientsThanPlanned) {
  const Training training(GetParam());
  const Tensor dq = Tensor::empty(DType::f32, {2, 4, 9, 8}), d_slopes = Tensor::empty(DType::f32, {4});
  BackwardTensors given = training.inputs();
  given.dq = dq;
  const AttentionPlan plan(given, training.options);
  const auto refused = [&](auto&& change, const char* sentence) {
    BackwardTensors tensors = given;
    change(tensors);
    expect_error([&] { plan.run(tensors); }, ErrorCode::invalid_argument, sentence);
  };
  refused([](BackwardTensors& t) { t.dq.reset(); }, "dq is not given; the plan was made with it");
  refused([&](BackwardTensors& t) { t.dk = dq; }, "dk is given; the plan was made without it");
  refused([&](BackwardTensors& t) { t.d_captures["slopes"] = d_slopes; },
          "d_captures['slopes'] is given; the plan was made without it");
  refused([](BackwardTensors& t) { t.d_lse.reset(); }, "d_lse is not given; the plan was made with it");

  given.d_captures["slopes"] = d_slopes;
  const AttentionPlan with_slopes(given, training.options);
  expect_error(
      [&] {
        BackwardTensors tensors = given;
        tensors.d_captures.clear();
        with_slopes.run(tensors);
      },
      ErrorCode::invalid_argument, "d_captures['slopes'] is not given; the plan was made with it");
}

TEST_P(Backward, IsExplained) {
  const Training training(GetParam());
  const Tensor dq = Tensor::empty(DType::f32, {2, 4, 9, 8}), d_slopes = Tensor::empty(DType::f32, {4});
  BackwardTensors given = training.inputs();
  given.dq = dq;
  given.d_captures["slopes"] = d_slopes;
  const std::string text = AttentionPlan(given, training.options).explain();
  EXPECT_NE(
      text.find("backward softmax f32 q[2, 4, 9, 8] f32 k[.., 2, 11, 8] f32 v[.., 2, 11, 8] -> dq, d 'slopes' from "
                "f32 o and d_o and d_lse; scale"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("recomputed"), std::string::npos) << text;
}

}  // namespace
}  // namespace heddle::test
