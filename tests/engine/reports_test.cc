#include "engine/reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "expect_error.h"
#include "heddle/backward.h"
#include "heddle/events.h"

namespace heddle {
namespace {

using Json = nlohmann::json;

Tensor halves(const Dims& shape) {
  Tensor made = Tensor::empty(DType::f32, shape);
  std::fill_n(static_cast<float*>(made.data()), made.count(), 0.5F);
  return made;
}

class Reports : public testing::Test {
 protected:
  Reports() {
    clear_plan_cache();
    set_event_listener([this](const std::string& event) { heard_.push_back(Json::parse(event)); });
  }
  ~Reports() override { set_event_listener({}); }

  std::vector<Json> heard_;
  Tensor x_ = halves({1, 2, 5, 8});
};

TEST_F(Reports, APlanIsReportedOnce) {
  attention(x_, x_, x_);
  attention(x_, x_, x_);
  ASSERT_EQ(heard_.size(), 1U);
  const Json& plan = heard_[0];
  EXPECT_EQ(plan["event"], "plan");
  EXPECT_EQ(plan["pass"], "forward");
  EXPECT_EQ(plan["device"], "the CPU");
  EXPECT_EQ(plan["family"], "cpu_forward");
  EXPECT_EQ(plan["tile"].size(), 2U);
  EXPECT_GT(plan["workspace_bytes"].get<std::int64_t>(), 0);
  EXPECT_GE(plan["ms"].get<double>(), 0);
  EXPECT_THAT(plan["problem"].get<std::string>(), testing::HasSubstr("f32"));
  EXPECT_EQ(plan["call"]["q"], (Json{{"dtype", "f32"}, {"shape", {1, 2, 5, 8}}}));
}

TEST_F(Reports, ARefusedPlanSaysWhy) {
  const Tensor wide = halves({1, 2, 5, 9});
  expect_error([&] { attention(x_, wide, x_); }, ErrorCode::invalid_argument,
               testing::HasSubstr("q has head dimension 8 and k 9"));
  ASSERT_EQ(heard_.size(), 1U);
  EXPECT_EQ(heard_[0]["event"], "refusal");
  EXPECT_EQ(heard_[0]["of"], "call");
  EXPECT_EQ(heard_[0]["code"], "invalid_argument");
  EXPECT_THAT(heard_[0]["reason"].get<std::string>(), testing::HasSubstr("q has head dimension 8 and k 9"));
}

TEST_F(Reports, ARefusalIsReportedOnce) {
  const Tensor wide = halves({1, 2, 5, 9}), o = halves({1, 2, 5, 8});
  for (std::size_t i = 1; i < 3; ++i) {
    expect_error([&] { attention_into(x_, wide, x_, o, {}); }, ErrorCode::invalid_argument,
                 testing::HasSubstr("q has head dimension 8 and k 9"));
    ASSERT_EQ(heard_.size(), i);
    EXPECT_EQ(heard_.back()["of"], "plan");
  }
}

TEST_F(Reports, ARefusedRunSaysWhy) {
  const Tensor o = halves({1, 2, 5, 8}), shorter = halves({1, 2, 4, 8});
  const AttentionTensors tensors{.q = x_, .k = x_, .v = x_, .o = o};
  const AttentionPlan plan(tensors, {});
  AttentionTensors others = tensors;
  others.o = shorter;
  expect_error([&] { plan.run(others); }, ErrorCode::invalid_argument, testing::HasSubstr("o is f32 [1, 2, 4, 8]"));
  ASSERT_EQ(heard_.size(), 2U);
  EXPECT_EQ(heard_[1]["event"], "refusal");
  EXPECT_EQ(heard_[1]["of"], "run");
}

TEST_F(Reports, ABackwardIsAPlanOfItsOwn) {
  const Tensor o = halves({1, 2, 5, 8}), lse = halves({1, 2, 5});
  attention_backward({.q = x_, .k = x_, .v = x_, .o = o, .lse = lse, .d_o = o});
  ASSERT_EQ(heard_.size(), 1U);
  EXPECT_EQ(heard_[0]["pass"], "backward");
}

}  // namespace
}  // namespace heddle
