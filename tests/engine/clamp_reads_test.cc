// AttentionOptions::clamp_reads: reads that leave their tensors give the nearest element, on every backend, in every
// run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "expect_error.h"
#include "heddle/attention.h"
#include "heddle/check.h"
#include "heddle/mods.h"
#include "plan/mods/kernel_mods.h"
#include "problem/problem.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

Tensor waves(const Dims& shape, int seed) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  auto* x = static_cast<float*>(tensor.data());
  for (std::int64_t i = 0; i < tensor.count(); ++i) x[i] = std::sin(static_cast<float>((i + 1) * (seed + 3) % 1009));
  return tensor;
}

class ClampReads : public testing::Test {
 protected:
  ClampReads() {
    std::vector<std::int32_t> ids(60);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i / 13);
    std::memcpy(ids_.data(), ids.data(), sizeof(std::int32_t) * ids.size());
    options_.bindings.captures = {{"ids", ids_}, {"bias", bias_}, {"none", none_}};
    options_.clamp_reads = true;
  }
  Symbols symbols() const {
    Symbols all(options_.bindings);
    all.params["shift"] = ExprType::i32;
    return all;
  }
  /// Only what the mods read may be bound.
  void keep_read() {
    Symbols read;
    for (const Expr* mod : {&options_.score_mod, &options_.mask_mod, &options_.weight_mod}) {
      if (!mod->empty()) read.captures.merge(symbols_of(*mod).captures);
    }
    std::erase_if(options_.bindings.captures, [&](const auto& bound) { return !read.captures.contains(bound.first); });
  }
  AttentionResult run() {
    keep_read();
    return attention(q_, k_, v_, options_, true);
  }
  void expect_right(const AttentionResult& result) const {
    const CheckReport report = check_attention(q_, k_, v_, options_, result.o, result.lse.view());
    EXPECT_TRUE(report.passed) << report.text();
  }
  void expect_same(const AttentionResult& x, const AttentionResult& y) const {
    EXPECT_EQ(std::memcmp(x.o.data(), y.o.data(), static_cast<std::size_t>(x.o.count()) * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(x.lse.data(), y.lse.data(), static_cast<std::size_t>(x.lse.count()) * sizeof(float)), 0);
  }

  Tensor q_ = waves({1, 2, 60, 16}, 1), k_ = waves({1, 2, 60, 16}, 2), v_ = waves({1, 2, 60, 8}, 3);
  Tensor ids_ = Tensor::zeros(DType::i32, {60}), bias_ = waves({40, 30}, 4), none_ = Tensor::zeros(DType::f32, {0, 5});
  AttentionOptions options_;
};

TEST_F(ClampReads, IsNotTheDefault) {
  options_.clamp_reads = false;
  options_.mask_mod = parse("ids[q_idx + 3] == ids[kv_idx]", symbols());
  expect_error([&] { run(); }, ErrorCode::invalid_argument, HasSubstr("outside the tensor's extent of 60"));
}

// An index written with clip gives the same attention, bit for bit: blocks, scores and weights.
TEST_F(ClampReads, IsWhatClipSays) {
  struct Pair {
    const char* clamped;
    const char* clipped;
  };
  const Pair masks[] = {{"ids[q_idx + 3] == ids[kv_idx - 5]", "ids[min(q_idx + 3, 59)] == ids[max(kv_idx - 5, 0)]"},
                        {"ids[-q_idx] <= ids[kv_idx * 7]", "ids[0] <= ids[min(kv_idx * 7, 59)]"}};
  const Pair scores[] = {{"score + bias[q_idx, kv_idx]", "score + bias[min(q_idx, 39), min(kv_idx, 29)]"},
                         {"score * bias[kv_idx - q_idx, h]", "score * bias[clip(kv_idx - q_idx, 0, 39), h]"}};
  const AttentionOptions given = options_;
  for (const Pair& mask : masks) {
    for (const Pair& score : scores) {
      options_ = given;
      options_.mask_mod = parse(mask.clamped, symbols());
      options_.score_mod = options_.weight_mod = parse(score.clamped, symbols());
      options_.weight_mod = parse("bias[q_idx - 30, 40 - kv_idx]", symbols());
      const AttentionResult clamped = run();
      expect_right(clamped);
      options_ = given;
      options_.clamp_reads = false;
      options_.mask_mod = parse(mask.clipped, symbols());
      options_.score_mod = parse(score.clipped, symbols());
      options_.weight_mod = parse("bias[max(q_idx - 30, 0), clip(40 - kv_idx, 0, 29)]", symbols());
      expect_same(clamped, run());
    }
  }
}

