// Attention over a caller's mask whose rows have many runs, which it keeps by windows: both passes of the CPU give what
// they give without the mask's blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>

#include "heddle/attention.h"
#include "heddle/backward.h"

namespace heddle::test {
namespace {

constexpr std::int64_t kHeads = 2, kQueries = 130, kKeys = 2300, kDim = 16;

Tensor random_reals(std::int64_t rows, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(DType::f32, {1, kHeads, rows, kDim});
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor;
}

void expect_close(const char* what, const Tensor& x, const Tensor& y) {
  ASSERT_EQ(x.shape(), y.shape()) << what;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const float a = static_cast<const float*>(x.data())[i], b = static_cast<const float*>(y.data())[i];
    ASSERT_NEAR(a, b, 2e-5 * (1 + std::abs(b))) << what << " at " << i;
  }
}

TEST(ManyRuns, AttentionFollowsRowsThatWindowsKeep) {
  const Tensor q = random_reals(kQueries, 1), k = random_reals(kKeys, 2), v = random_reals(kKeys, 3),
               d_o = random_reals(kQueries, 4);
  // Stripes of 16 keys, whose phase changes from head to head and from 16 queries to the next; the last ones end early.
  const Expr row = floor_div(leaf::q_idx(), 16) + leaf::h();
  AttentionOptions plain;
  plain.mask_mod = ((floor_div(leaf::kv_idx(), 16) + row) % 2 == 0) & (leaf::kv_idx() < 2200 - 7 * leaf::q_idx());
  AttentionOptions given = plain;
  const MaskShape shape = MaskShape::uniform(1, kHeads, kQueries, kKeys);
  given.block_mask = std::make_shared<const BlockMask>(BlockMask::build(plain.mask_mod, shape, {16, 16}));
  EXPECT_GT(given.block_mask->row(0, 0, 0).size(), 60U);
  EXPECT_LT(given.block_mask->statistics().bytes, 4 * given.block_mask->statistics().runs);

  const AttentionResult without = attention(q, k, v, plain, true), with = attention(q, k, v, given, true);
  expect_close("o", with.o, without.o);
  const auto gradients = [&](const AttentionOptions& options) {
    return attention_backward({.q = q, .k = k, .v = v, .o = without.o, .lse = without.lse, .d_o = d_o}, options);
  };
  const BackwardResult expected = gradients(plain), found = gradients(given);
  expect_close("dq", found.dq, expected.dq);
  expect_close("dk", found.dk, expected.dk);
  expect_close("dv", found.dv, expected.dv);
}

}  // namespace
}  // namespace heddle::test
