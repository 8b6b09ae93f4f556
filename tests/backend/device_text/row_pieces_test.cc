// Pieces of kernels that a row's end is made of, compiled by the host's compiler: rows joined by a sink, and the
// weights of normalizers without a softmax, against float64; and where rows stand in their tile.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/device_text/expression_text.h"
#include "backend/device_text/kernel_pieces.h"

namespace heddle::device_text::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// After the mods' text.
constexpr const char* kText = R"(
#include "fragments/element_weights.cuh"
#include "fragments/sink.cuh"
#include "fragments/tile_rows.cuh"

template <int kPacked>
void find_row(int warpgroup, int* row) {
  constexpr heddle::shared::ForwardSm90Config kConfig = {.warpgroups = 3, .packed_queries = kPacked};
  row[0] = heddle::head_of_warp<kConfig>(warpgroup);
  row[1] = heddle::query_of_thread<kConfig>(warpgroup);
}
extern "C" void row_of_thread(int packed, int warpgroup, unsigned thread, int* row) {
  threadIdx.x = thread;
  if (packed == 0) find_row<0>(warpgroup, row);
  if (packed == 16) find_row<16>(warpgroup, row);
  if (packed == 32) find_row<32>(warpgroup, row);
  if (packed == 64) find_row<64>(warpgroup, row);
}

extern "C" void end_row(float m, float l, float sink, float* end) {
  const heddle::RowEnd found = heddle::end_with_sink(m, l, sink);
  end[0] = found.factor;
  end[1] = found.lse;
  end[2] = found.sunk ? 1 : 0;
}

/// Blocks of 16 keys, of which a thread has 4 columns of two rows; o of the first row with the values v.
template <class Weights>
void attend(const float* s, const float* v, int blocks, bool safe, float scale, float* end, float (*stored)(float)) {
  Weights weights;
  weights.safe = safe;
  float o = 0;
  for (int block = 0; block < blocks; ++block) {
    float p[8];
    for (int i = 0; i < 8; ++i) p[i] = s[8 * block + i];
    const float before[2] = {weights.rows.m[0], weights.rows.m[1]};
    weights.begin_step();
    weights.step(p, scale);
    if (block > 0 && weights.moves(before)) {
      float rescale[2];
      weights.settle(p, before, rescale, 1.0F);
      o *= rescale[0];
    }
    for (int i : {0, 1, 4, 5}) o += stored(p[i]) * v[8 * block + i];
  }
  end[0] = o * weights.factor(0);
  end[1] = o;
}
extern "C" void attend_none_f16(const float* s, const float* v, int blocks, bool safe, float scale, float* end,
                                float (*stored)(float)) {
  attend<heddle::ElementWeights<16, true, false, heddle::ScoreForm::plain, heddle::Normalizer::none>>(
      s, v, blocks, safe, scale, end, stored);
}
extern "C" void attend_none(const float* s, const float* v, int blocks, bool safe, float scale, float* end,
                            float (*stored)(float)) {
  attend<heddle::ElementWeights<16, false, false, heddle::ScoreForm::plain, heddle::Normalizer::none>>(
      s, v, blocks, safe, scale, end, stored);
}
extern "C" void attend_sigmoid_f16(const float* s, const float* v, int blocks, bool safe, float scale, float* end,
                                   float (*stored)(float)) {
  attend<heddle::ElementWeights<16, true, false, heddle::ScoreForm::plain, heddle::Normalizer::sigmoid>>(
      s, v, blocks, safe, scale, end, stored);
}
extern "C" void attend_sigmoid(const float* s, const float* v, int blocks, bool safe, float scale, float* end,
                               float (*stored)(float)) {
  attend<heddle::ElementWeights<16, false, false, heddle::ScoreForm::plain, heddle::Normalizer::sigmoid>>(
      s, v, blocks, safe, scale, end, stored);
}

/// After a block, of a kernel that drops weights.
extern "C" void factors_beside_drops(const float* s, float* factor) {
  heddle::ElementWeights<16, false, false, heddle::ScoreForm::plain, heddle::Normalizer::sigmoid, true> weights;
  float p[8];
  for (int i = 0; i < 8; ++i) p[i] = s[i];
  weights.begin_step();
  weights.step(p, 1);
  factor[0] = weights.factor(0);
  factor[1] = weights.factor(1);
}
)";

using RowOfThread = void (*)(int packed, int warpgroup, unsigned thread, int* row);
using EndRow = void (*)(float m, float l, float sink, float* end);
using Stored = float (*)(float);
using Attend = void (*)(const float*, const float*, int, bool, float, float*, Stored);

template <class Function>
Function function(const char* name) {
  static const std::shared_ptr<void> library = load_without_mods(kText);
  return reinterpret_cast<Function>(dlsym(library.get(), name));
}