TEST_F(ClampReads, AnEmptyTensorReadsAsZero) {
  options_.score_mod = parse("score + none[q_idx, kv_idx]", symbols());
  options_.mask_mod = parse("none[0, 0] == 0.0 and q_idx >= kv_idx", symbols());
  const AttentionResult result = run();
  expect_right(result);
  options_ = {};
  options_.mask_mod = mods::causal();
  expect_same(result, run());
}

TEST_F(ClampReads, EachRunMayReadElsewhere) {
  options_.score_mod = parse("score + bias[q_idx + shift, kv_idx]", symbols());
  options_.bindings.params["shift"] = std::int32_t{0};
  keep_read();
  Tensor o = Tensor::zeros(DType::f32, {1, 2, 60, 8}), lse = Tensor::zeros(DType::f32, {1, 2, 60});
  const AttentionTensors tensors = {q_, k_, v_, o, lse.view()};
  const AttentionPlan plan(tensors, options_);
  EXPECT_THAT(plan.explain(), HasSubstr("; reads clamped"));
  for (const std::int32_t shift : {0, -1000, 39, 2147483647}) {
    options_.bindings.params["shift"] = shift;
    plan.run(tensors, {.bindings = &options_.bindings});
    const CheckReport report = check_attention(q_, k_, v_, options_, o, lse.view());
    EXPECT_TRUE(report.passed) << shift << "\n" << report.text();
  }
}

TEST_F(ClampReads, AnUpdatedMaskIsClampedToo) {
  options_.mask_mod = parse("ids[q_idx + shift] == ids[kv_idx]", symbols());
  options_.bindings.params["shift"] = std::int32_t{0};
  keep_read();
  Tensor o = Tensor::zeros(DType::f32, {1, 2, 60, 8}), lse = Tensor::zeros(DType::f32, {1, 2, 60});
  const AttentionTensors tensors = {q_, k_, v_, o, lse.view()};
  AttentionPlan plan(tensors, options_);
  for (const std::int32_t shift : {30, -55}) {
    options_.bindings.params["shift"] = shift;
    plan.update(options_.bindings);
    plan.run(tensors);
    const CheckReport report = check_attention(q_, k_, v_, options_, o, lse.view());
    EXPECT_TRUE(report.passed) << shift << "\n" << report.text();
  }
}

// A block mask of clamped reads serves an attention that clamps, and no other.
TEST_F(ClampReads, GivenBlockMasks) {
  options_.mask_mod = parse("ids[q_idx + 3] == ids[kv_idx]", symbols());
  keep_read();
  options_.block_mask = std::make_shared<BlockMask>(BlockMask::build(
      options_.mask_mod, MaskShape::uniform(1, 2, 60, 60), {16, 16}, options_.bindings, 0, DType::f32, true));
  expect_right(run());
  options_.clamp_reads = false;
  expect_error([&] { run(); }, ErrorCode::invalid_argument, HasSubstr("outside the tensor's extent of 60"));
}

// TMA gives 0 outside of a tensor: a tile of what may be outside is read element by element.
TEST_F(ClampReads, AreNotStreamed) {
  const auto streams = [&](std::int64_t keys) {
    const Tensor bias = Tensor::zeros(DType::f32, {60, keys});
    options_.score_mod = leaf::score() + Capture("bias", DType::f32, 2)(leaf::q_idx(), leaf::kv_idx());
    options_.bindings.captures = {{"bias", bias}};
    Tensor o = Tensor::zeros(DType::f32, {1, 2, 60, 8});
    const problem::AttentionProblem problem = problem::validate({q_, k_, v_, o, {}}, options_);
    return plan::kernel_mods(problem).streamed.has_value();
  };
  EXPECT_TRUE(streams(60));
  EXPECT_TRUE(streams(64));
  EXPECT_FALSE(streams(56));
}

}  // namespace
}  // namespace heddle::test
