// Results of validation when it accepts, and when strided tensors share memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "heddle/error.h"
#include "heddle/mods.h"
#include "problem/call.h"
#include "problem/overlap.h"

namespace heddle::test {
namespace {

// allow_tf32 says something of f32 alone.
TEST(Problem, Tf32IsOfF32) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    Call call(dtype);
    call.options.allow_tf32 = true;
    const problem::AttentionProblem problem = call.validate();
    EXPECT_EQ(problem.allow_tf32, dtype == DType::f32);
    EXPECT_EQ(to_string(problem).find("tf32 products") != std::string::npos, dtype == DType::f32) << name(dtype);
  }
}

TEST(Problem, ResolvesSizesAndDefaults) {
  const problem::AttentionProblem problem = Call().validate();
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.q_heads, 4);
  EXPECT_EQ(problem.kv_heads, 2);
  EXPECT_EQ(problem.group(), 2);
  EXPECT_EQ(problem.q_rows, 6);
  EXPECT_EQ(problem.kv_rows, 8);
  EXPECT_EQ(problem.qk_dim, 16);
  EXPECT_EQ(problem.v_dim, 24);
  EXPECT_EQ(problem.scale, 0.25);
  EXPECT_TRUE(problem.with_lse);
  EXPECT_FALSE(problem.packed);
  const Sequence whole = {.q_len = 6, .kv_len = 8};
  EXPECT_EQ(problem.sequences, std::vector<Sequence>({whole, whole}));
  EXPECT_EQ(
      to_string(problem),
      "forward softmax f32 q[2, 4, 6, 16] f32 k[.., 2, 8, 16] f32 v[.., 2, 8, 24] -> f32 o, lse; scale 0.25; full "
      "lengths");
}

TEST(Problem, ReadsLengthsAndStarts) {
  Call call;
  call.options.q_lengths = call.keep(i64s({6, 0}));
  call.options.kv_lengths = call.keep(i32s({5, 8}));
  call.options.q_start = call.keep(i32s({-3, 100}));
  call.options.kv_start = call.keep(i64s({7, -1}));
  const problem::AttentionProblem problem = call.validate();
  EXPECT_EQ(problem.sequences, std::vector<Sequence>({{.q_len = 6, .kv_len = 5, .q_start = -3, .kv_start = 7},
                                                      {.q_len = 0, .kv_len = 8, .q_start = 100, .kv_start = -1}}));
  EXPECT_THAT(problem::to_string(problem), testing::HasSubstr("lengths by sequence, q_start, kv_start"));
  const expr::LeafRanges leaves = leaf_ranges(problem);  // of the one sequence that has elements
  EXPECT_EQ(leaves[expr::Leaf::q_idx], (expr::Range{-3, 2}));
  EXPECT_EQ(leaves[expr::Leaf::kv_idx], (expr::Range{7, 11}));
  EXPECT_EQ(leaves[expr::Leaf::kv_start], (expr::Range{7, 7}));
  EXPECT_EQ(leaves[expr::Leaf::b], (expr::Range{0, 1}));
  EXPECT_EQ(leaves[expr::Leaf::h], (expr::Range{0, 3}));
}

// Kernels of sequences that are alike otherwise read it from a vector.
TEST(Problem, SequencesDoNotDifferByKvStart) {
  Call call;
  call.options.kv_start = call.keep(i32s({0, 64}));
  EXPECT_FALSE(sequences_differ(call.validate()));
  call.options.q_start = call.keep(i32s({0, 64}));
  EXPECT_TRUE(sequences_differ(call.validate()));
}

TEST(Problem, ReadsStridedLengths) {
  Call call;
  call.options.kv_lengths = call.keep(i32s({5, -1, 7, -1}));
  call.options.kv_lengths->shape = {2};
  call.options.kv_lengths->strides = {2};
  EXPECT_EQ(call.validate().sequences[1].kv_len, 7);
}

TEST(Problem, ReadsPackedBatches) {
  Call call = Call::packed();
  call.options.q_start = call.keep(i64s({1, 2, 3}));
  const problem::AttentionProblem problem = call.validate();
  EXPECT_TRUE(problem.packed);
  EXPECT_EQ(problem.batch, 3);
  EXPECT_EQ(problem.sequences,
            std::vector<Sequence>({{.q_begin = 0, .q_len = 2, .kv_begin = 0, .kv_len = 3, .q_start = 1},
                                   {.q_begin = 2, .q_len = 0, .kv_begin = 3, .kv_len = 0, .q_start = 2},
                                   {.q_begin = 2, .q_len = 4, .kv_begin = 3, .kv_len = 5, .q_start = 3}}));
}

TEST(Problem, BroadcastsBatches) {
  Call call;
  call.q(DType::f32, {1, 4, 6, 16});
  call.v(DType::f32, {1, 2, 8, 24});
  EXPECT_EQ(call.validate().batch, 2);
  call.k(DType::f32, {0, 2, 8, 16});
  call.o(DType::f32, {0, 4, 6, 24});
  call.without_lse();
  EXPECT_EQ(call.validate().batch, 0);
}

