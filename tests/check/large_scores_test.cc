// The criterion where scores are large: rows near 1e6 whose scores are exact, rows that a mask of -1e9 or finfo.min
// hides wholly or in part. What f32 computes there passes, and weights that are off by 3 % or by the number of keys
// fail.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "base/element.h"
#include "heddle/check.h"

namespace heddle::test::large_scores {
namespace {

constexpr double kLowest = std::numeric_limits<float>::lowest();
constexpr std::int64_t kRows = 6, kKeys = 24, kDim = 8;

double get(const Tensor& tensor, std::int64_t i) { return base::load_element(tensor.data(), tensor.dtype(), i); }
void set(const Tensor& tensor, std::int64_t i, double x) { base::store_element(tensor.data(), tensor.dtype(), i, x); }

/// One head. Scores are eighths near `level`, without a mod; or drawn ones, to which `bias[q_idx, kv_idx]` is added.
struct Large {
  DType real;
  Tensor q, k, v, d_o, bias, o, lse, rest, largest, dq, dk, dv;
  AttentionOptions options;

  explicit Large(DType dtype, double level = 0) : real(dtype == DType::f64 ? DType::f64 : DType::f32) {
    const auto zeros = [&](std::int64_t rows) { return Tensor::zeros(dtype, {1, 1, rows, kDim}); };
    const auto numbers = [&] { return Tensor::zeros(real, {1, 1, kRows}); };
    q = zeros(kRows), o = zeros(kRows), d_o = zeros(kRows), dq = zeros(kRows);
    k = zeros(kKeys), v = zeros(kKeys), dk = zeros(kKeys), dv = zeros(kKeys);
    lse = numbers(), rest = numbers(), largest = numbers();
    std::mt19937 rng(5);
    std::normal_distribution<double> normal;
    for (const Tensor* tensor : {&q, &k, &v, &d_o}) {
      const bool whole = level != 0 && (tensor == &q || tensor == &k);
      for (std::int64_t i = 0; i < tensor->count(); ++i) {
        set(*tensor, i, whole ? static_cast<int>(rng() % 5) - 2 : normal(rng));
      }
    }
    options.scale = 0.125;
    options.threads = 2;
    options.backend = BackendChoice::cpu;
    if (level == 0) return;
    for (std::int64_t i = 0; i < kRows; ++i) set(q, i * kDim, level / 1024);
    for (std::int64_t j = 0; j < kKeys; ++j) set(k, j * kDim, 8192);
  }
  /// `low` is added to the keys from `first` on.
  static Large masked(DType dtype, double low, std::int64_t first = 0) {
    Large large(dtype);
    large.bias = Tensor::zeros(large.real, {kRows, kKeys});
    for (std::int64_t i = 0; i < kRows * kKeys; ++i) set(large.bias, i, i % kKeys < first ? 0 : low);
    const Capture capture("bias", large.real, 2);
    large.options.score_mod = leaf::score() + capture(leaf::q_idx(), leaf::kv_idx());
    large.options.bindings.captures["bias"] = large.bias;
    return large;
  }

  Large& attend() {
    attention_into({.q = q, .k = k, .v = v, .o = o, .lse = lse, .max_scores = largest, .lse_rest = rest}, options);
    return *this;
  }
  CheckReport check() const { return check_attention(q, k, v, options, o, lse, largest, rest); }
  BackwardTensors tensors(bool with_rest) const {
    BackwardTensors tensors{.q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .dq = dq, .dk = dk, .dv = dv};
    if (with_rest) tensors.lse_rest = rest;
    return tensors;
  }
  Large& differentiate(bool with_rest) {
    attend();
    attention_backward_into(tensors(with_rest), options);
    return *this;
  }
  GradientReport check_gradients(bool with_rest) const { return check_backward(tensors(with_rest), options); }
};

struct Rows {
  const char* name;
  Large (*make)(DType);
};
const Rows kWholeRows[] = {
    {"exact near 1e6", [](DType dtype) { return Large(dtype, 917504); }},
    {"exact near -1e6", [](DType dtype) { return Large(dtype, -1048576); }},
    {"hidden by -1e9", [](DType dtype) { return Large::masked(dtype, -1e9); }},
    {"hidden by finfo.min", [](DType dtype) { return Large::masked(dtype, kLowest); }},
};
const Rows kMixedRows[] = {
    {"partly hidden by -1e9", [](DType dtype) { return Large::masked(dtype, -1e9, 9); }},
    {"partly hidden by finfo.min", [](DType dtype) { return Large::masked(dtype, kLowest, 9); }},
    {"partly hidden by -1e4", [](DType dtype) { return Large::masked(dtype, -1e4, 9); }},
};

template <class F>
void for_all_rows(F&& f) {
  for (const Rows& rows : kWholeRows) f(rows);
  for (const Rows& rows : kMixedRows) f(rows);
}

TEST(LargeScores, PassWhatTheCpuComputes) {
  for_all_rows([](const Rows& rows) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      if (dtype == DType::f16 && std::string(rows.name).starts_with("exact")) continue;  // 8192 * 1024
      Large large = rows.make(dtype);
      const CheckReport report = large.attend().check();
      EXPECT_TRUE(report.passed) << rows.name << ' ' << name(dtype) << '\n' << report.text();
      const GradientReport gradients = large.differentiate(true).check_gradients(true);
      EXPECT_TRUE(gradients.passed) << rows.name << ' ' << name(dtype) << '\n' << gradients.text();
    }
  });
}

