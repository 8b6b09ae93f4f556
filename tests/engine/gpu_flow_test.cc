// The engine around a GPU's kernels, against the fake driver, each test in a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backend/cuda/driver/fake_driver.h"
#include "backend/cuda/driver/in_child.h"
#include "engine/pointers.h"
#include "heddle/backward.h"
#include "heddle/check.h"
#include "heddle/error.h"
#include "heddle/mods.h"

namespace heddle {
namespace {

using testing::HasSubstr;

constexpr Device kFirst{DeviceKind::cuda, 0};
constexpr Device kSecond{DeviceKind::cuda, 1};

// Runs `report` beside the fake driver; an error's sentence where it throws.
template <class Report>
std::string with_fake(Report report) {
  return in_child([&]() -> std::string {
    setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
    try {
      return report();
    } catch (const Error& error) {
      return error.what();
    }
  });
}

Tensor random_tensor(const Dims& shape, unsigned seed) {
  const Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor.to(DType::bf16);
}

struct Inputs {
  Tensor q = random_tensor({1, 2, 70, 64}, 1), k = random_tensor({1, 1, 90, 64}, 2),
         v = random_tensor({1, 1, 90, 64}, 3);

  Inputs on(const Device& device) const {
    Inputs moved = *this;
    for (Tensor* tensor : {&moved.q, &moved.k, &moved.v}) *tensor = tensor->to(device);
    return moved;
  }
};

TEST(GpuFlow, ChecksCopiesOfWhatIsOnAGpu) {
  EXPECT_EQ(with_fake([] {
              const Inputs in;
              const Tensor ids = Tensor::zeros(DType::i32, {90});
              AttentionOptions options;
              options.mask_mod = mods::causal() & mods::documents(Capture("ids", DType::i32, 1));
              options.bindings.captures["ids"] = ids;
              const AttentionResult result = attention(in.q, in.k, in.v, options, true);

              const Inputs there = in.on(kSecond);
              const Tensor o = result.o.to(kSecond), lse = result.lse.to(kSecond), ids_there = ids.to(kSecond);
              AttentionOptions own = options;
              own.bindings.captures["ids"] = ids_there;
              const CheckReport here =
                  check_attention(in.q, in.k, in.v, options, result.o, ConstTensorView(result.lse));
              const CheckReport copied = check_attention(there.q, there.k, there.v, own, o, ConstTensorView(lse));
              if (!here.passed || here.text() != copied.text()) return here.text() + copied.text();
              own.bindings.captures["ids"].device = kFirst;
              check_attention(there.q, there.k, there.v, own, o, ConstTensorView(lse));
              return std::string("nothing was thrown");
            }),
            "capture 'ids' is on cuda:0; cuda:1 is accepted, where q is");
}

TEST(GpuFlow, ChecksCopiesOfGradientsOnAGpu) {
  EXPECT_EQ(with_fake([] {
              const Inputs in;
              AttentionOptions options;
              const Tensor slopes = random_tensor({2}, 4).to(DType::f32), sinks = random_tensor({2}, 5).to(DType::f32);
              options.sinks = sinks;
              options.bindings.captures["slopes"] = slopes;
              options.bindings.params["cap"] = 3.0F;
              options.score_mod = parse("cap * tanh(score) + slopes[h] * kv_idx", Symbols(options.bindings));
              const AttentionResult forward = attention(in.q, in.k, in.v, options, true);
              const Tensor d_o = random_tensor({1, 2, 70, 64}, 6), d_lse = random_tensor({1, 2, 70}, 7).to(DType::f32);
              BackwardTensors here{
                  .q = in.q, .k = in.k, .v = in.v, .o = forward.o, .lse = forward.lse, .d_o = d_o, .d_lse = d_lse};
              const BackwardResult result =
                  attention_backward(here, options, {.sinks = true, .captures = {"slopes"}, .params = {"cap"}});
              here.dq = result.dq, here.dk = result.dk, here.dv = result.dv, here.d_sinks = result.d_sinks;
              here.d_captures["slopes"] = result.d_captures.at("slopes");
              here.d_params["cap"] = result.d_params.at("cap");

              // Everything is moved: what stays behind shows as memory of the host.
              std::vector<Tensor> kept;
              const auto moved = [&](const ConstTensorView& view) {
                return kept.emplace_back(copy(view, view.dtype).to(kSecond)).view();
              };
              BackwardTensors there = here;
              for (auto member : {&BackwardTensors::q, &BackwardTensors::k, &BackwardTensors::v, &BackwardTensors::o,
                                  &BackwardTensors::d_o}) {
                there.*member = moved(here.*member);
              }
              there.lse = moved(*here.lse), there.d_lse = moved(*here.d_lse);
              for (auto member :
                   {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv, &BackwardTensors::d_sinks}) {
                there.*member = moved(*(here.*member));
              }
              there.d_captures["slopes"] = moved(here.d_captures.at("slopes"));
              there.d_params["cap"] = moved(here.d_params.at("cap"));
              AttentionOptions own = options;
              own.sinks = moved(sinks);
              own.bindings.captures["slopes"] = moved(slopes);

              options.backend = BackendChoice::cuda;  // judged as a GPU's
              const GradientReport expected = check_backward(here, options), report = check_backward(there, own);
              if (!report.passed || expected.text() != report.text()) return expected.text() + report.text();
              return std::to_string(report.tensors.size()) + " tensors";
            }),
            "6 tensors");
}

// The driver knows where memory is, whatever the views say.
TEST(GpuFlow, NamesTensorsWhoseMemoryIsElsewhere) {
  const auto spoilt = [](auto spoil) {
    return with_fake([&]() -> std::string {
      const Inputs in = Inputs().on(kFirst), other = Inputs().on(kSecond);
      const Tensor o = Tensor::empty_on(kFirst, DType::bf16, in.q.shape());
      const Tensor lse = Tensor::empty_on(kFirst, DType::f32, {1, 2, 70}), host = Tensor::zeros(DType::f32, {1, 2, 70});
      AttentionTensors tensors = {in.q, in.k, in.v, o, lse.view()};
      problem::AttentionProblem problem;
      problem.device = kFirst;
      problem.captures = {"ids"};
      AttentionOptions options;
      options.sinks = ConstTensorView(in.q.data(), DType::f32, {2}, kFirst);
      options.bindings.captures["ids"] = in.k;
      spoil(tensors, options, other, host);
      engine::check_pointers(problem, tensors, options, options.bindings);
      return "right";
    });
  };
  EXPECT_EQ(spoilt([](auto&...) {}), "right");
  EXPECT_EQ(spoilt([](AttentionTensors& t, auto&, const Inputs& other, const Tensor&) { t.v.data = other.v.data(); }),
            "v is on cuda:0, but its data is in the memory of cuda:1; memory of cuda:0 is accepted");
  EXPECT_EQ(spoilt([](AttentionTensors& t, auto&, const Inputs&, const Tensor& host) { t.lse->data = host.data(); }),
            "lse is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted");
  EXPECT_EQ(spoilt([](AttentionTensors& t, auto&, const Inputs&, const Tensor&) { t.q.data = nullptr; }), "right");
  EXPECT_EQ(spoilt([](auto&, AttentionOptions& o, const Inputs&, const Tensor& host) { o.sinks->data = host.data(); }),
            "sinks is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted");
  EXPECT_EQ(spoilt([](auto&, AttentionOptions& o, const Inputs&, const Tensor& host) {
              o.v_descale = ConstTensorView(host.data(), DType::f32, {1, 2}, kFirst);
            }),
            "v_descale is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted");
  EXPECT_EQ(spoilt([](auto&, AttentionOptions& o, const Inputs& other, const Tensor&) {
              o.bindings.captures["ids"].data = other.k.data();
            }),
            "capture 'ids' is on cuda:0, but its data is in the memory of cuda:1; memory of cuda:0 is accepted");
}

TEST(GpuFlow, SaysWhereAWorkspaceIsThatIsElsewhere) {
  const auto in = [](const Device& device) {
    return with_fake([&]() -> std::string {
      engine::check_workspace(Tensor::empty_on(device, DType::u8, {64}).data(), kFirst);
      return "right";
    });
  };
  EXPECT_EQ(in(kFirst), "right");
  EXPECT_EQ(in(kSecond), "workspace is in the memory of cuda:1; memory of cuda:0 is accepted");
  EXPECT_EQ(in({}), "workspace is in host memory; memory of cuda:0 is accepted");
}

TEST(GpuFlow, SaysWhatNoKernelTakes) {
  EXPECT_THAT(with_fake([]() -> std::string {
                const Inputs in = Inputs().on(kFirst);
                AttentionOptions options;
                options.scale = 3e38;
                attention(in.q, in.k, in.v, options);
                return {};
              }),
              HasSubstr("scale is 3e+38; numbers in the range of f32 are accepted"));
  EXPECT_THAT(with_fake([]() -> std::string {
                const Inputs in = Inputs().on(kFirst);
                AttentionOptions options;
                options.backend = BackendChoice::reference;
                attention(in.q, in.k, in.v, options);
                return {};
              }),
              HasSubstr("q is on cuda:0; backend reference takes tensors on the CPU"));
}

TEST(GpuFlow, LooksForNoDriverWhereTensorsAreOnTheCpu) {
  EXPECT_EQ(with_fake([]() -> std::string {
              const Inputs in;
              attention(in.q, in.k, in.v);
              explain_on("h200", {in.q, in.k, in.v, TensorView(nullptr, DType::bf16, in.q.shape()), {}}, {});
              return cuda::fake_driver(FAKE_DRIVER) == nullptr ? "not loaded" : "loaded";
            }),
            "not loaded");
}

TEST(GpuFlow, PlansForAGpuThatIsNotHere) {
  const Inputs in;
  const AttentionTensors tensors = {in.q, in.k, in.v, TensorView(nullptr, DType::bf16, in.q.shape()), {}};
  const Tensor ids = Tensor::zeros(DType::i64, {90});
  AttentionOptions options;
  options.mask_mod = mods::documents(Capture("ids", DType::i64, 1));
  options.bindings.captures["ids"] = ids;
  const Explanation explanation = explain_on("h200", tensors, options);
  EXPECT_THAT(explanation.text, HasSubstr("forward_sm90 on cuda:0"));
  EXPECT_THAT(explanation.json, HasSubstr("\"family\": \"forward_sm90\""));
  options.normalizer = Normalizer::sigmoid;
  EXPECT_THAT(explain_on("h200", tensors, options).text, HasSubstr("forward sigmoid bf16"));
  options.normalizer = Normalizer::softmax;
  options.sinks = ConstTensorView(nullptr, DType::f32, {in.q.shape()[1]});
  EXPECT_THAT(explain_on("h200", tensors, options).text, HasSubstr("; sinks; on cuda:0"));
  options.scale = 3e38;
  EXPECT_THROW(explain_on("h200", tensors, options), Error);
  const Explanation ampere = explain_on("a100", tensors, {});
  EXPECT_THAT(ampere.text, HasSubstr("forward_mma on cuda:0"));
  EXPECT_THAT(ampere.text, HasSubstr("the portable kernels have run on compute capability 9.0 alone"));
}

}  // namespace
}  // namespace heddle
