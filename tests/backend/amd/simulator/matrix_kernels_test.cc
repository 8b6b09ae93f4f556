// Products by WMMA and MFMA, against sums in double.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/amd/simulator/half.h"
#include "backend/amd/simulator/simulated.h"

namespace heddle::amd::simulator {
namespace {

using MatrixKernels = OnEveryChip;
INSTANTIATE_TEST_SUITE_P(, MatrixKernels, ::testing::ValuesIn(chips()), [](const auto& chip) { return chip.param; });

struct Narrow {
  std::vector<std::uint16_t> bits;
  std::vector<double> values;
};

Narrow narrowed(std::size_t count, std::uint64_t seed, bool bfloat) {
  Narrow result;
  for (const float x : random_floats(count, seed)) {
    const std::uint32_t bits = bfloat ? float_to_bfloat(x) : float_to_half(x);
    result.bits.push_back(static_cast<std::uint16_t>(bits));
    result.values.push_back(bfloat ? bfloat_to_float(bits) : half_to_float(bits));
  }
  return result;
}

/// |actual - expected| in units of what n sums of f32 may lose.
void expect_product(const std::vector<float>& c, const std::vector<double>& a, const std::vector<double>& b,
                    std::size_t m, std::size_t n, std::size_t k) {
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (std::size_t d = 0; d < k; ++d) {
        sum += a[i * k + d] * b[d * n + j];
        size += std::fabs(a[i * k + d] * b[d * n + j]);
      }
      ASSERT_NEAR(c[i * n + j], sum, size * static_cast<double>(k) * 0x1p-24) << "row " << i << ", column " << j;
    }
  }
}

// Products that gfx9 alone has.
class Gfx9MatrixKernels : public OnEveryChip {};
INSTANTIATE_TEST_SUITE_P(, Gfx9MatrixKernels, ::testing::Values("gfx90a", "gfx942"),
                         [](const auto& chip) { return chip.param; });

class Product : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};
INSTANTIATE_TEST_SUITE_P(, Product, ::testing::Combine(::testing::ValuesIn(chips()), ::testing::Bool()),
                         [](const auto& p) {
                           return std::get<0>(p.param) + (std::get<1>(p.param) ? "_bf16" : "_f16");
                         });

TEST_P(Product, of_tiles) {
  const auto& [chip, bfloat] = GetParam();
  Simulated gpu("matrices", chip);
  const std::uint32_t m = 32, n = 48, k = 64;
  const Narrow a = narrowed(m * k, 1, bfloat), b = narrowed(k * n, 2, bfloat);
  const std::uint64_t to = gpu.output<float>(m * n);
  const Report report =
      gpu.run(bfloat ? "multiply_bf16" : "multiply_f16", {n / 16, m / 16, 1}, static_cast<std::uint32_t>(gpu.lanes()),
              Arguments().add(to).add(gpu.input(a.bits)).add(gpu.input(b.bits)).add(n).add(k));
  expect_product(gpu.values<float>(to, m * n), a.values, b.values, m, n, k);
  const std::uint64_t products = m / 16 * n / 16 * k / 16;
  EXPECT_EQ(report.of(Class::kMatrix).instructions, products);
  const std::uint64_t cycles = chip == "gfx1100" ? 32 : chip == "gfx90a" ? 32 : 16;
  EXPECT_EQ(report.of(Class::kMatrix).cycles, products * cycles);
}

TEST_P(Gfx9MatrixKernels, product_of_32_by_32) {
  Simulated gpu("matrices", GetParam());
  const std::uint32_t k = 40;
  const Narrow a = narrowed(32 * k, 3, false), b = narrowed(k * 32, 4, false);
  const std::uint64_t to = gpu.output<float>(32 * 32);
  gpu.run("multiply_32", {1, 1, 1}, 64, Arguments().add(to).add(gpu.input(a.bits)).add(gpu.input(b.bits)).add(k));
  expect_product(gpu.values<float>(to, 32 * 32), a.values, b.values, 32, 32, k);
}

TEST_P(Gfx9MatrixKernels, product_of_doubles) {
  Simulated gpu("matrices", GetParam());
  const std::uint32_t k = 20;
  std::vector<double> a, b;
  for (const float x : random_floats(16 * k, 5)) a.push_back(x * 1.1);
  for (const float x : random_floats(16 * k, 6)) b.push_back(x * 1.3);
  const std::uint64_t to = gpu.output<double>(256);
  gpu.run("multiply_f64", {1, 1, 1}, 64, Arguments().add(to).add(gpu.input(a)).add(gpu.input(b)).add(k));
  const auto c = gpu.values<double>(to, 256);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 16; ++j) {
      double sum = 0;
      for (std::size_t d = 0; d < k; ++d) sum = std::fma(a[i * k + d], b[d * 16 + j], sum);
      EXPECT_EQ(c[i * 16 + j], sum);
    }
  }
}

// gfx90a's matrix unit takes f16 denormals for zero; the others multiply them.
TEST_P(MatrixKernels, denormals) {
  Simulated gpu("matrices", GetParam());
  std::vector<std::uint16_t> a(256), b(256, 0x3c00);
  for (std::size_t i = 0; i < 16; ++i) a[i * 16] = 1;  // 2^-24
  const std::uint64_t to = gpu.output<float>(256);
  gpu.run("multiply_f16", {1, 1, 1}, static_cast<std::uint32_t>(gpu.lanes()),
          Arguments().add(to).add(gpu.input(a)).add(gpu.input(b)).add(16u).add(16u));
  EXPECT_EQ(gpu.values<float>(to, 256), std::vector<float>(256, GetParam() == "gfx90a" ? 0.0f : 0x1p-24f));
}

}  // namespace
}  // namespace heddle::amd::simulator
