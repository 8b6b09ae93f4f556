// Few queries of bf16 by AMX, or by the stand-in that computes the same bits: keys and values are read in place.
#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

#include "engine/guarded.h"
#include "families/cpu/bricks_attention.h"
#include "families/cpu/cpu_attention.h"
#include "families/cpu/cpu_choices.h"

namespace heddle {
namespace {

class BricksInPlace : public WithBricks {};

TEST_F(BricksInPlace, OddShapesOfEveryKind) {
  const std::vector<Shape> shapes = {
      {.q_heads = 5, .q_rows = 1, .kv_rows = 300, .qk_dim = 64, .v_dim = 64},
      {.q_heads = 8, .q_rows = 1, .kv_rows = 1, .qk_dim = 128, .v_dim = 128},
      {.q_heads = 8, .q_rows = 1, .kv_rows = 700, .qk_dim = 128, .v_dim = 128},
      {.q_heads = 17, .q_rows = 1, .kv_rows = 16, .qk_dim = 40, .v_dim = 24},
      {.q_heads = 2, .q_rows = 11, .kv_rows = 63, .qk_dim = 5, .v_dim = 3},
      {.q_rows = 32, .kv_rows = 130, .qk_dim = 100, .v_dim = 17},
      {.q_heads = 3, .q_rows = 11, .kv_rows = 129, .qk_dim = 96, .v_dim = 48},
      {.q_heads = 16, .q_rows = 3, .kv_rows = 95, .qk_dim = 576, .v_dim = 512},
      {.batch = 2, .q_heads = 12, .kv_heads = 2, .q_rows = 8, .kv_rows = 257, .qk_dim = 256, .v_dim = 80},
      {.batch = 2, .q_heads = 8, .kv_heads = 1, .q_rows = 8, .kv_rows = 200, .qk_dim = 1, .v_dim = 1},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << "heads " << shape.q_heads << " Sq " << shape.q_rows << " Dqk " << shape.qk_dim);
    Attention a(shape, DType::bf16);
    expect_bricks(a);
    a.o_dtype = DType::f32;
    const std::vector<std::int64_t> late(static_cast<std::size_t>(shape.batch), shape.kv_rows / 2);
    const Tensor start = tensor_of(DType::i64, late);
    make_causal(a);
    a.options.q_start = start;
    for (Sequence& sequence : a.plain.sequences) sequence.q_start = late[0];
    expect_bricks(a);
  }
}

/// Rows decide, for each tile by itself: fewer than five are computed in f32.
TEST_F(BricksInPlace, FromFiveRowsOn) {
  for (const std::int64_t rows : {4, 5}) {
    const Attention a = of_bf16({.q_heads = rows, .kv_rows = 100, .qk_dim = 32, .v_dim = 32});
    const Tensor o = nan_tensor(a.o_dtype, a.o_shape());
    const AttentionPlan plan({a.q, a.k, a.v, o, {}}, a.options);
    EXPECT_EQ(plan.explain().find("bf16 by AMX") != std::string::npos, rows == 5) << rows;
    expect_plain(a);
  }
}

/// Pieces that are merged, rows and pieces without a key, sinks, and heads that a mask and a score tell apart.
TEST_F(BricksInPlace, InPiecesOfTheKeys) {
  for (const std::int64_t rows : {2, 4}) {
    const std::int64_t keys = 2 * plan::kSplitKeys + 77;
    Attention a =
        of_bf16({.batch = 3, .q_heads = 6, .kv_heads = 2, .q_rows = rows, .kv_rows = keys, .qk_dim = 8, .v_dim = 12});
    const std::vector<std::int64_t> kv = {keys, plan::kSplitKeys, 9},
                                    start = {keys - rows, plan::kSplitKeys - rows, 9 - rows};
    const Tensor kv_lengths = tensor_of(DType::i64, kv), starts = tensor_of(DType::i64, start);
    a.options.kv_lengths = kv_lengths;
    a.options.q_start = starts;
    for (std::size_t i = 0; i < 3; ++i) a.plain.sequences[i] = {.q_len = rows, .kv_len = kv[i], .q_start = start[i]};
    expect_bricks(a);
    make_causal(a);
    expect_bricks(a);
    const Tensor sinks = random_tensor(DType::f32, {6}, 11);
    a.options.sinks = sinks;
    for (std::int64_t h = 0; h < 6; ++h) a.plain.sinks.push_back(get_element(sinks, {h}));
    expect_bricks(a);
    a.options.mask_mod = mask_mod([](Expr, Expr h, Expr i, Expr j) { return (j <= i) & (j > i - h * 40); });
    a.plain.mods.mask = [](auto, auto h, auto i, auto j) { return j <= i && j > i - h * 40; };
    a.options.score_mod = score_mod([](Expr s, Expr, Expr h, Expr, Expr) { return s * to_f32(h + 1); });
    a.plain.mods.score = [](double s, auto, auto h, auto, auto) { return s * static_cast<double>(h + 1); };
    expect_bricks(a);
    a.options.weight_mod = mask_mod([](Expr, Expr h, Expr i, Expr j) { return to_f32((i + j + h) % 3) * 0.5; });
    a.plain.mods.weight = [](auto, auto h, auto i, auto j) { return static_cast<double>((i + j + h) % 3) * 0.5; };
    expect_bricks(a);
  }
}

TEST_F(BricksInPlace, OtherNormalizersAndTheSameBitsForAnyNumberOfThreads) {
  for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::sigmoid, Normalizer::none}) {
    Attention a = of_bf16({.q_heads = 16, .kv_heads = 2, .q_rows = 2, .kv_rows = 5000, .qk_dim = 32, .v_dim = 32});
    a.options.normalizer = a.plain.normalizer = normalizer;
    a.with_lse = normalizer == Normalizer::softmax;
    const Attention::Result one = a.run();
    expect_plain(a, one);
    for (const int threads : {2, 5}) {
      a.options.threads = threads;
      EXPECT_EQ(bytes_of(a.run().o), bytes_of(one.o)) << threads;
    }
  }
}