// The reference keeps the scores beside -1e9 apart; so may a kernel.
TEST(LargeScores, PassTheReference) {
  for_all_rows([](const Rows& rows) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      Large large = rows.make(dtype);
      large.options.backend = BackendChoice::reference;
      const CheckReport report = large.attend().check();
      EXPECT_TRUE(report.passed) << rows.name << ' ' << name(dtype) << '\n' << report.text();
      const GradientReport gradients = large.differentiate(true).check_gradients(true);
      EXPECT_TRUE(gradients.passed) << rows.name << ' ' << name(dtype) << '\n' << gradients.text();
    }
  });
}

// p = exp(t - lse): off by up to 3 % near 1e6, and 1 instead of 1 / n beside -1e9.
TEST(LargeScores, FailGradientsOfALoneLse) {
  for (const Rows& rows : kWholeRows) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      // f64 has enough digits for these.
      if (dtype == DType::f64 && std::string(rows.name) != "hidden by finfo.min") continue;
      Large large = rows.make(dtype);
      const GradientReport alone = large.differentiate(false).check_gradients(false);
      EXPECT_FALSE(alone.passed) << rows.name << ' ' << name(dtype) << '\n' << alone.text();
      const GradientReport both = large.check_gradients(true);
      EXPECT_FALSE(both.passed) << rows.name << ' ' << name(dtype) << '\n' << both.text();
    }
  }
  for (const Rows& rows : kWholeRows) {
    Large large = rows.make(DType::bf16);
    const GradientReport both = large.differentiate(false).check_gradients(true);
    EXPECT_FALSE(both.passed) << rows.name << '\n' << both.text();
  }
}

// One key has all the weight of its row. An error of this size was once right in every row with a huge number in it.
TEST(LargeScores, FailAMeanThatIsOneValue) {
  for_all_rows([](const Rows& rows) {
    Large large = rows.make(DType::f32);
    large.attend();
    for (std::int64_t d = 0; d < kDim; ++d) set(large.o, 2 * kDim + d, get(large.v, 3 * kDim + d));
    EXPECT_FALSE(large.check().o.passed) << rows.name << '\n' << large.check().text();
  });
}

TEST(LargeScores, FailOOffByOnePerCent) {
  for_all_rows([](const Rows& rows) {
    Large large = rows.make(DType::f32);
    large.attend();
    for (std::int64_t d = 0; d < kDim; ++d) set(large.o, 2 * kDim + d, 1.01 * get(large.o, 2 * kDim + d));
    if (std::string(rows.name) == "hidden by -1e9") return;  // float64 and f32 have different means there
    EXPECT_FALSE(large.check().o.passed) << rows.name << '\n' << large.check().text();
  });
}

TEST(LargeScores, FailNumbersOfRowsThatAreOff) {
  for_all_rows([](const Rows& rows) {
    const bool is_whole = std::string(rows.name).starts_with("hidden");
    Large large = rows.make(DType::f32);
    large.attend();
    const double lse = get(large.lse, 1), largest = get(large.largest, 1);
    const double step = is_whole ? std::abs(lse) * 1e-5 : 1;
    set(large.lse, 1, lse + step);
    EXPECT_FALSE(large.check().lse->passed) << rows.name << '\n' << large.check().text();
    set(large.lse, 1, lse);
    set(large.largest, 1, largest + step);
    EXPECT_FALSE(large.check().max_scores->passed) << rows.name << '\n' << large.check().text();
    set(large.largest, 1, largest);
    EXPECT_TRUE(large.check().passed) << rows.name << '\n' << large.check().text();
    set(large.rest, 1, get(large.rest, 1) + (std::string(rows.name) == "hidden by -1e9" ? 5 : 0.01));
    EXPECT_FALSE(large.check().lse_rest->passed) << rows.name << '\n' << large.check().text();
  });
}

}  // namespace
}  // namespace heddle::test::large_scores
