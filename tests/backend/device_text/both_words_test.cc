// The end of a row whose lse is asked for in two words, by Hopper's forward: compiled by the host's compiler, against
// float64. lse + lse_rest keeps the digits of ln l, whatever the row's maximum is.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>

#include "backend/device_text/expression_text.h"
#include "backend/device_text/kernel_pieces.h"

namespace heddle::device_text::test::both_words {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kLn2 = 0.6931471805599453;

/// After the mods' text.
constexpr const char* kText = R"(
#include "fragments/sink.cuh"
#include "fragments/softmax.cuh"

extern "C" void end_row_in_two(float m, const float* unit, float headroom, float l, float sink, float* end) {
  const heddle::RowEndInTwo found = heddle::end_with_sink_in_two(m, {unit[0], unit[1], headroom}, l, sink);
  end[0] = found.first.factor;
  end[1] = found.first.lse;
  end[2] = found.rest;
}

/// A softmax over blocks of 16 keys, of which a thread has 4 columns of two rows: products that `scale` makes t, and
/// `log2` powers of two. safe: the maximum runs. Returns 0 where the tile would be computed again.
extern "C" int close_softmax(const float* s, int blocks, bool safe, float scale, float log2, const float* natural,
                             float* end) {
  constexpr heddle::WeightRange kRange = {false, 0, 1, 0, 0};
  heddle::Softmax<16, kRange, false, false, false, heddle::ScoreForm::plain, true> softmax;
  softmax.safe = safe;
  for (int block = 0; block < blocks; ++block) {
    float p[8];
    for (int i = 0; i < 8; ++i) p[i] = s[8 * block + i];
    const float before[2] = {softmax.rows.m[0], softmax.rows.m[1]};
    if (block > 0 && softmax.exact) softmax.set_limit();
    softmax.begin_step();
    softmax.step(p, log2);
    float rescale[2];
    if (block > 0 && softmax.moves(before)) softmax.settle(p, before, rescale, safe ? log2 : 1.0F);
  }
  const float m = softmax.rows.m[0], l = softmax.rows.l[0];
  end[0] = safe ? std::fma(m, scale, heddle::ptx::kLn2 * heddle::ptx::log2_fast(l))
                : heddle::ptx::kLn2 * (m + heddle::ptx::log2_fast(l));
  const heddle::NaturalUnit unit = {safe ? scale : natural[0], safe ? 0 : natural[1], 0};
  end[1] = heddle::rest_of_lse(m, unit, l, end[0]);
  return safe || l < softmax.kLargestSum;
}
)";

template <class Function>
Function function(const char* name) {
  static const std::shared_ptr<void> library = load_without_mods(kText);
  return reinterpret_cast<Function>(dlsym(library.get(), name));
}

/// Powers of two times the sum of both are natural, where kernels' factors are rounded.
struct Natural {
  float of[2];
  explicit Natural(double natural)
      : of{static_cast<float>(natural),
           static_cast<float>(natural - static_cast<double>(static_cast<float>(natural)))} {}
};