/// Later keys with ever larger scores: maxima stay as long as sums allow, and the pieces' maxima differ.
TEST_F(BricksInPlace, MaximaThatGrow) {
  for (const double step : {0.002, 0.02, 0.2, 5.0}) {
    Attention a = of_bf16({.q_heads = 8, .kv_rows = 3000, .qk_dim = 2, .v_dim = 8});
    for (std::int64_t h = 0; h < 8; ++h) poke_bf16(a.q, {0, h, 0, 0}, std::sqrt(2.0));
    for (std::int64_t j = 0; j < 3000; ++j) poke_bf16(a.k, {0, 0, j, 0}, step * static_cast<double>(j));
    SCOPED_TRACE(step);
    expect_bricks(a);
  }
}

TEST_F(BricksInPlace, ScalesAndLargestScores) {
  for (const double scale : {-0.7, 0.0, 40.0}) {
    Attention a = of_bf16({.q_heads = 8, .kv_rows = 300, .qk_dim = 16, .v_dim = 16});
    a.options.scale = a.plain.scale = scale;
    expect_bricks(a);
    const Tensor most = nan_tensor(DType::f32, {1, 8, 1}), o = nan_tensor(DType::f32, a.o_shape());
    attention_into({a.q, a.k, a.v, o, {}, most.view()}, a.options);
    for (std::int64_t h = 0; h < 8; ++h) {
      double largest = -kInfinity;
      for (std::int64_t j = 0; j < 300; ++j) {
        double sum = 0;
        for (std::int64_t d = 0; d < 16; ++d) sum += get_element(a.q, {0, h, 0, d}) * get_element(a.k, {0, 0, j, d});
        largest = std::max(largest, sum * scale);
      }
      ASSERT_NEAR(get_element(most, {0, h, 0}), largest, 1e-5 * std::max(1.0, std::abs(largest))) << h;
    }
  }
}

