// The elements that gradients of reads belong to, and the axes that split their work into tasks.
#include "plan/capture_sums.h"

#include <gtest/gtest.h>

#include "heddle/heddle.h"

namespace heddle::plan {
namespace {

struct Tensors {
  Tensor slopes = Tensor::zeros(DType::f32, {4}), pad = Tensor::zeros(DType::f32, {2, 50}),
         rows = Tensor::zeros(DType::f32, {50}), table = Tensor::zeros(DType::f32, {4, 120}),
         bias = Tensor::zeros(DType::f32, {2, 4, 50, 50}), square = Tensor::zeros(DType::f32, {50, 50});
  Bindings bindings{
      .captures =
          {{"slopes", slopes}, {"pad", pad}, {"rows", rows}, {"table", table}, {"bias", bias}, {"square", square}},
      .params = {{"cap", 2.0F}}};
};

problem::AttentionProblem problem_of(const char* score, std::vector<std::string> captures,
                                     std::vector<std::string> params = {}) {
  static const Tensors tensors;
  problem::AttentionProblem problem;
  problem.pass = problem::Pass::backward;
  problem.batch = 2;
  problem.q_heads = problem.kv_heads = 4;
  problem.sequences.assign(2, {.q_len = 50, .kv_len = 50});
  problem.score_mod = parse(score, Symbols(tensors.bindings));
  problem.wanted.captures = std::move(captures);
  problem.wanted.params = std::move(params);
  return problem;
}

CaptureSum sum_of(const problem::AttentionProblem& problem) {
  const Tensors tensors;
  const std::vector<CaptureSum> sums = capture_sums(problem, tensors.bindings);
  EXPECT_EQ(sums.size(), 1U);
  return sums.front();
}

ReadDependence dependence_of(const char* score, const char* capture) {
  const CaptureSum sum = sum_of(problem_of(score, {capture}));
  EXPECT_EQ(sum.reads.size(), 1U);
  return sum.reads.front().dependence;
}

// Positions by granules are read as q_idx and kv_idx, and go further than rows and keys do.
TEST(CaptureSums, ReadsByPosition) {
  Tensors tensors;
  const Tensor granules = Tensor::zeros(DType::i32, {1});
  for (const char* name : {"q_granules", "kv_granules"}) tensors.bindings.captures[name] = granules;
  problem::AttentionProblem problem = problem_of("score + at(rows, kv_idx, 0.0)", {"rows"});
  EXPECT_FALSE(capture_sums(problem, tensors.bindings).front().reads.front().skips_outside);
  problem.score_mod = mods::by_granules(problem.score_mod, Capture("q_granules", DType::i32, 1),
                                        Capture("kv_granules", DType::i32, 1), 64, 1 << 10);
  const Places places = places_of(problem);
  const CaptureSum placed = capture_sums(problem, tensors.bindings, places).front();
  EXPECT_EQ(print(placed.reads.front().indices.front()), "kv_idx");
  EXPECT_EQ(placed.reads.front().dependence, ReadDependence::keys);
  EXPECT_TRUE(placed.reads.front().skips_outside);
  EXPECT_FALSE(placed.of_key) << "two granules may have one position";
}

TEST(CaptureSums, PlacesOfReads) {
  EXPECT_EQ(dependence_of("score * slopes[h]", "slopes"), ReadDependence::one);
  EXPECT_EQ(dependence_of("score + pad[b, kv_idx]", "pad"), ReadDependence::keys);
  EXPECT_EQ(dependence_of("score + rows[q_idx]", "rows"), ReadDependence::queries);
  EXPECT_EQ(dependence_of("score + bias[b, h, q_idx, kv_idx]", "bias"), ReadDependence::key_rows);
  EXPECT_EQ(dependence_of("score + square[q_idx // 2, kv_idx]", "square"), ReadDependence::key_rows);
  EXPECT_EQ(dependence_of("score + square[kv_idx, q_idx]", "square"), ReadDependence::any);
  EXPECT_EQ(dependence_of("score + square[kv_idx, kv_idx] * f32(q_idx)", "square"), ReadDependence::keys);
  EXPECT_EQ(dependence_of("score + square[(q_idx + kv_idx) // 2, kv_idx]", "square"), ReadDependence::any);
  EXPECT_EQ(dependence_of("score + table[h, kv_idx - q_idx + 60]", "table"), ReadDependence::any);
  EXPECT_EQ(dependence_of("score + at(rows, i32(score), 0.0)", "rows"), ReadDependence::any) << "an index of the score";
}

TEST(CaptureSums, OwnersAreToldApartByAxesThatAreLeaves) {
  const auto owners = [](const char* score, const char* capture) {
    const CaptureSum sum = sum_of(problem_of(score, {capture}));
    return std::tuple(sum.of_sequence, sum.of_head, sum.of_key);
  };
  EXPECT_EQ(owners("score + bias[b, h, q_idx, kv_idx]", "bias"), std::tuple(true, true, true));
  EXPECT_EQ(owners("score + bias[0, h, q_idx, kv_idx]", "bias"), std::tuple(false, true, true));
  EXPECT_EQ(owners("score + pad[b, kv_idx]", "pad"), std::tuple(true, false, true));
  EXPECT_EQ(owners("score + square[q_idx, kv_idx]", "square"), std::tuple(false, false, true));
  EXPECT_EQ(owners("score + square[q_idx, kv_idx // 2]", "square"), std::tuple(false, false, false));
  EXPECT_EQ(owners("score + square[q_idx, kv_idx] + square[kv_idx, q_idx]", "square"), std::tuple(false, false, false))
      << "two reads of one place by different tasks";
}

TEST(CaptureSums, SequencesThatBeginElsewhereShareKeys) {
  problem::AttentionProblem problem = problem_of("score + square[q_idx, kv_idx]", {"square"});
  problem.sequences[1].kv_start = 7;
  EXPECT_FALSE(sum_of(problem).of_key);
  problem.sequences[0].kv_start = 7;
  EXPECT_TRUE(sum_of(problem).of_key);
  problem.reads_leave = true;
  EXPECT_FALSE(sum_of(problem).of_key) << "what is read outside is read at the edge";
}

TEST(CaptureSums, ParamsAndWhatIsNotSmooth) {
  const std::vector<CaptureSum> sums =
      capture_sums(problem_of("cap * tanh(score / cap) + floor(rows[q_idx])", {"rows"}, {"cap"}), Tensors().bindings);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_TRUE(sums[0].reads.empty());
  EXPECT_TRUE(sums[1].param);
  EXPECT_EQ(sums[1].count, 1);
  EXPECT_EQ(sums[1].reads.size(), 1U);
}

}  // namespace
}  // namespace heddle::plan