TEST(Problem, TakesFp8BesideWiderQueries) {
  for (const DType q : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    Call call(DType::e5m2);
    call.q(q, {2, 4, 6, 16});
    call.k(DType::e4m3, {2, 2, 8, 16});
    call.options.k_descale = call.keep(Tensor::zeros(DType::f32, {1, 2}));
    call.validate_all();
  }
}

TEST(Problem, SkipsReadsOfMatricesWithoutElements) {
  Call call;
  call.options.mask_mod = Capture("keep", DType::boolean, 1)(leaf::kv_idx());
  call.capture("keep", Tensor::zeros(DType::boolean, {0}));
  call.options.kv_lengths = call.keep(i32s({0, 0}));
  call.validate_all();
}

TEST(Problem, LooksAtWhatIndicesNeedOnceEach) {
  std::int32_t two = 2;
  const Dims huge = {2, std::int64_t{1} << 40, 8};
  Call call;
  const Capture table("table", DType::i32, 3), weights("weights", DType::f32, 1);
  call.options.bindings.captures["table"] = ConstTensorView(&two, DType::i32, huge, {0, 0, 0});
  call.capture("weights", f32s({1, 1, 1}));
  call.options.score_mod = leaf::score() + to_f32(table(leaf::b(), leaf::q_idx(), leaf::kv_idx()));
  call.validate_all();
  call.options.weight_mod = weights(table(leaf::b(), leaf::q_idx(), leaf::kv_idx()));
  call.validate_all();
  two = 3;
  EXPECT_THROW(call.validate(), Error);
}

TEST(Problem, TermsOfAConjunctionGuardReads) {
  Call call;
  const Capture x("x", DType::f32, 1);
  call.capture("x", f32s({1, 1, 1, 1}));
  const Expr read = x(leaf::q_idx()) >= 1.0, inside = leaf::q_idx() < 4;
  for (const Expr& mask : {inside & read, read & inside, ~inside | read, ~(inside & ~read), where(inside, read, false),
                           where(inside, read, true), where(inside, read, leaf::h() == 1)}) {
    call.options.mask_mod = mask;
    call.validate_all();
    EXPECT_NO_THROW(BlockMask::build(mask, MaskShape::uniform(2, 4, 6, 8), {2, 2}, call.options.bindings, 1))
        << print(mask);
  }
  EXPECT_FALSE(reads_depend_on_values(call.validate(), call.options.bindings));
  for (const Expr& mask : {inside | read, read, ~inside & read, inside ^ read}) {
    call.options.mask_mod = mask;
    EXPECT_THROW(call.validate(), Error) << print(mask);
  }
}

TEST(Problem, AcceptsIndicesProvenByATable) {
  Call call;
  const Capture table("table", DType::i32, 1), weights("weights", DType::f32, 1);
  call.options.weight_mod = weights(table(leaf::kv_idx()));
  call.capture("table", i32s({0, 1, 2, 3, 3, 2, 1, 0}));
  call.capture("weights", f32s({1, 1, 1, 1}));
  const auto depends = [&] { return reads_depend_on_values(call.validate(), call.options.bindings); };
  EXPECT_TRUE(depends());
  call.options.weight_mod = weights(min(leaf::kv_idx(), 3));
  const problem::AttentionProblem problem = call.validate();
  EXPECT_FALSE(depends());
  EXPECT_EQ(problem.captures, std::vector<std::string>({"weights"}));
  call.options.weight_mod = where(leaf::kv_idx() < param("limit", ExprType::i32), weights(leaf::kv_idx()), 0.0);
  call.options.bindings.params["limit"] = 4;
  EXPECT_TRUE(depends()) << "the condition of a read";
  call.options.mask_mod = (weights(leaf::q_idx()) > 0.0) & (leaf::q_idx() < param("limit", ExprType::i32));
  call.options.weight_mod = {};
  EXPECT_TRUE(depends()) << "a term beside a read";
  call.options.mask_mod = {};
  call.options.weight_mod = where(weights(leaf::h()) < param("limit", ExprType::i32), 1.0, 0.0);
  EXPECT_FALSE(depends()) << "a condition that guards no read";
  call.options.weight_mod = where(weights(leaf::h()) < param("limit", ExprType::i32), weights(leaf::h()), 0.0);
  EXPECT_FALSE(depends()) << "a condition that no read needs";
}

TEST(Problem, TakesTheMaskOfABlockMask) {
  Call call;
  call.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::build(mods::causal(), MaskShape::uniform(2, 4, 6, 8), {4, 4}));
  EXPECT_TRUE(same(call.validate().mask_mod, mods::causal()));
}

