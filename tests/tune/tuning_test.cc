// Plans that a measurement chose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/libraries/own_folder.h"
#include "engine/machine.h"
#include "expect_error.h"
#include "heddle/attention.h"
#include "heddle/backward.h"
#include "heddle/check.h"
#include "heddle/mods.h"
#include "scoped_environment.h"
#include "tune/problem_class.h"
#include "tune/tuning_record.h"

namespace heddle {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

class TunedPlans : public testing::Test {
 protected:
  OwnFolder folder_;
  std::filesystem::path cache_ = folder_.path() / "cache";
  ScopedVariable cache_variable_{"HEDDLE_CACHE_DIR", cache_.c_str()}, tuning_variable_{"HEDDLE_TUNING", nullptr};
  Tensor q_ = normal({1, 2, 70, 24}), k_ = normal({1, 2, 90, 24}), v_ = normal({1, 2, 90, 24});
  Tensor o_ = Tensor::zeros(DType::f32, {1, 2, 70, 24}), lse_ = Tensor::zeros(DType::f32, {1, 2, 70});
  AttentionOptions options_ = {.mask_mod = mods::causal()};

  static Tensor normal(const Dims& shape) {
    Tensor tensor = Tensor::empty(DType::f32, shape);
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      static_cast<float*>(tensor.data())[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
    }
    return tensor;
  }
  AttentionTensors tensors() const { return {q_, k_, v_, o_, lse_.view(), std::nullopt}; }

  Json explained(Tuning tuning) {
    options_.tuning = tuning;
    return Json::parse(AttentionPlan(tensors(), options_).explain_json());
  }
  std::string file() const { return std::filesystem::directory_iterator(cache_)->path(); }

