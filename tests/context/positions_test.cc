// Positions of a rank's rows in the way that kernels know best: one piece needs no capture, and Hopper's kernels keep
// the form of ALiBi over granules.
#include "context/positions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "heddle/heddle.h"

namespace heddle::context {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<std::int64_t> rows(std::initializer_list<std::int64_t> begins, std::int64_t count) {
  std::vector<std::int64_t> all;
  for (const std::int64_t begin : begins) {
    for (std::int64_t i = 0; i < count; ++i) all.push_back(begin + i);
  }
  return all;
}

/// The plan of a Hopper GPU for ALiBi over queries that stand at these positions, and keys at those.
std::string planned(const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys) {
  AttentionOptions options;
  const Tensor slopes = mods::alibi_slopes(2);
  options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
  options.mask_mod = mods::causal();
  options.bindings.captures["slopes"] = slopes;
  const Positions of_queries(kQueries, queries, 1024, {}), of_keys(kKeys, keys, 1024, {});
  over_rows(options, of_queries, of_keys);
  const auto make = [](std::int64_t count) { return Tensor::empty(DType::bf16, {1, 2, count, 128}); };
  const Tensor q = make(std::ssize(queries)), o = make(std::ssize(queries)), k = make(std::ssize(keys));
  return explain_on("h200", AttentionTensors{.q = q, .k = k, .v = k, .o = o}, options).text;
}

TEST(Positions, OnePieceHasAStartAndNoCapture) {
  AttentionOptions options;
  options.mask_mod = mods::causal();
  const Positions queries(kQueries, rows({300}, 50), 1024, {}), keys(kKeys, rows({0}, 350), 1024, {});
  over_rows(options, queries, keys);
  EXPECT_EQ(queries.start(), 300);
  EXPECT_EQ(keys.start(), 0);
  EXPECT_TRUE(options.bindings.captures.empty());
  EXPECT_EQ(Positions(kKeys, {}, 1024, {}).start(), 0);
}

TEST(Positions, GranulesAreNamedOnceEach) {
  AttentionOptions options;
  options.mask_mod = mods::causal();
  std::vector<std::int64_t> cut = rows({128, 768}, 128);
  cut.resize(200);  // the last granule is cut
  const Positions queries(kQueries, cut, 1024, {}), keys(kKeys, rows({4, 200}, 128), 1024, {});
  over_rows(options, queries, keys);
  const ConstTensorView& granules = options.bindings.captures.at(kQueries);
  ASSERT_EQ(granules.count(), 2);
  EXPECT_EQ(static_cast<const std::int32_t*>(granules.data)[0], 1);
  EXPECT_EQ(static_cast<const std::int32_t*>(granules.data)[1], 6);
  EXPECT_EQ(options.bindings.captures.at(kKeys).count(), 256) << "pieces that cut granules: each row's position";
}

TEST(Positions, HopperKeepsTheFormOfALiBiOverGranules) {
  const std::string whole = planned(rows({0}, 1024), rows({0}, 1024));
  ASSERT_THAT(whole, HasSubstr("tilted"));
  EXPECT_THAT(planned(rows({0, 768}, 256), rows({0, 256, 512, 768}, 256)), HasSubstr("tilted"));
  EXPECT_THAT(planned(rows({0, 768}, 256), rows({512, 0, 768}, 256)), HasSubstr("tilted"));
  EXPECT_THAT(planned(rows({0, 770}, 250), rows({0, 514}, 500)), Not(HasSubstr("tilted"))) << "rows one by one";
}

}  // namespace
}  // namespace heddle::context
