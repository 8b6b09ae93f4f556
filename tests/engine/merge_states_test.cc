// merge_states against its formula, its edges, its use (an attention split over its keys), and what it refuses.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "heddle/heddle.h"

namespace heddle {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor random_tensor(DType dtype, const Dims& shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Tensor x = Tensor::empty(DType::f64, shape);
  for (std::int64_t i = 0; i < x.count(); ++i) static_cast<double*>(x.data())[i] = normal(generator);
  return x.to(dtype);
}

Tensor filled(DType dtype, const Dims& shape, double value) {
  Tensor x = Tensor::empty(DType::f64, shape);
  std::fill_n(static_cast<double*>(x.data()), x.count(), value);
  return x.to(dtype);
}

/// One row of one element: parts as (o, lse).
struct Merged {
  double o, lse;
};
Merged merge_scalars(const std::vector<std::pair<double, double>>& states) {
  std::vector<Tensor> tensors;
  std::vector<ConstTensorView> o_parts, lse_parts;
  for (const auto& [o, lse] : states) {
    tensors.push_back(filled(DType::f64, {1, 1, 1, 1}, o));
    o_parts.push_back(tensors.back());
    tensors.push_back(filled(DType::f64, {1, 1, 1}, lse));
    lse_parts.push_back(tensors.back());
  }
  const Tensor o = filled(DType::f64, {1, 1, 1, 1}, kNan), lse = filled(DType::f64, {1, 1, 1}, kNan);
  merge_states(o_parts, lse_parts, o, lse.view());
  return {get_element(o, {0, 0, 0, 0}), get_element(lse, {0, 0, 0})};
}

TEST(MergeStates, IsTheWeightedMean) {
  const Merged two = merge_scalars({{1, 0.25}, {5, -1}});
  const double total = std::exp(0.25) + std::exp(-1);
  EXPECT_NEAR(two.o, (std::exp(0.25) + 5 * std::exp(-1)) / total, 1e-15);
  EXPECT_NEAR(two.lse, std::log(total), 1e-15);
  const Merged one = merge_scalars({{3, 700}});
  EXPECT_EQ(one.o, 3);
  EXPECT_EQ(one.lse, 700);
  // No exponential overflows.
  const Merged far = merge_scalars({{1, 1e6}, {9, -1e6}, {3, 1e6}});
  EXPECT_EQ(far.o, 2);
  EXPECT_NEAR(far.lse, 1e6 + std::log(2), 1e-9);
}

TEST(MergeStates, PartsThatAttendNothingCountNothing) {
  const Merged one = merge_scalars({{kNan, -kInfinity}, {7, 2}, {kInfinity, -kInfinity}});
  EXPECT_EQ(one.o, 7);
  EXPECT_EQ(one.lse, 2);
  const Merged none = merge_scalars({{kNan, -kInfinity}, {1, -kInfinity}});
  EXPECT_EQ(none.o, 0);
  EXPECT_EQ(none.lse, -kInfinity);
}

TEST(MergeStates, NanAndPlusInfinityStay) {
  for (const double lse : {kNan, kInfinity}) {
    const Merged merged = merge_scalars({{1, 2}, {3, lse}});
    EXPECT_TRUE(std::isnan(merged.o)) << lse;
    EXPECT_TRUE(std::isnan(merged.lse)) << lse;
  }
  EXPECT_TRUE(std::isnan(merge_scalars({{kNan, 1}, {3, 1}}).o));
}

TEST(MergeStates, JoinsAnAttentionThatWasSplitOverItsKeys) {
  const Tensor q = random_tensor(DType::f32, {2, 4, 70, 16}, 1), k = random_tensor(DType::f32, {2, 2, 150, 16}, 2),
               v = random_tensor(DType::f32, {2, 2, 150, 24}, 3);
  const AttentionResult whole = attention(q, k, v, {}, true);
  std::vector<AttentionResult> parts;
  std::vector<ConstTensorView> o_parts, lse_parts;
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 90}, {90, 90}, {90, 150}}) {
    parts.push_back(
        attention(q, slice(ConstTensorView(k), 2, begin, end), slice(ConstTensorView(v), 2, begin, end), {}, true));
    o_parts.push_back(parts.back().o);
    lse_parts.push_back(parts.back().lse);
  }
  const Tensor o = filled(DType::f32, {2, 4, 70, 24}, kNan), lse = filled(DType::f32, {2, 4, 70}, kNan);
  merge_states(o_parts, lse_parts, o, lse.view());
  for (std::int64_t i = 0; i < o.count(); ++i) {
    ASSERT_NEAR(static_cast<float*>(o.data())[i], static_cast<float*>(whole.o.data())[i], 2e-6) << i;
  }
  for (std::int64_t i = 0; i < lse.count(); ++i) {
    ASSERT_NEAR(static_cast<float*>(lse.data())[i], static_cast<float*>(whole.lse.data())[i], 2e-6) << i;
  }
}