/// Pages of any size, rows with gaps between them and rows of two tensors are the same operands: the bits are the same.
TEST_F(BricksInPlace, WhereverRowsStand) {
  constexpr std::int64_t kKeys = 192, kDim = 96;
  const Attention a = of_bf16({.q_heads = 6, .q_rows = 3, .kv_rows = kKeys, .qk_dim = kDim, .v_dim = kDim});
  const std::vector<std::byte> expected = bytes_of(a.run().o);
  for (const std::int64_t rows : {1, 8, 12, 16, 24, 96}) {
    const std::int64_t pages = kKeys / rows;
    Attention paged = a;
    paged.k = nan_tensor(DType::bf16, {pages, 1, rows, kDim});
    paged.v = nan_tensor(DType::bf16, {pages, 1, rows, kDim});
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(pages));
    for (std::int64_t i = 0; i < pages; ++i)
      numbers[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 5 % pages);
    for (std::int64_t j = 0; j < kKeys; ++j) {
      const std::int64_t page = numbers[static_cast<std::size_t>(j / rows)];
      for (std::int64_t d = 0; d < kDim; ++d) {
        poke_bf16(paged.k, {page, 0, j % rows, d}, get_element(a.k, {0, 0, j, d}));
        poke_bf16(paged.v, {page, 0, j % rows, d}, get_element(a.v, {0, 0, j, d}));
      }
    }
    Tensor table = Tensor::empty(DType::i32, {1, pages});
    std::copy(numbers.begin(), numbers.end(), static_cast<std::int32_t*>(table.data()));
    const Tensor lengths = tensor_of<std::int64_t>(DType::i64, {kKeys});
    paged.options.page_table = table;
    paged.options.kv_lengths = lengths;
    const Tensor o = nan_tensor(DType::f32, a.o_shape());
    std::optional<Tensor> lse = nan_tensor(DType::f32, {1, 6, 3});
    attention_into(paged.q, paged.k, paged.v, o, lse->view(), paged.options);
    EXPECT_EQ(bytes_of(o), expected) << "pages of " << rows;
  }
  for (const std::int64_t gap : {1, 32}) {
    const auto apart = [&](const Tensor& x) {
      const Tensor wide = nan_tensor(DType::bf16, {1, 1, kKeys, kDim + gap});
      for (std::int64_t j = 0; j < kKeys; ++j) {
        for (std::int64_t d = 0; d < kDim; ++d) poke_bf16(wide, {0, 0, j, d}, get_element(x, {0, 0, j, d}));
      }
      return wide;
    };
    const Tensor k = apart(a.k), v = apart(a.v), o = nan_tensor(DType::f32, a.o_shape());
    const Tensor lse = nan_tensor(DType::f32, {1, 6, 3});
    attention_into(a.q, slice(ConstTensorView(k), 3, 0, kDim), slice(ConstTensorView(v), 3, 0, kDim), o, lse.view(),
                   a.options);
    EXPECT_EQ(bytes_of(o), expected) << "gaps of " << gap;
  }
  for (const std::int64_t cut : {1, 32, 40, 95}) {
    Attention b = a;
    const auto columns = [](const Tensor& of, std::int64_t first, std::int64_t end) {
      return copy(slice(ConstTensorView(of), 3, first, end), DType::bf16);
    };
    const Tensor q_rest = columns(a.q, cut, kDim), k_rest = columns(a.k, kDim - cut, kDim);
    b.q = columns(a.q, 0, cut);
    b.k = columns(a.k, 0, kDim - cut);
    b.options.q_rest = q_rest;
    b.options.k_rest = k_rest;
    EXPECT_EQ(bytes_of(b.run().o), expected) << "cut at " << cut;
  }
}

TEST_F(BricksInPlace, BlockMasksOfAnyBlockSize) {
  for (const BlockSize block : {BlockSize{1, 1}, BlockSize{7, 48}, BlockSize{64, 64}}) {
    SCOPED_TRACE(testing::Message() << block.q << " x " << block.kv);
    Attention a =
        of_bf16({.batch = 2, .q_heads = 6, .kv_heads = 1, .q_rows = 10, .kv_rows = 205, .qk_dim = 8, .v_dim = 8});
    a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (i + j) % 50 < 20; });
    a.plain.mods.mask = [](auto, auto, auto i, auto j) { return (i + j) % 50 < 20; };
    a.options.block_mask =
        std::make_shared<BlockMask>(BlockMask::build(a.options.mask_mod, MaskShape::uniform(2, 6, 10, 205), block));
    expect_bricks(a);
  }
}

