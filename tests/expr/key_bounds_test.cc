// The keys that masks are said to leave, against every key of small sequences; and which masks bound them.
#include "expr/key_bounds.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "expr/simplify.h"
#include "heddle/mods.h"
#include "mask/descent.h"
#include "mask/random_mask.h"

namespace heddle::expr::test {
namespace {

using shared::KeyRun;
using shared::KeyRuns;

KeyBounds bounds_of(const Expr& mask) { return KeyBounds(simplify(mask, Precision::f32)); }

struct Rows {
  std::int64_t q_len, kv_len, q_start;
};
/// The keys of a sequence's rows, for all of three heads.
KeyRuns keys_of(const KeyBounds& bounds, const Rows& rows) {
  const Sequence sequence = {.q_len = rows.q_len, .kv_len = rows.kv_len, .q_start = rows.q_start};
  LeafRanges leaves = mask::MaskRanges::leaves(sequence, 0, 0);
  const auto range = [](std::int64_t lo, std::int64_t hi) {
    return Range{static_cast<double>(lo), static_cast<double>(hi)};
  };
  leaves[Leaf::h] = range(0, 2);
  leaves[Leaf::q_idx] = range(rows.q_start, rows.q_start + rows.q_len - 1);
  leaves[Leaf::kv_idx] = range(0, rows.kv_len - 1);
  return bounds(leaves);
}
KeyRuns keys_of(const Expr& mask, const Rows& rows) { return keys_of(bounds_of(mask), rows); }
KeyRuns one(int begin, int end) { return {{begin, end}, shared::kNoKeys}; }

const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), h = leaf::h();

TEST(KeyBounds, OfOneQueryAreExact) {
  const Rows last = {1, 1000, 999};
  EXPECT_EQ(keys_of(mods::causal(), last), one(0, 1000));
  EXPECT_EQ(keys_of(mods::causal(), {1, 1000, 499}), one(0, 500));
  EXPECT_EQ(keys_of(mods::sliding_window(127), last), one(872, 1000));
  EXPECT_EQ(keys_of(mods::dilated_window(100, 5), last), one(899, 1000));
  EXPECT_EQ(keys_of(mods::causal() & (floor_div(q, 64) == floor_div(kv, 64)), last), one(960, 1000));
  EXPECT_EQ(keys_of(mods::causal() & ((q >> 6) == (kv >> 6)), last), one(960, 1000));
  EXPECT_EQ(keys_of(mods::causal() & ((kv < 4) | (q - kv < 128)), last), (KeyRuns{{0, 4}, {872, 1000}}));
  EXPECT_EQ(keys_of((kv < 4) | mods::sliding_window(127), last), (KeyRuns{{0, 4}, {872, 1000}}));
  EXPECT_EQ(keys_of(mods::prefix_lm(30), {1, 1000, 9}), one(0, 30));
  EXPECT_EQ(keys_of(!(kv > 30), last), one(0, 31));
  EXPECT_EQ(keys_of(abs(kv - 300) <= 20, last), one(280, 321));
  EXPECT_EQ(keys_of(min(2 * kv, q) < 21, last), one(0, 11));
  EXPECT_EQ(keys_of(max(kv, 5) < 21, last), one(0, 21));
  EXPECT_EQ(keys_of(kv == q, last), one(999, 1000));
  EXPECT_EQ(keys_of(5 - kv >= 2, last), one(0, 4));
  EXPECT_EQ(keys_of(floor_div(kv + 8, 32) == 1, last), one(24, 56));
  // Another term of the sum reads a key, too: it counts as the least that it can be.
  EXPECT_EQ(keys_of(kv + kv % 3 < 9, last), one(0, 9));
  EXPECT_EQ(keys_of(kv % 3 + kv * 2 < 9, last), one(0, 5));
  EXPECT_EQ(keys_of(floor_div(kv % 3 + kv, 4) < 2, last), one(0, 8));
  EXPECT_TRUE(keys_of(kv < 0, last).empty());
  EXPECT_TRUE(keys_of(Expr(false) & (kv < 7), last).empty());
}

TEST(KeyBounds, OfSeveralRowsAreTheirUnion) {
  EXPECT_EQ(keys_of(mods::sliding_window(9), {8, 100, 92}), one(83, 100));
  EXPECT_EQ(keys_of(q - kv <= 16 * h, {1, 100, 99}), one(67, 100));
  EXPECT_EQ(keys_of(where(h < 2, q - kv < 10, kv < 5), {1, 100, 99}), (KeyRuns{{0, 5}, {90, 100}}));
  // Conditions without keys decide.
  EXPECT_EQ(keys_of((h < 9) | (kv < 5), {1, 100, 99}), one(0, 100));
  EXPECT_EQ(keys_of((h > 9) | (kv < 5), {1, 100, 99}), one(0, 5));
  EXPECT_EQ(keys_of((q < 50) ^ (kv < 5), {1, 100, 20}), one(5, 100));
  EXPECT_EQ(keys_of((q < 50) ^ (kv < 5), {2, 100, 49}), one(0, 100));
}

// A sum that may wrap says nothing.
TEST(KeyBounds, LeaveHolesByKeyAndByHead) {
  const Capture ids("ids", DType::i32, 1);
  EXPECT_TRUE(leaves_holes(ids(leaf::q_idx()) == ids(leaf::kv_idx())));
  EXPECT_TRUE(leaves_holes(ids(leaf::q_token()) == ids(leaf::kv_token() + 1) && leaf::kv_idx() < 9));
  EXPECT_TRUE(leaves_holes(leaf::q_idx() - leaf::kv_idx() < 8 * leaf::h()));
  EXPECT_FALSE(leaves_holes(leaf::kv_idx() >= ids(leaf::q_idx())));
  EXPECT_FALSE(leaves_holes(leaf::kv_idx() <= leaf::q_idx() && leaf::kv_idx() % 128 != 7));
}

TEST(KeyBounds, KnowThatSumsWrap) {
  EXPECT_EQ(keys_of(kv + (q + 2147483000) < 5, {1, 1000, 600}), one(0, 1000));
  EXPECT_EQ(keys_of(abs(kv * 5000000 - 7) < 9, {1, 1000, 0}), one(0, 1000));
  EXPECT_EQ(keys_of(abs(kv * 1000000 - 7) < 9, {1, 1000, 0}), one(0, 1));
}

TEST(KeyBounds, SayWhatTheyAreOf) {
  EXPECT_EQ(bounds_of((kv <= q) & ((q - kv) % 3 == 0)).text(), print(simplify(kv <= q, Precision::f32)));
  EXPECT_EQ(bounds_of((kv <= q) & ((kv < 4) | (q - kv < 128))).text(),
            "q_idx >= kv_idx and (kv_idx < 4 or q_idx - kv_idx < 128)");
  EXPECT_FALSE(bounds_of((q - kv) % 3 == 0).bounds());
  EXPECT_FALSE(bounds_of((kv < 4) | ((q - kv) % 3 == 0)).bounds());
  EXPECT_FALSE(bounds_of(kv != q).bounds());
  EXPECT_FALSE(bounds_of(kv * kv < 9).bounds());
  EXPECT_FALSE(bounds_of(to_f32(kv) < 9.0).bounds());
  EXPECT_FALSE(bounds_of(mods::documents(Capture("ids", DType::i32, 1))).bounds());
  EXPECT_EQ(bounds_of((q - kv) % 3 == 0).text(), "");
}

TEST(KeyBounds, KnowWhereTheyBeginWithTheFirstKey) {
  for (const Expr& mask : {mods::causal(), mods::prefix_lm(30), !(kv > q), q - kv >= 2, (kv < 4) | (kv <= q),
                           5 - kv >= 2, min(2 * kv, q) < 21, max(kv, 5) < 21, floor_div(kv, 64) <= floor_div(q, 64),
                           (kv >> 3) < 9, (h < 2) & (kv < 5), kv * kv < 9}) {
    EXPECT_TRUE(bounds_of(mask).leaves_first_keys()) << print(mask);
  }
  for (const Expr& mask : {mods::sliding_window(9), kv >= 3, !(kv < q), q - kv < 9, kv == q, abs(kv - 300) <= 20,
                           mods::causal() & (kv > 7), (kv < 4) | (q - kv < 9), -2 * kv < 9 - q, min(5 - kv, q) < 3,
                           floor_div(kv, 64) == floor_div(q, 64)}) {
    EXPECT_FALSE(bounds_of(mask).leaves_first_keys()) << print(mask);
  }
}

// Every key that a mask leaves some row and head is among the runs.
TEST(KeyBounds, HoldEveryKeyThatIsLeft) {
  heddle::test::RandomMasks random(11);
  int bounded = 0, left_out = 0, from_first = 0;
  for (int i = 0; i < 400; ++i) {
    const Expr mask = random.draw();
    const Expr bound = simplify(bind_params(mask, random.bindings()), Precision::f32);
    const KeyBounds bounds(bound);
    bounded += bounds.bounds() ? 1 : 0;
    const Interpreter interpreter(bound, random.bindings(), Precision::f32);
    for (int round = 0; round < 4; ++round) {
      const std::int64_t q_len = 1 + random.below(5), kv_len = 1 + random.below(70), q_start = random.below(60);
      const KeyRuns runs = keys_of(bounds, {q_len, kv_len, q_start});
      if (bounds.leaves_first_keys() && !runs.empty()) {
        ++from_first;
        ASSERT_TRUE(runs.first.begin == 0 && runs.second.empty()) << print(bound);
      }
      const auto in = [](const KeyRun& run, std::int64_t key) { return run.begin <= key && key < run.end; };
      for (std::int64_t key = 0; key < kv_len; ++key) {
        if (in(runs.first, key) || in(runs.second, key)) continue;
        ++left_out;
        for (std::int64_t row = 0; row < 3 * q_len; ++row) {
          Element element;
          element[Leaf::h] = static_cast<std::int32_t>(row % 3);
          element[Leaf::q_idx] = static_cast<std::int32_t>(q_start + row / 3);
          element[Leaf::kv_idx] = element[Leaf::kv_token] = static_cast<std::int32_t>(key);
          element[Leaf::q_token] = static_cast<std::int32_t>(row / 3);
          element[Leaf::q_len] = static_cast<std::int32_t>(q_len);
          element[Leaf::kv_len] = static_cast<std::int32_t>(kv_len);
          element[Leaf::q_start] = static_cast<std::int32_t>(q_start);
          ASSERT_FALSE(interpreter.boolean(element)) << print(bound) << ": key " << key << ", row " << row;
        }
      }
    }
  }
  EXPECT_GT(bounded, 100);
  EXPECT_GT(left_out, 5000);
  EXPECT_GT(from_first, 100);
}

}  // namespace
}  // namespace heddle::expr::test
