// How the Hopper backward sums gradients of captures and params: the kind of each read, what it refuses, and where
// partials stand.
#include "families/backward_sm90/backward_reads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "heddle/expr.h"

namespace heddle::test {
namespace {

using plan::BackwardReads;
using shared::ReadKind;
using enum shared::ReadKind;

struct Call {
  std::string score, weight = "";
  std::vector<std::pair<std::string, Dims>> captures;  // all have gradients
  bool deterministic = false;
  bool partial_keys = false;
  Normalizer normalizer = Normalizer::softmax;

  problem::AttentionProblem problem() const {
    problem::AttentionProblem problem;
    problem.pass = problem::Pass::backward;
    problem.normalizer = normalizer;
    problem.q_dtype = problem.k_dtype = problem.v_dtype = problem.o_dtype = DType::bf16;
    problem.batch = problem.kv_heads = 2;
    problem.q_heads = 4;
    problem.q_rows = problem.kv_rows = 200;
    problem.qk_dim = problem.v_dim = 64;
    problem.sequences = {{.q_len = 200, .kv_len = 200}, {.q_len = 200, .kv_len = 200}};
    problem.scale = 1;
    problem.deterministic = deterministic;
    problem.partial_keys = partial_keys;
    Symbols symbols;
    for (const auto& [name, shape] : captures) {
      symbols.captures[name] = {DType::f32, shape.size()};
      problem.wanted.captures.push_back(name);
    }
    problem.score_mod = parse(score, symbols);
    if (!weight.empty()) problem.weight_mod = parse(weight, symbols);
    return problem;
  }
  BackwardReads reads() const {
    Bindings bindings;
    for (const auto& [name, shape] : captures) bindings.captures[name] = ConstTensorView(nullptr, DType::f32, shape);
    return plan::backward_reads(problem(), bindings, {});
  }
  std::vector<ReadKind> kinds() const {
    std::vector<ReadKind> kinds;
    for (const plan::BackwardRead& read : reads().reads) kinds.push_back(read.kind);
    return kinds;
  }
};

TEST(BackwardReads, KindsOfPlaces) {
  using Kinds = std::vector<ReadKind>;
  const std::vector<std::pair<std::string, Dims>> slope = {{"x", {4}}}, row = {{"x", {200}}};
  EXPECT_EQ((Call{"score + x[h] * (kv_idx - q_idx)", "", slope}.kinds()), Kinds{columns});
  EXPECT_EQ((Call{"score * x[kv_idx]", "", row}.kinds()), Kinds{columns});
  EXPECT_EQ((Call{"score * x[q_idx]", "", row}.kinds()), Kinds{rows});
  EXPECT_EQ((Call{"score + x[q_idx] * q_idx", "", row}.kinds()), Kinds{closed});
  EXPECT_EQ((Call{"score + x[h]", "", slope}.kinds()), Kinds{closed});
  EXPECT_EQ((Call{"score + x[q_idx] * kv_idx", "", row}.kinds()), Kinds{rows});
  // The sum of a part of the keys is no row's d_lse.
  EXPECT_EQ((Call{.score = "score + x[q_idx] * q_idx", .captures = row, .partial_keys = true}.kinds()), Kinds{rows});
  EXPECT_EQ((Call{.score = "score + x[h]", .captures = slope, .partial_keys = true}.kinds()), Kinds{columns});
  // Softmax alone fixes the sum of a row.
  EXPECT_EQ((Call{.score = "score + x[q_idx]", .captures = row, .normalizer = Normalizer::sigmoid}.kinds()),
            Kinds{rows});
  EXPECT_EQ((Call{"score", "x[q_idx]", row}.kinds()), Kinds{rows});
  EXPECT_EQ((Call{"score + x[h, kv_idx - q_idx + 199]", "", {{"x", {4, 399}}}}.kinds()), Kinds{diagonals});
  EXPECT_EQ((Call{"score + x[h, clip(kv_idx - q_idx, -5, 5) + 5]", "", {{"x", {4, 11}}}}.kinds()), Kinds{diagonals});
  EXPECT_EQ((Call{"score + x[h, kv_idx + q_idx]", "", {{"x", {4, 399}}}}.kinds()), Kinds{added});
}

TEST(BackwardReads, KindsOfPairs) {
  using Kinds = std::vector<ReadKind>;
  EXPECT_EQ((Call{"score + x[b, h, q_idx, kv_idx]", "", {{"x", {2, 4, 200, 200}}}}.kinds()), Kinds{stored});
  Call shared{"score + x[h, q_idx, kv_idx]", "", {{"x", {4, 200, 200}}}};
  EXPECT_EQ(shared.kinds(), Kinds{added});
  shared.deterministic = true;
  EXPECT_EQ(shared.kinds(), Kinds{owned});
  EXPECT_TRUE(shared.reads().round_a_sequence);
  EXPECT_FALSE(shared.reads().round_a_head);
  EXPECT_EQ(plan::refuses_reads(shared.problem(), shared.reads()), "");
  // Two reads of one tensor meet.
  const Call twice{"score + x[q_idx, kv_idx] + x[kv_idx, q_idx]", "", {{"x", {200, 200}}}, true};
  EXPECT_EQ(twice.kinds(), (Kinds{added, added}));
  EXPECT_THAT(plan::refuses_reads(twice.problem(), twice.reads()),
              testing::HasSubstr("deterministic is asked for, and d_captures['x'] is read at [q_idx, kv_idx]"));
  // No element is read where there is none.
  EXPECT_TRUE((Call{"score + at(x, kv_idx, 0.5)", "", {{"x", {0}}}}.reads().reads.empty()));
}

TEST(BackwardReads, RefusesManyReads) {
  Call many{"score", "", {{"x", {200}}}};
  for (int i = 0; i < 17; ++i) many.score += " + x[(kv_idx + " + std::to_string(i) + ") % 200]";
  EXPECT_EQ(plan::refuses_reads(many.problem(), many.reads()),
            "mods read what has a gradient in 17 places; up to 16 are accepted");
}

// Partials of different blocks, heads and keys never stand in the same place, nor past the end.
TEST(BackwardReads, SlotsAreApart) {
  const std::vector<int> blocks = {3, 0, 1};  // of sequences
  constexpr int kHeads = 2, kGroups = 3;
  for (const bool apart : {true, false}) {
    std::set<long long> of_rows, of_diagonals;
    int first = 0;
    std::size_t rows_count = 0, diagonals_count = 0;
    for (int sequence = 0; sequence < 3; ++sequence) {
      const int own = blocks[static_cast<std::size_t>(sequence)];
      for (int head = 0; head < kHeads; ++head) {
        for (int group = 0; group < kGroups; ++group) {
          for (int block = 0; block < own; ++block) {
            of_rows.insert(shared::row_slot(first + block, kHeads, head, group, kGroups, apart));
            rows_count += apart || group == 0;
          }
          for (int block = 0; block <= own; ++block) {
            of_diagonals.insert(shared::diagonal_slot(first, sequence, kHeads, head, block, group, kGroups, apart));
            diagonals_count += apart || block == own || group == kGroups - 1;  // one for each difference of the two
          }
        }
      }
      first += own;
    }
    EXPECT_EQ(of_rows.size(), rows_count);
    EXPECT_GE(*of_rows.begin(), 0);
    EXPECT_LT(*of_rows.rbegin(), shared::row_slots(first, kHeads, kGroups, apart));
    EXPECT_EQ(of_diagonals.size(), diagonals_count);
    EXPECT_GE(*of_diagonals.begin(), 0);
    EXPECT_LT(*of_diagonals.rbegin(), shared::diagonal_slots(first, 3, kHeads, kGroups, apart));
  }
}

// Sums of the most partials, each as large as the largest, stay below 2^62, and the smallest keep their bits.
TEST(BackwardReads, IntegersHaveRoom) {
  for (const float largest : {1.0F, 1.5F, 1e-30F, 3e38F, 1e-44F}) {
    for (const int bits : {1, 10, 30}) {
      const int exponent = shared::fixed_exponent(std::bit_cast<unsigned>(largest), bits);
      const double sum = std::ldexp(static_cast<double>(largest), exponent + bits);
      EXPECT_LE(sum, std::ldexp(1.0, 62)) << largest << ' ' << bits;
      EXPECT_TRUE(largest < 1e-37F || sum >= std::ldexp(1.0, 60)) << largest << ' ' << bits;
    }
  }
}

}  // namespace
}  // namespace heddle::test