TEST(MergeStates, StorageTypesAndStrides) {
  // [B, S, H, D] memory, parts of different types, an output of a third one.
  const Dims bhsd = {2, 3, 5, 7}, order = {0, 2, 1, 3};
  const Tensor a = random_tensor(DType::f16, {2, 5, 3, 7}, 1), b = random_tensor(DType::f64, bhsd, 2);
  const Tensor lse_a = random_tensor(DType::f32, {2, 3, 5}, 3), lse_b = random_tensor(DType::f64, {2, 3, 5}, 4);
  const Tensor o = filled(DType::bf16, {2, 5, 3, 7}, kNan);
  merge_states(std::vector<ConstTensorView>{permute(ConstTensorView(a), order), b},
               std::vector<ConstTensorView>{lse_a, lse_b}, permute(o.view(), order));
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t s = 0; s < 5; ++s) {
        const double wa = std::exp(get_element(lse_a, {i, h, s})), wb = std::exp(get_element(lse_b, {i, h, s}));
        for (std::int64_t d = 0; d < 7; ++d) {
          const double expected = (wa * get_element(a, {i, s, h, d}) + wb * get_element(b, {i, h, s, d})) / (wa + wb);
          EXPECT_NEAR(get_element(o, {i, s, h, d}), expected, 0x1p-8 * std::abs(expected) + 1e-12);
        }
      }
    }
  }
}

TEST(MergeStates, MayWriteInPlace) {
  const Dims shape = {1, 2, 200, 64}, rows = {1, 2, 200};
  const Tensor a = random_tensor(DType::f32, shape, 1), b = random_tensor(DType::f32, shape, 2);
  const Tensor lse_a = random_tensor(DType::f32, rows, 3), lse_b = random_tensor(DType::f32, rows, 4);
  const Tensor o = filled(DType::f32, shape, kNan), lse = filled(DType::f32, rows, kNan);
  const auto merge_into = [&](const Tensor& to, const Tensor& lse_to) {
    merge_states(std::vector<ConstTensorView>{a, b}, std::vector<ConstTensorView>{lse_a, lse_b}, to, lse_to.view());
  };
  merge_into(o, lse);
  merge_into(b, lse_a);
  EXPECT_EQ(std::memcmp(b.data(), o.data(), static_cast<std::size_t>(o.count()) * 4), 0);
  EXPECT_EQ(std::memcmp(lse_a.data(), lse.data(), static_cast<std::size_t>(lse.count()) * 4), 0);
}

TEST(MergeStates, RefusesWhatDoesNotFit) {
  const Dims shape = {1, 2, 3, 4}, rows = {1, 2, 3};
  const Tensor a = random_tensor(DType::f32, shape, 1), lse = random_tensor(DType::f32, rows, 2),
               o = Tensor::empty(DType::f32, shape);
  const Tensor lse_out = Tensor::empty(DType::f32, rows);
  const auto refuses = [](const std::vector<ConstTensorView>& o_parts, const std::vector<ConstTensorView>& lse_parts,
                          const TensorView& to, const std::optional<TensorView>& lse_to, const char* sentence) {
    try {
      merge_states(o_parts, lse_parts, to, lse_to);
      ADD_FAILURE() << "accepted; expected: " << sentence;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(sentence));
    }
  };
  refuses({}, {}, o, {}, "o_parts is empty; at least one part is accepted");
  refuses({a, a}, {lse}, o, {}, "o_parts has 2 parts and lse_parts 1; as many are accepted");
  refuses({random_tensor(DType::f32, {1, 2, 4, 4}, 1)}, {lse}, o, {},
          "o_parts[0] has shape [1, 2, 4, 4]; o's [1, 2, 3, 4] is accepted");
  refuses({a}, {random_tensor(DType::f32, {1, 2, 4}, 1)}, o, {},
          "lse_parts[0] has shape [1, 2, 4]; [1, 2, 3] is accepted");
  refuses({a, a.to(DType::i32)}, {lse, lse}, o, {},
          "o_parts[1] is i32; f64, f32, f16, bf16, e4m3 and e5m2 are accepted");
  refuses({a}, {lse.to(DType::f16)}, o, {}, "lse_parts[0] is f16; f32 and f64 are accepted");
  refuses({a}, {lse}, o, lse_out.to(DType::bf16).view(), "lse is bf16; f32 and f64 are accepted");
  refuses({a}, {lse}, Tensor::empty(DType::f32, rows), {},
          "o has shape [1, 2, 3]; 4 axes [B, Hq, Sq, Dv] are accepted");
  refuses({permute(ConstTensorView(a), {0, 1, 3, 2})}, {lse}, permute(o.view(), {0, 1, 3, 2}), {},
          "a last stride of 1 is accepted");
  refuses({a}, {lse}, TensorView(o.data(), DType::f32, shape, {0, 0, 4, 1}), {}, "so that elements share memory");
  refuses({a}, {lse}, TensorView(nullptr, DType::f32, shape), {}, "o is f32 [1, 2, 3, 4] but its data is null");

  // Partly over a part, over an lse, over each other.
  const Tensor buffer = filled(DType::f32, {100}, 0);
  auto* memory = static_cast<float*>(buffer.data());
  const TensorView low(memory, DType::f32, shape), high(memory + 4, DType::f32, shape);
  refuses({low}, {lse}, high, {}, "o overlaps o_parts[0] in memory");
  refuses({a}, {ConstTensorView(memory, DType::f32, rows)}, low, {}, "o overlaps lse_parts[0] in memory");
  refuses({a}, {lse}, low, TensorView(memory + 20, DType::f32, rows), "o overlaps lse in memory");
  refuses({low}, {lse}, o, TensorView(memory, DType::f32, rows), "lse overlaps o_parts[0] in memory");
}

}  // namespace
}  // namespace heddle