// A warpgroup's 64 rows stand in shared memory one after the other, as tensor cores deal them to threads: 16 to a warp,
// and of these two, 8 apart, to each four of its lanes. Packed, heads follow each other so many queries apart.
// A weight of NaN may be dropped, and makes NaN of its row all the same.
TEST(RowPieces, NaNAmongDroppedSigmoids) {
  const auto factors_of = function<void (*)(const float*, float*)>("factors_beside_drops");
  float s[8] = {1, -kInfinity, 3, 4, kInfinity, 6, -200, 8}, factor[2];
  factors_of(s, factor);
  EXPECT_EQ(factor[0], 1);
  EXPECT_EQ(factor[1], 1);
  s[6] = kNaN;  // of the second row
  factors_of(s, factor);
  EXPECT_EQ(factor[0], 1);
  EXPECT_TRUE(std::isnan(factor[1]));
}

TEST(RowPieces, RowsOfATileAreOfTheirHeads) {
  for (const int packed : {0, 16, 32, 64}) {
    for (int warpgroup = 0; warpgroup < 3; ++warpgroup) {
      for (unsigned thread = 0; thread < 128; ++thread) {
        SCOPED_TRACE(testing::Message() << packed << ", warpgroup " << warpgroup << ", thread " << thread);
        const int row = static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
        int found[2] = {};
        // Consumers' threads follow the producer's 128.
        function<RowOfThread>("row_of_thread")(packed, warpgroup,
                                               128 * (1U + static_cast<unsigned>(warpgroup)) + thread, found);
        if (packed == 0) {
          EXPECT_EQ(found[0], 0);
          EXPECT_EQ(found[1], 64 * warpgroup + row);
        } else {
          EXPECT_EQ(found[0], (64 * warpgroup + row) / packed);
          EXPECT_EQ(found[1], row % packed);
          EXPECT_EQ((64 * warpgroup + row + 8) / packed, found[0]) << "the thread's other row is of another head";
        }
      }
    }
  }
}

struct End {
  float factor, lse, sunk;
};
End end_of(float m, float l, float sink) {
  End end{};
  function<EndRow>("end_row")(m, l, sink, &end.factor);
  return end;
}

constexpr double kLn2 = 0.6931471805599453;

// Over all ways in which the maximum and the sink may lie to each other. A kernel does not take sums of 2^24 or more of
// an optimistic maximum from rows that are sunk.
TEST(RowPieces, RowsJoinedByASink) {
  for (const float m : {-2000.0F, -130.0F, -3.5F, 0.0F, 7.25F, 140.0F, 3000.0F}) {
    for (const float l : {1.0F, 1.7F, 1000.0F, 1e6F, 1e15F}) {
      for (float above = -160; above <= 145; above += 3.1F) {
        const float sink = static_cast<float>((m + above) * kLn2);
        const End end = end_of(m, l, sink);
        EXPECT_EQ(end.sunk != 0, above > 64) << m << ", " << above;
        if (end.sunk != 0 && l >= 16777216) continue;
        SCOPED_TRACE(testing::Message() << "m " << m << ", l " << l << ", sink " << above << " above");
        const double difference = sink / kLn2 - m, joined = l + std::exp2(difference);
        const double tolerance = 2e-6 * (1 + std::abs(sink / kLn2) / 8);
        EXPECT_NEAR(end.lse, kLn2 * (m + std::log2(joined)),
                    4e-7 * (4 + std::abs(end.lse) + std::abs(sink) + std::abs(m)));
        // Weights of at most 2^24, for what ex2 would flush.
        const double largest = std::min<double>(l, 16777216);
        EXPECT_NEAR(largest * end.factor, largest / joined,
                    (tolerance + 1e-3 * (above > 120)) * largest / joined + 1e-34);
      }
    }
  }
}

TEST(RowPieces, RowsThatOnlyASinkAttends) {
  for (const float sink : {-kInfinity, -1e4F, -0.3F, 0.0F, 17.77F, 1e5F}) {
    const End end = end_of(-kInfinity, 0, sink);
    EXPECT_EQ(end.factor, 0) << sink;
    EXPECT_EQ(end.lse, sink);
  }
  const End none = end_of(5, 3, -kInfinity);
  EXPECT_FLOAT_EQ(none.factor, 1.0F / 3);
  EXPECT_FLOAT_EQ(none.lse, static_cast<float>(kLn2 * (5 + std::log2(3.0))));
}

TEST(RowPieces, SinksAndSumsThatPoisonARow) {
  for (const float sink : {kInfinity, kNaN}) {
    for (const auto& [m, l] : {std::pair(-kInfinity, 0.0F), {3.0F, 2.0F}, {-kInfinity, kNaN}}) {
      const End end = end_of(m, l, sink);
      EXPECT_TRUE(std::isnan(end.factor) && std::isnan(end.lse)) << sink << ", " << m << ", " << l;
    }
  }
  for (const float m : {-kInfinity, 1.0F}) {
    for (const float sink : {-kInfinity, 0.0F, 100.0F}) {
      const End end = end_of(m, kNaN, sink);
      EXPECT_TRUE(std::isnan(end.factor) && std::isnan(end.lse)) << sink << ", " << m;
    }
  }
}