TEST(Problem, GivesTheShapesOfOutputs) {
  const Call call(DType::e4m3);
  const problem::Outputs outputs = problem::outputs_of(call.tensors.q, call.tensors.k, call.tensors.v);
  EXPECT_EQ(outputs.o_shape, (Dims{2, 4, 6, 24}));
  EXPECT_EQ(outputs.lse_shape, (Dims{2, 4, 6}));
  EXPECT_EQ(outputs.o_dtype, DType::bf16);
  EXPECT_EQ(outputs.lse_dtype, DType::f32);
}

// A view of this shape and strides that starts `offset` bytes into one common buffer.
ConstTensorView view_at(std::int64_t offset, DType dtype, const Dims& shape, const Dims& strides) {
  static const Tensor buffer = Tensor::zeros(DType::u8, {1 << 16});
  return {static_cast<const std::byte*>(buffer.data()) + (1 << 15) + offset, dtype, shape, strides};
}

std::set<std::int64_t> bytes_of(const ConstTensorView& view) {
  std::set<std::int64_t> bytes;
  const std::int64_t size = size_of(view.dtype);
  for (std::int64_t i = 0; i < view.shape[0]; ++i) {
    for (std::int64_t j = 0; j < view.shape[1]; ++j) {
      for (std::int64_t k = 0; k < view.shape[2]; ++k) {
        const auto first = reinterpret_cast<std::int64_t>(view.data) +
                           (i * view.strides[0] + j * view.strides[1] + k * view.strides[2]) * size;
        for (std::int64_t byte = first; byte < first + size; ++byte) bytes.insert(byte);
      }
    }
  }
  return bytes;
}

TEST(Overlap, SlicesOfOneBufferDoNotShare) {
  const Dims shape = {2, 5, 8}, strides = {8, 64, 1};  // [H, S, D] of q, k, v, o in one [S, 4, H, D] buffer
  const auto part = [&](std::int64_t x) { return view_at(x * 16 * 4, DType::f32, shape, strides); };
  for (std::int64_t x = 0; x < 4; ++x) {
    for (std::int64_t y = 0; y < 4; ++y) EXPECT_EQ(problem::overlaps(part(x), part(y)), x == y);
  }
}

TEST(Overlap, AgreesWithSetsOfBytes) {
  std::uint64_t state = 1;
  const auto below = [&](std::int64_t bound) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(bound));
  };
  const auto random_view = [&] {
    const DType dtype = below(2) == 0 ? DType::f32 : DType::e4m3;
    const Dims shape = {1 + below(4), 1 + below(4), 1 + below(5)};
    return view_at(below(64), dtype, shape, {below(80) - 40, below(30) - 10, below(4) - 1});
  };
  int shared = 0, self_shared = 0;
  for (int i = 0; i < 5000; ++i) {
    const ConstTensorView x = random_view(), y = random_view();
    const std::set<std::int64_t> x_bytes = bytes_of(x), y_bytes = bytes_of(y);
    bool expected = false;
    for (std::int64_t byte : x_bytes) expected = expected || y_bytes.contains(byte);
    ASSERT_EQ(problem::overlaps(x, y), expected)
        << to_string(x.shape) << to_string(x.strides) << to_string(y.shape) << to_string(y.strides);
    const bool expected_self = std::ssize(x_bytes) != x.count() * size_of(x.dtype);
    ASSERT_EQ(problem::overlaps_itself(x), expected_self) << to_string(x.shape) << to_string(x.strides);
    shared += expected ? 1 : 0;
    self_shared += expected_self ? 1 : 0;
  }
  EXPECT_GT(shared, 500);
  EXPECT_LT(shared, 4500);
  EXPECT_GT(self_shared, 500);
  EXPECT_LT(self_shared, 4500);
}

TEST(Overlap, NothingSharesWithNothing) {
  EXPECT_FALSE(problem::overlaps(view_at(0, DType::f32, {0, 5, 8}, {8, 64, 1}), view_at(0, DType::f32, {2}, {1})));
  EXPECT_EQ(problem::footprint_of("x", view_at(0, DType::f32, {0, 5, 8}, {8, 64, 1})).bytes, 0);
  const problem::Footprint below = problem::footprint_of("x", view_at(0, DType::f32, {2, 3}, {-10, 1}));
  EXPECT_EQ(below.bytes, 4 * (10 + 2 + 1));
  EXPECT_EQ(below.lowest, -40);
}

TEST(Problem, ScalesInTheRangeOfTheComputationAreAccepted) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  for (const double scale : {0.0, -0.0, -2.0, 1e-300, kLargest, -kLargest}) {
    Call call;
    call.options.scale = scale;
    EXPECT_EQ(call.validate().scale, scale);
  }
  Call beyond;
  beyond.options.scale = std::nextafter(kLargest, INFINITY);
  EXPECT_THROW(beyond.validate(), Error);
  Call doubles(DType::f64);
  doubles.options.scale = -std::numeric_limits<double>::max();
  doubles.validate_all();
}

}  // namespace
}  // namespace heddle::test
