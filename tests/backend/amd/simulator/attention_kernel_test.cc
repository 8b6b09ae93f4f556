// A fused attention from end to end: its result against f64, and what the simulator counts of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "backend/amd/simulator/half.h"
#include "backend/amd/simulator/simulated.h"

namespace heddle::amd::simulator {
namespace {

constexpr std::uint32_t kDim = 64;

struct Halves {
  std::vector<std::uint16_t> bits;
  std::vector<double> values;
};

Halves halves(std::size_t count, std::uint64_t seed) {
  Halves result;
  for (const float x : random_floats(count, seed)) {
    result.bits.push_back(static_cast<std::uint16_t>(float_to_half(x)));
    result.values.push_back(half_to_float(result.bits.back()));
  }
  return result;
}

struct Case {
  std::uint32_t heads, queries, keys;
  bool causal;
};

class AttentionKernel : public OnEveryChip {
 protected:
  Report launch(Simulated& gpu, const std::string& kernel, const Case& c) {
    q_ = halves(std::size_t{c.heads} * c.queries * kDim, 1);
    k_ = halves(std::size_t{c.heads} * c.keys * kDim, 2);
    v_ = halves(std::size_t{c.heads} * c.keys * kDim, 3);
    o_ = gpu.output<float>(std::size_t{c.heads} * c.queries * kDim, "o");
    lse_ = gpu.output<float>(std::size_t{c.heads} * c.queries, "lse");
    const float scale = 1.4426950408889634f / std::sqrt(static_cast<float>(kDim));
    const std::clock_t start = std::clock();
    Report report = gpu.launch(kernel, {(c.queries + 63) / 64, c.heads, 1}, static_cast<std::uint32_t>(4 * gpu.lanes()),
                               Arguments()
                                   .add(o_)
                                   .add(lse_)
                                   .add(gpu.input(q_.bits, "q"))
                                   .add(gpu.input(k_.bits, "k"))
                                   .add(gpu.input(v_.bits, "v"))
                                   .add(c.queries)
                                   .add(c.keys)
                                   .add(scale)
                                   .add(std::uint32_t{c.causal}));
    seconds_ = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    return report;
  }

  /// The largest difference from softmax(q k^T / sqrt(64)) v in f64, of o and of lse.
  double error(const Simulated& gpu, const Case& c) const {
    const auto o = gpu.values<float>(o_, std::size_t{c.heads} * c.queries * kDim),
               lse = gpu.values<float>(lse_, std::size_t{c.heads} * c.queries);
    double worst = 0;
    for (std::size_t h = 0; h < c.heads; ++h) {
      for (std::size_t i = 0; i < c.queries; ++i) {
        const std::size_t count = c.causal ? std::min<std::size_t>(c.keys, i + 1) : c.keys, row = h * c.queries + i;
        std::vector<double> p(count);
        double sum = 0, top = -HUGE_VAL;
        for (std::size_t j = 0; j < count; ++j) {
          for (std::size_t d = 0; d < kDim; ++d)
            p[j] += q_.values[row * kDim + d] * k_.values[(h * c.keys + j) * kDim + d] / 8;
          top = std::max(top, p[j]);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        worst = std::max(worst, std::fabs(lse[row] - (top + std::log(sum))));
        for (std::size_t d = 0; d < kDim; ++d) {
          double expected = 0;
          for (std::size_t j = 0; j < count; ++j) expected += p[j] / sum * v_.values[(h * c.keys + j) * kDim + d];
          worst = std::max(worst, std::fabs(o[row * kDim + d] - expected));
        }
      }
    }
    return worst;
  }

  Halves q_, k_, v_;
  std::uint64_t o_ = 0, lse_ = 0;
  double seconds_ = 0;  ///< of the processor, for the launch
};
INSTANTIATE_TEST_SUITE_P(, AttentionKernel, ::testing::ValuesIn(chips()), [](const auto& chip) { return chip.param; });

TEST_P(AttentionKernel, is_right) {
  for (const Case& c :
       {Case{1, 64, 64, false}, {2, 100, 77, false}, {1, 130, 130, true}, {1, 1, 40, false}, {1, 70, 33, true}}) {
    Simulated gpu("attention", GetParam());
    const Report report = launch(gpu, "attention", c);
    EXPECT_EQ(report.findings.text(), "") << c.queries << " × " << c.keys;
    EXPECT_LT(error(gpu, c), 2e-3) << c.queries << " × " << c.keys;
  }
}

TEST_P(AttentionKernel, cost) {
  Simulated gpu("attention", GetParam());
  const Case c{2, 128, 128, false};
  const Report report = launch(gpu, "attention", c);
  EXPECT_EQ(report.findings.text(), "");
  // Each tile of 32 keys: 8 products of 16 × 16 × 16 for the scores and 8 for o, in each wave.
  EXPECT_EQ(report.of(Class::kMatrix).instructions, 2u * 2 * 4 * 4 * 16);
  EXPECT_GT(report.matrix_share(), 0.1);
  EXPECT_EQ(gpu.object().kernel("attention").vgpr_spills, 0);
  fmt::print("{}: {:.2f} M wave-instructions a second of the processor\n{}", GetParam(),
             static_cast<double>(report.instructions) / seconds_ * 1e-6, report.text());
}

TEST_P(AttentionKernel, missing_barrier_is_found) {
  Simulated gpu("attention", GetParam());
  const Report report = launch(gpu, "attention_without_a_barrier", {1, 64, 128, false});
  EXPECT_TRUE(report.findings.has(Fault::kRace)) << report.findings.text();
}

}  // namespace
}  // namespace heddle::amd::simulator