float as_f16(float x) {
  if (!(std::abs(x) >= 0x1p-40F)) return std::isnan(x) ? x : 0;
  const int exponent = std::max(std::ilogb(x), -14);
  const float rounded = std::isinf(x) ? x : std::ldexp(std::nearbyint(std::ldexp(x, 10 - exponent)), exponent - 10);
  return std::abs(rounded) > 65504 ? std::copysign(kInfinity, x) : rounded;
}
float as_bf16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::ilogb(x);
  return std::ldexp(std::nearbyint(std::ldexp(x, 7 - exponent)), exponent - 7);
}

/// A row's scores in some blocks, and values.
struct Row {
  std::vector<float> s, v;
  Row(int blocks, double spread, double late, std::uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<double> normal;
    for (int i = 0; i < 8 * blocks; ++i) {
      const double later = i < 4 * blocks ? 1 : late;
      s.push_back(static_cast<float>(later * spread * normal(rng)));
      v.push_back(static_cast<float>(normal(rng)));
    }
  }
  int blocks() const { return static_cast<int>(s.size() / 8); }
};

/// o, and where the tile was to be computed again, that of the safe steps.
float attend(const char* name, const Row& row, float scale, Stored stored, bool* repeated = nullptr) {
  float end[2];
  const auto run = function<Attend>(name);
  run(row.s.data(), row.v.data(), row.blocks(), false, scale, end, stored);
  if (repeated != nullptr) *repeated = !std::isfinite(end[1]);
  if (!std::isfinite(end[1])) run(row.s.data(), row.v.data(), row.blocks(), true, scale, end, stored);
  return end[0];
}

void expect_weighted(const Row& row, float o, double unit, double (*weight)(double), double scale) {
  double sum = 0, magnitude = 0;
  for (std::size_t i = 0; i < row.s.size(); ++i) {
    if (i % 4 > 1) continue;  // the other row's
    const double p = row.s[i] == -kInfinity ? 0 : weight(scale * row.s[i]);
    sum += p * row.v[i];
    magnitude += std::abs(p * row.v[i]);
  }
  EXPECT_NEAR(o, sum, unit * magnitude + 1e-35);
}

double itself(double t) { return t; }
double sigmoid(double t) { return 1 / (1 + std::exp(-t)); }

TEST(RowPieces, ScoresAsWeights) {
  int repeats = 0;
  for (const double spread : {1e-30, 1e-5, 1.0, 3e4, 1e30}) {
    for (const double late : {1e-3, 1.0, 1e4}) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        SCOPED_TRACE(testing::Message() << spread << ", late " << late << ", seed " << seed);
        Row row(6, spread, late, seed);
        // Blocks without an element, and single ones.
        for (int i = 0; i < 8 * static_cast<int>(seed % 4); ++i) row.s[static_cast<std::size_t>(i)] = -kInfinity;
        row.s[20] = -kInfinity;
        bool repeated = false;
        expect_weighted(row, attend("attend_none_f16", row, 0.5F, as_f16, &repeated), 0x1p-11, itself, 0.5);
        repeats += repeated ? 1 : 0;
        expect_weighted(row, attend("attend_none", row, 0.5F, as_bf16), 0x1p-8, itself, 0.5);
      }
    }
  }
  EXPECT_GT(repeats, 20);
  EXPECT_LT(repeats, 120);
}

TEST(RowPieces, SigmoidsOfScores) {
  constexpr float kScale = 1.44269504F;  // powers of two
  for (const double middle : {-60.0, -20.0, -8.0, 0.0, 40.0}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << middle << ", seed " << seed);
      Row row(4, 2, 1, seed);
      for (float& s : row.s) s += static_cast<float>(middle);
      row.s[4] = -kInfinity;
      expect_weighted(row, attend("attend_sigmoid", row, kScale, as_bf16), 0x1p-8, sigmoid, 1);
      if (middle > -15) expect_weighted(row, attend("attend_sigmoid_f16", row, kScale, as_f16), 0x1p-11, sigmoid, 1);
    }
  }
}

TEST(RowPieces, WeightsOfInfinitiesAndNaN) {
  const auto with = [](const char* name, float x) {
    Row row(3, 1, 1, 7);
    row.s[9] = x;
    row.v[9] = 1;
    const bool f16 = std::string(name).ends_with("f16");
    return attend(name, row, 1, f16 ? as_f16 : as_bf16);
  };
  for (const char* name : {"attend_none", "attend_none_f16"}) {
    EXPECT_EQ(with(name, kInfinity), kInfinity) << name;
    EXPECT_TRUE(std::isnan(with(name, kNaN))) << name;
    EXPECT_TRUE(std::isfinite(with(name, -kInfinity))) << name;
  }
  for (const char* name : {"attend_sigmoid", "attend_sigmoid_f16"}) {
    EXPECT_NEAR(with(name, kInfinity), with(name, 100), 1e-3) << name;
    EXPECT_TRUE(std::isnan(with(name, kNaN))) << name;
    EXPECT_NEAR(with(name, -kInfinity), with(name, -1000), 1e-6) << name;
  }
}

}  // namespace
}  // namespace heddle::device_text::test