// lse in two words, of maxima in powers of two and of natural ones: their sum keeps the digits of ln l.
TEST(BothWords, OfRowsJoinedByASink) {
  const auto end_in_two =
      function<void (*)(float m, const float* unit, float headroom, float l, float sink, float* end)>("end_row_in_two");
  for (const double unit : {kLn2, 1.0, 0.1234567891}) {
    const Natural natural(unit);
    for (const float m : {-3e6F, -3e4F, -7.5F, 0.0F, 20.0F, 1e6F, 0x1p30F}) {
      for (const float headroom : {0.0F, 8.0F}) {
        for (const float l : {1.0F, 1.7F, 1000.0F}) {
          for (const double above : {-60.0, -3.5, -0.25, 0.0, 0.75, 12.0, 50.0, 200.0}) {
            const double top = (static_cast<double>(natural.of[0]) + static_cast<double>(natural.of[1])) * m;
            const float sink = static_cast<float>(top + above);
            const double difference = sink - top, larger = std::max(0.0, difference),
                         joined = l * std::exp2(-headroom) * std::exp(-larger) + std::exp(difference - larger);
            SCOPED_TRACE(testing::Message() << unit << ", m " << m << ", l " << l << ", sink " << sink);
            float end[3];
            end_in_two(m, natural.of, headroom, l, sink, end);
            const double both = (static_cast<double>(end[1]) - top - larger) + static_cast<double>(end[2]);
            EXPECT_NEAR(both, std::log(joined), 2e-6 * (1 + std::abs(difference) / 4));
            EXPECT_LE(std::abs(end[2]), 1.2e-7 * std::abs(end[1]) + 1e-6);
            if (difference > 80) continue;
            const double factor = std::exp2(-headroom) * std::exp(-larger) / joined;
            EXPECT_NEAR(end[0], factor, 4e-6 * factor * (1 + std::abs(difference) / 4));
          }
        }
      }
    }
    float end[3];
    end_in_two(-kInfinity, natural.of, 0, 0, -1e9F, end);
    EXPECT_EQ(end[0], 0);
    EXPECT_EQ(end[1], -1e9F);
    EXPECT_EQ(end[2], 0);
    end_in_two(-kInfinity, natural.of, 0, 0, -kInfinity, end);
    EXPECT_EQ(end[1], -kInfinity);
    EXPECT_EQ(end[2], 0);
    for (const auto& [m, l, sink] : {std::tuple(3.0F, 2.0F, kInfinity),
                                     {-kInfinity, 0.0F, kInfinity},
                                     {1.0F, kNaN, 0.0F},
                                     {1.0F, 1.0F, kNaN},
                                     {-kInfinity, kNaN, -kInfinity}}) {
      end_in_two(m, natural.of, 0, l, sink, end);
      for (const float x : end) EXPECT_TRUE(std::isnan(x)) << m << ' ' << l << ' ' << sink;
    }
  }
}

TEST(BothWords, OfSoftmaxes) {
  const auto close = function<int (*)(const float* s, int blocks, bool safe, float scale, float log2,
                                      const float* natural, float* end)>("close_softmax");
  std::mt19937_64 rng(5);
  for (const float scale : {0.125F, 0.3F, 1.0F}) {
    const float log2 = static_cast<float>(scale * 1.4426950408889634);
    const Natural natural(static_cast<double>(scale) / static_cast<double>(log2));
    int repeated = 0;
    for (const double level : {0.0, -700.0, 3e4, -1e6, 1.1e7, -3e8, 1e30}) {
      for (int round = 0; round < 10; ++round) {
        constexpr int kBlocks = 5;
        float s[8 * kBlocks];
        for (float& x : s) x = static_cast<float>(level + static_cast<double>(rng() % 64) / 8);
        double sum = 0, top = -kInfinity;
        for (int i = 0; i < 8 * kBlocks; ++i) top = i % 4 > 1 ? top : std::max<double>(top, s[i]);
        for (int i = 0; i < 8 * kBlocks; ++i) {
          if (i % 4 <= 1) sum += std::exp(static_cast<double>(scale) * (s[i] - top));
        }
        for (const bool safe : {false, true}) {
          if (scale == 0.3F && level > 1e20) continue;  // f32 does not hold what is left of lse, and ln l beside it
          SCOPED_TRACE(testing::Message() << level << ", scale " << scale << (safe ? ", safe" : ""));
          float end[2];
          if (close(s, kBlocks, safe, scale, log2, natural.of, end) == 0) {
            ++repeated;
            continue;
          }
          const double both = (static_cast<double>(end[0]) - scale * top) + static_cast<double>(end[1]);
          // m moves to a weight rounded.
          EXPECT_NEAR(both, std::log(sum), 2e-6 + (safe ? 0 : 0x1p-23 * std::abs(scale * level)));
        }
      }
    }
    EXPECT_EQ(repeated, scale == 0.3F ? 40 : 50);  // beyond 2^10
  }
}

}  // namespace
}  // namespace heddle::device_text::test::both_words
