// Rows whose scores are all far from 0: softmax does not change if all scores of a row move by the same amount. The
// criterion says little of such rows (any rounding of a score is much), so these scores are exact, and o is compared
// with a mean of values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "heddle/attention.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

constexpr std::int64_t kHeads = 2, kQueries = 130, kKeys = 200;

Tensor filled(const Dims& shape, DType dtype, const std::function<float(std::int64_t)>& value) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  auto* to = static_cast<float*>(tensor.data());
  for (std::int64_t i = 0; i < tensor.count(); ++i) to[i] = value(i);
  return tensor.to(dtype);
}
Tensor there(const Tensor& tensor) {
  return gpu_backend() == BackendChoice::cpu ? tensor : tensor.to(device_under_test());
}
std::vector<float> numbers(const Tensor& tensor) {
  const Tensor wide = tensor.to(Device{}).to(DType::f32);
  const auto* from = static_cast<const float*>(wide.data());
  return {from, from + wide.count()};
}

/// Every product of a query and a key below `few` is `score`, of other keys nothing near it; scale 1.
struct Exact {
  DType dtype;
  std::int64_t dim, queries, few;
  double score;

  double top() const { return std::exp2(std::floor(std::log2(std::abs(score)) / 2)); }
  Tensor q() const {
    return filled({1, kHeads, queries, dim}, dtype,
                  [&](std::int64_t i) { return static_cast<float>(i % dim == 0 ? top() : 0); });
  }
  Tensor k() const {
    return filled({1, kHeads, kKeys, dim}, dtype, [&](std::int64_t i) {
      const double own = score / top(), other = score > 0 ? own / 2 : own * 1.5;
      return static_cast<float>(i % dim != 0 ? 0 : i / dim % kKeys < few ? own : other);
    });
  }
  Tensor v() const {
    return filled({1, kHeads, kKeys, dim}, dtype, [](std::int64_t i) { return std::sin(static_cast<float>(i)); });
  }
};

void expect_means(const Exact& exact, const AttentionOptions& mods, double added) {
  SCOPED_TRACE(testing::Message() << name(exact.dtype) << ", dim " << exact.dim << ", " << exact.queries
                                  << " queries, scores " << exact.score << " + " << added << ", " << exact.few
                                  << " keys");
  const Tensor q = exact.q(), k = exact.k(), v = exact.v();
  AttentionOptions options = mods;
  options.scale = 1;
  options.backend = gpu_backend();
  const AttentionResult got = attention(there(q), there(k), there(v), options, true);
  const std::vector<float> o = numbers(got.o), lse = numbers(got.lse), values = numbers(v);
  const double unit = exact.dtype == DType::f32 ? 0x1p-20 : exact.dtype == DType::bf16 ? 0x1p-8 : 0x1p-10;
  const double want_lse = static_cast<float>(exact.score + added) + std::log(static_cast<double>(exact.few));
  for (std::int64_t row = 0; row < kHeads * exact.queries; ++row) {
    const std::int64_t head = row / exact.queries;
    ASSERT_LE(std::abs(lse[static_cast<std::size_t>(row)] - want_lse), 4e-7 * std::abs(want_lse)) << "row " << row;
    for (std::int64_t d = 0; d < exact.dim; ++d) {
      double mean = 0;
      for (std::int64_t j = 0; j < exact.few; ++j) {
        mean += values[static_cast<std::size_t>((head * kKeys + j) * exact.dim + d)] / static_cast<double>(exact.few);
      }
      ASSERT_LE(std::abs(o[static_cast<std::size_t>(row * exact.dim + d)] - mean), unit) << "row " << row;
    }
  }
}

void expect_all(const std::vector<DType>& dtypes) {
  const double lowest = -std::numeric_limits<float>::max();
  const Tensor zeros = there(filled({kKeys}, DType::f32, [](std::int64_t) { return 0.0F; })),
               low = there(filled({kKeys}, DType::f32, [&](std::int64_t) { return static_cast<float>(lowest); })),
               far = there(filled({kKeys}, DType::f32, [](std::int64_t) { return -0x1p30F; })),
               pairs = there(
                   filled({kQueries, kKeys}, DType::f32, [&](std::int64_t) { return static_cast<float>(lowest); }));
  const auto of_keys = [&](const Tensor& terms) {
    AttentionOptions options;
    options.score_mod = leaf::score() + Capture("terms", DType::f32, 1)(leaf::kv_idx());
    options.bindings.captures["terms"] = terms;
    return options;
  };
  AttentionOptions of_pairs;
  of_pairs.score_mod = leaf::score() + Capture("pairs", DType::f32, 2)(leaf::q_idx(), leaf::kv_idx());
  of_pairs.bindings.captures["pairs"] = pairs;
  AttentionOptions mapped = of_pairs;
  mapped.score_mod = min(leaf::score(), 1.0) + Capture("pairs", DType::f32, 2)(leaf::q_idx(), leaf::kv_idx());
  for (const DType dtype : dtypes) {
    for (const std::int64_t dim : {16, 128}) {
      for (const std::int64_t queries : {std::int64_t{1}, kQueries}) {
        for (const double score : {0x1p13, 0x1p20, 0x1p28, -0x1p28, 0x1p30, -0x1p30}) {
          for (const std::int64_t few : {kKeys, std::int64_t{7}, std::int64_t{70}}) {
            expect_means({dtype, dim, queries, few, score}, {}, 0);
          }
          expect_means({dtype, dim, queries, 70, score}, of_keys(zeros), 0);
        }
        if (dtype != DType::f16) {  // whose numbers end at 2^16
          for (const double score : {0x1p37, -0x1p37, 0x1p60, -0x1p60}) {
            expect_means({dtype, dim, queries, 7, score}, {}, 0);
          }
        }
        // Small scores vanish beside the terms.
        const Exact small = {dtype, dim, queries, kKeys, 1};
        expect_means(small, of_keys(low), lowest);
        expect_means(small, of_keys(far), -0x1p30);
        expect_means(small, of_pairs, lowest);
        expect_means(small, mapped, lowest);
      }
    }
  }
}

class GpuLargeScores : public GpuTest {
 protected:
  void SetUp() override {
    clear_plan_cache();  // of another family's plans
    GpuTest::SetUp();
  }
};
TEST_F(GpuLargeScores, AreShifted) { expect_all({DType::bf16, DType::f16}); }

class GpuLargeScoresMma : public GpuLargeScores {
  const ScopedVariable family_{"HEDDLE_FAMILY", gpu_backend() == BackendChoice::cuda ? "forward_mma" : nullptr};
};
TEST_F(GpuLargeScoresMma, AreShifted) { expect_all({DType::bf16, DType::f16, DType::f32}); }

}  // namespace
}  // namespace heddle::test