  /// Records it as the fastest on this machine.
  void keep(const std::string& kernel) {
    explained(Tuning::again);
    Json record = Json::parse(std::ifstream(file()));
    for (Json& time : record["kernels"]) {
      if (time["kernel"] == kernel) time["seconds"] = 1e-9;
    }
    std::sort(record["kernels"].begin(), record["kernels"].end(),
              [](const Json& x, const Json& y) { return x["seconds"] < y["seconds"]; });
    ASSERT_EQ(record["kernels"][0]["kernel"], kernel);
    std::ofstream(file()) << record;
  }
};

TEST_F(TunedPlans, AgainMeasuresEachKernelAndKeepsTheTimes) {
  const Json tuned = explained(Tuning::again)["tuned"];
  EXPECT_EQ(tuned["measured"], "now");
  EXPECT_EQ(tuned["kernels"].size(), 4U);
  EXPECT_EQ(tuned["kernel"], tuned["kernels"][0]["kernel"]);
  double last = 0;
  for (const Json& time : tuned["kernels"]) {
    EXPECT_GE(time["seconds"], last);
    last = time["seconds"];
    EXPECT_GT(last, 0);
  }
  EXPECT_EQ(Json::parse(std::ifstream(file()))["kernels"], tuned["kernels"]);
}

TEST_F(TunedPlans, LaterPlansTakeTheFastestThatIsKept) {
  for (const std::int64_t rows : {12, 24, 48, 96}) {
    keep("cpu_forward " + std::to_string(rows) + " x 64");
    for (const Tuning tuning : {Tuning::automatic, Tuning::recorded, Tuning::measure}) {
      const Json explanation = explained(tuning);
      EXPECT_EQ(explanation["plan"]["tile"][0], rows);
      EXPECT_EQ(explanation["tuned"]["measured"], "before");
      EXPECT_EQ(explanation["tuned"]["seconds"], 1e-9);
    }
    AttentionPlan(tensors(), options_).run(tensors());
    EXPECT_TRUE(check_attention(q_, k_, v_, options_, o_, ConstTensorView(lse_)).passed);
  }
}

TEST_F(TunedPlans, OffIsThePlannersChoice) {
  const Json before = explained(Tuning::off)["plan"]["tile"];
  const std::int64_t other = before[0] == 12 ? 24 : 12;
  keep("cpu_forward " + std::to_string(other) + " x 64");
  const Json explanation = explained(Tuning::off);
  EXPECT_EQ(explanation["plan"]["tile"], before);
  EXPECT_TRUE(explanation["tuned"].is_null());
}

TEST_F(TunedPlans, NothingIsMeasuredUnlessAskedFor) {
  for (const Tuning tuning : {Tuning::automatic, Tuning::off, Tuning::recorded}) {
    EXPECT_TRUE(explained(tuning)["tuned"].is_null());
  }
  EXPECT_FALSE(std::filesystem::exists(cache_));
  EXPECT_EQ(explained(Tuning::measure)["tuned"]["measured"], "now");
  EXPECT_EQ(explained(Tuning::measure)["tuned"]["measured"], "before");
}

TEST_F(TunedPlans, TheEnvironmentSaysItForThoseThatDoNot) {
  const ScopedVariable variable("HEDDLE_TUNING", "measure");
  EXPECT_EQ(explained(Tuning::automatic)["tuned"]["measured"], "now");
  EXPECT_TRUE(explained(Tuning::off)["tuned"].is_null());
  for (const char* wrong : {"quick", "automatic", "Measure"}) {
    const ScopedVariable other("HEDDLE_TUNING", wrong);
    expect_error([&] { explained(Tuning::automatic); }, ErrorCode::invalid_argument,
                 std::string("HEDDLE_TUNING is '") + wrong + "'; off, recorded, measure and again are accepted");
  }
}

TEST_F(TunedPlans, ADamagedRecordIsToldAndMeasuredAnew) {
  explained(Tuning::again);
  std::ofstream(file()) << "{";
  const Json recorded = explained(Tuning::recorded)["tuned"];
  EXPECT_EQ(recorded["measured"], "no");
  EXPECT_THAT(recorded["trouble"].get<std::string>(), HasSubstr("is damaged"));
  EXPECT_EQ(explained(Tuning::measure)["tuned"]["measured"], "now");
  EXPECT_EQ(explained(Tuning::recorded)["tuned"]["measured"], "before");
}

TEST_F(TunedPlans, ARecordOfKernelsThatAreGoneChangesNothing) {
  explained(Tuning::again);
  Json record = Json::parse(std::ifstream(file()));
  for (Json& time : record["kernels"]) time["kernel"] = "cpu_forward 7 x 64";
  std::ofstream(file()) << record;
  const Json explanation = explained(Tuning::recorded);
  EXPECT_TRUE(explanation["tuned"].is_null());
  EXPECT_EQ(explanation["plan"], explained(Tuning::off)["plan"]);
}

TEST_F(TunedPlans, WhatIsNotKeptIsStillTaken) {
  std::ofstream(cache_) << "a file where the folder should be";
  const Json tuned = explained(Tuning::measure)["tuned"];
  EXPECT_EQ(tuned["measured"], "now");
  EXPECT_THAT(tuned["trouble"].get<std::string>(), HasSubstr("what was measured is not kept"));
}

TEST_F(TunedPlans, ProblemsWithoutElementsAreNotMeasured) {
  q_ = Tensor::zeros(DType::f32, {1, 2, 0, 24});
  o_ = Tensor::zeros(DType::f32, {1, 2, 0, 24}), lse_ = Tensor::zeros(DType::f32, {1, 2, 0});
  EXPECT_TRUE(explained(Tuning::again)["tuned"].is_null());
}

TEST_F(TunedPlans, CachedPlansKnowTuningByItsOption) {
  attention_into(tensors(), options_);
  options_.tuning = Tuning::again;
  const auto measured = [&] { return Json::parse(cached_plan(tensors(), options_).explain_json())["tuned"]; };
  EXPECT_EQ(measured()["measured"], "now");
  options_.tuning = Tuning::off;
  EXPECT_TRUE(measured().is_null());
  clear_plan_cache();
}

TEST_F(TunedPlans, OfBackwardsToo) {
  options_.tuning = Tuning::off;
  AttentionPlan(tensors(), options_).run(tensors());
  const Tensor d_o = normal(o_.shape());
  BackwardTensors backward{.q = q_, .k = k_, .v = v_, .o = o_, .lse = lse_, .d_o = d_o};
  const Tensor dq = Tensor::zeros(DType::f32, q_.shape()), dk = Tensor::zeros(DType::f32, k_.shape()),
               dv = Tensor::zeros(DType::f32, v_.shape());
  backward.dq = dq, backward.dk = dk, backward.dv = dv;
  options_.tuning = Tuning::again;
  const AttentionPlan plan(backward, options_);
  const Json tuned = Json::parse(plan.explain_json())["tuned"];
  ASSERT_EQ(tuned["kernels"].size(), 3U);
  Json record = Json::parse(std::ifstream(file()));
  for (std::size_t first = 0; first < 3; ++first) {
    std::rotate(record["kernels"].begin(), record["kernels"].begin() + 1, record["kernels"].end());
    for (std::size_t i = 0; i < 3; ++i) record["kernels"][i]["seconds"] = 1 + static_cast<double>(i);
    std::ofstream(file()) << record;
    options_.tuning = Tuning::recorded;
    const AttentionPlan taken(backward, options_);
    EXPECT_EQ(Json::parse(taken.explain_json())["tuned"]["kernel"], record["kernels"][0]["kernel"]);
    taken.run(backward);
    EXPECT_TRUE(check_backward(backward, options_).passed) << record["kernels"][0]["kernel"];
  }
}

}  // namespace
}  // namespace heddle