/// Poison that is masked changes no bit, and a value that is not finite changes no row that does not attend it.
TEST_F(BricksInPlace, PoisonStaysWhereItIsAttended) {
  for (const double poison : {kNan, kInfinity, -kInfinity}) {
    for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::sigmoid, Normalizer::none}) {
      Attention a = of_bf16({.q_heads = 4, .q_rows = 2, .kv_rows = 3000, .qk_dim = 8, .v_dim = 150});
      a.options.normalizer = a.plain.normalizer = normalizer;
      a.with_lse = normalizer == Normalizer::softmax;
      a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (j % 100 == 7) & (j > i * 1500); });
      a.plain.mods.mask = [](auto, auto, auto i, auto j) { return j % 100 == 7 && j > i * 1500; };
      const Attention::Result clean = a.run();
      for (std::int64_t j = 0; j < 3000; ++j) {
        if (j % 100 == 7) continue;
        poke_bf16(a.k, {0, 0, j, 3}, poison);
        poke_bf16(a.v, {0, 0, j, 5}, poison);
      }
      EXPECT_EQ(bytes_of(a.run().o), bytes_of(clean.o));
      for (const std::int64_t d : {2, 70, 149}) poke_bf16(a.v, {0, 0, 207, d}, poison);  // row 0 attends it
      expect_bricks(a);
      const Attention::Result poisoned = a.run();
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t d = 0; d < 150; ++d) {
          ASSERT_EQ(get_element(poisoned.o, {0, h, 1, d}), get_element(clean.o, {0, h, 1, d})) << d;
        }
      }
    }
  }
  Attention a = of_bf16({.q_heads = 8, .q_rows = 2, .kv_rows = 300, .qk_dim = 64, .v_dim = 64});
  poke_bf16(a.q, {0, 3, 1, 40}, kNan);
  expect_bricks(a);
  poke_bf16(a.k, {0, 0, 107, 3}, kInfinity);
  expect_bricks(a);
}

/// Sums beyond f32 are computed once more, scaled, with and without pieces.
TEST_F(BricksInPlace, SumsMayLeaveTheRangeThatTheirMeanKeeps) {
  for (const std::int64_t keys : {300, 1500}) {
    Attention a = of_bf16({.q_heads = 6, .kv_rows = keys, .qk_dim = 8, .v_dim = 70});
    for (std::int64_t j = 0; j < keys; ++j) {
      for (std::int64_t d = 0; d < 70; d += 3) poke_bf16(a.v, {0, 0, j, d}, 3e38);
    }
    expect_bricks(a);
  }
}

/// Tensors end, or begin, at a page that nothing may touch.
TEST_F(BricksInPlace, NothingBesideTheTensorsIsRead) {
  for (const test::GuardedMemory::Side side : {test::GuardedMemory::Side::end, test::GuardedMemory::Side::start}) {
    for (const std::int64_t dim : {1, 31, 33, 64}) {
      const Attention a = of_bf16({.q_heads = 6, .kv_rows = 129, .qk_dim = dim, .v_dim = dim});
      const Attention::Result expected = a.run();
      std::vector<std::unique_ptr<test::GuardedMemory>> memories;
      const auto guarded = [&](const Tensor& x) {
        const std::int64_t bytes = x.count() * size_of(x.dtype());
        memories.push_back(std::make_unique<test::GuardedMemory>(bytes, side));
        std::memcpy(memories.back()->data(), x.data(), static_cast<std::size_t>(bytes));
        return ConstTensorView(memories.back()->data(), x.dtype(), x.shape());
      };
      const Tensor o = nan_tensor(DType::f32, a.o_shape()), lse = nan_tensor(DType::f32, {1, 6, 1});
      attention_into(guarded(a.q), guarded(a.k), guarded(a.v), o, lse.view(), a.options);
      EXPECT_EQ(bytes_of(o), bytes_of(expected.o)) << dim;
    }
  }
}

/// Both ways compute the same bits, on a machine with AMX.
TEST_F(BricksInPlace, AmxAndItsStandInComputeTheSameBits) {
  if (cpu::cpu_caps().matrix_unit != device::MatrixUnit::amx) GTEST_SKIP() << "no AMX, or HEDDLE_CPU_AMX=emulated";
  for (const auto& [heads, dim] : {std::pair{8, 128}, {17, 64}, {40, 80}, {64, 24}}) {
    const Attention a = of_bf16({.q_heads = heads, .kv_rows = 1500, .qk_dim = dim, .v_dim = dim});
    const Tensor by_amx = output_by(device::MatrixUnit::amx, a), emulated = output_by(device::MatrixUnit::emulated, a);
    EXPECT_EQ(bytes_of(by_amx), bytes_of(emulated)) << heads << " heads, " << dim;
  }
}

}  // namespace
}  // namespace heddle
