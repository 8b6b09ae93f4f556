// The CPU forward of bf16 by AMX, or by the stand-in that computes the same bits, against plain loops in double.
#include <algorithm>
#include <memory>
#include <string>

#include "engine/guarded.h"
#include "families/cpu/bricks_attention.h"
#include "families/cpu/cpu_attention.h"
#include "families/cpu/cpu_choices.h"
#include "families/cpu/emulated_amx.h"

namespace heddle {
namespace {

class CpuBricks : public WithBricks {};

TEST_F(CpuBricks, OddShapesOfEveryKind) {
  const std::vector<Shape> shapes = {
      {.q_heads = 2, .q_rows = 65, .kv_rows = 130, .qk_dim = 5, .v_dim = 3},
      {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_rows = 97, .kv_rows = 129, .qk_dim = 40, .v_dim = 24},
      {.q_heads = 5, .kv_heads = 5, .q_rows = 77, .kv_rows = 257, .qk_dim = 64, .v_dim = 80},
      {.q_rows = 103, .kv_rows = 63, .qk_dim = 128, .v_dim = 128},
      {.q_rows = 69, .kv_rows = 16, .qk_dim = 96, .v_dim = 17},
      {.q_rows = 66, .kv_rows = 1, .qk_dim = 1, .v_dim = 1},
      {.q_rows = 67, .kv_rows = 70, .qk_dim = 576, .v_dim = 512},
      {.q_rows = 300, .kv_rows = 300, .qk_dim = 200, .v_dim = 33},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << "Sq " << shape.q_rows << " Dqk " << shape.qk_dim);
    Attention a(shape, DType::bf16);
    expect_bricks(a);
    a.o_dtype = DType::f32;
    make_causal(a);
    expect_bricks(a);
  }
}

TEST_F(CpuBricks, ModsOfEveryRole) {
  Attention a =
      of_bf16({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 101, .kv_rows = 150, .qk_dim = 16, .v_dim = 20});
  a.options.score_mod = score_mod(
      [](Expr s, Expr, Expr h, Expr i, Expr j) { return tanh(s) * 3.0 + to_f32(j - i) * 0.03125 * to_f32(h); });
  a.plain.mods.score = [](double s, auto, auto h, auto i, auto j) {
    return std::tanh(s) * 3.0 + static_cast<double>(j - i) * 0.03125 * static_cast<double>(h);
  };
  expect_bricks(a);
  a.options.weight_mod = mask_mod([](Expr b, Expr h, Expr i, Expr j) { return to_f32((i + j + b + h) % 3) * 0.5; });
  a.plain.mods.weight = [](auto b, auto h, auto i, auto j) { return static_cast<double>((i + j + b + h) % 3) * 0.5; };
  expect_bricks(a);
  a.options.mask_mod = mods::sliding_window(30, 5);
  a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i - 30 <= j && j <= i + 5; };
  expect_bricks(a);
  const Tensor sinks = random_tensor(DType::f32, {4}, 11);
  a.options.sinks = sinks;
  for (std::int64_t h = 0; h < 4; ++h) a.plain.sinks.push_back(get_element(sinks, {h}));
  expect_bricks(a);
}

TEST_F(CpuBricks, OtherNormalizers) {
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
    Attention a = of_bf16({.q_heads = 2, .kv_heads = 2, .q_rows = 70, .kv_rows = 290, .qk_dim = 8, .v_dim = 9});
    a.with_lse = false;
    a.options.normalizer = a.plain.normalizer = normalizer;
    expect_bricks(a);
    make_causal(a);
    expect_bricks(a);
    a.options.weight_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return to_f32(i - j); });
    a.plain.mods.weight = [](auto, auto, auto i, auto j) { return static_cast<double>(i - j); };
    expect_bricks(a);
  }
}

/// Later keys with ever larger scores: a maximum that stays is left behind, a little in each chunk or far at once.
TEST_F(CpuBricks, MaximaThatGrow) {
  for (const double step : {0.002, 0.02, 0.2, 5.0}) {
    for (const bool masked : {false, true}) {
      SCOPED_TRACE(testing::Message() << "by " << step << " a key" << (masked ? ", causal" : ""));
      Attention a = of_bf16({.q_rows = 100, .kv_rows = 700, .qk_dim = 2, .v_dim = 8});
      for (std::int64_t i = 0; i < 100; ++i) poke_bf16(a.q, {0, 0, i, 0}, std::sqrt(2.0));
      for (std::int64_t j = 0; j < 700; ++j) poke_bf16(a.k, {0, 0, j, 0}, step * static_cast<double>(j));
      const Tensor start = tensor_of<std::int64_t>(DType::i64, {600});
      if (masked) {
        make_causal(a);
        a.options.q_start = start;
        a.plain.sequences[0].q_start = 600;
      }
      expect_bricks(a);
    }
  }
}

/// By a mod, beside which chunks come one behind the other also where maxima have to grow.
TEST_F(CpuBricks, MaximaThatGrowByAMod) {
  for (const double step : {0.02, 0.2, 2.0}) {
    for (const std::int64_t rows : {100, 16}) {
      SCOPED_TRACE(testing::Message() << "by " << step << " a key, " << rows << " rows");
      Attention a = of_bf16({.q_rows = rows, .kv_rows = 700, .qk_dim = 40, .v_dim = 24});
      a.options.score_mod =
          score_mod([step](Expr s, Expr, Expr, Expr i, Expr j) { return tanh(s) + to_f32(j) * step * to_f32(i % 3); });
      a.plain.mods.score = [step](double s, auto, auto, auto i, auto j) {
        return std::tanh(s) + static_cast<double>(j) * step * static_cast<double>(i % 3);
      };
      expect_bricks(a);
    }
  }
}

/// Small integers beside a large one, all of them exact: chunks that keep a maximum weigh as the first one does.
TEST_F(CpuBricks, ScoresFarFromZero) {
  for (const double level : {250.0, 1000.0, 3000.0, 992e3, 1004e3, -1004e3}) {
    SCOPED_TRACE(testing::Message() << level);
    Attention a = of_bf16({.q_rows = 70, .kv_rows = 900, .qk_dim = 2, .v_dim = 8});
    a.options.scale = a.plain.scale = 1;
    for (std::int64_t i = 0; i < 70; ++i) {
      poke_bf16(a.q, {0, 0, i, 0}, 1000);
      poke_bf16(a.q, {0, 0, i, 1}, static_cast<double>(i % 3));
    }
    for (std::int64_t j = 0; j < 900; ++j) {
      poke_bf16(a.k, {0, 0, j, 0}, level / 1000);
      poke_bf16(a.k, {0, 0, j, 1}, static_cast<double>(j % 2));
      for (std::int64_t d = 0; d < 8; ++d) poke_bf16(a.v, {0, 0, j, d}, j < 256 ? 1 : -1);
    }
    expect_bricks(a);

    // Their lse in two words has no error of a maximum's product with log2 e.
    const Tensor o = nan_tensor(DType::bf16, a.o_shape()), lse = nan_tensor(DType::f32, {1, 1, 70}),
                 rest = nan_tensor(DType::f32, {1, 1, 70});
    AttentionTensors tensors{.q = a.q, .k = a.k, .v = a.v, .o = o.view()};
    tensors.lse = lse.view(), tensors.lse_rest = rest.view();
    attention_into(tensors, a.options);
    for (std::int64_t i = 0; i < 70; ++i) {
      const double found = get_element(lse, {0, 0, i}) + get_element(rest, {0, 0, i});
      EXPECT_NEAR(found - level, std::log(450 + 450 * std::exp(static_cast<double>(i % 3))), 1e-4) << i;
    }
  }
}

TEST_F(CpuBricks, ScalesOfAnySign) {
  for (const double scale : {-0.7, 0.0, 1e-30, 40.0}) {
    Attention a = of_bf16({.q_rows = 70, .kv_rows = 300, .qk_dim = 16, .v_dim = 16});
    a.options.scale = a.plain.scale = scale;
    expect_bricks(a);
  }
}

TEST_F(CpuBricks, LargestScores) {
  Attention a = of_bf16({.q_heads = 2, .kv_heads = 2, .q_rows = 70, .kv_rows = 300, .qk_dim = 16, .v_dim = 16});
  const Tensor wide = nan_tensor(DType::f32, {1, 2, 70}), o = nan_tensor(DType::f32, a.o_shape());
  attention_into({a.q, a.k, a.v, o, {}, wide.view()}, a.options);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 70; ++i) {
      double largest = -kInfinity;
      for (std::int64_t j = 0; j < 300; ++j) {
        double sum = 0;
        for (std::int64_t d = 0; d < 16; ++d) sum += get_element(a.q, {0, h, i, d}) * get_element(a.k, {0, h, j, d});
        largest = std::max(largest, sum * a.plain.scale);
      }
      ASSERT_NEAR(get_element(wide, {0, h, i}), largest, 1e-5) << i;
    }
  }
}

TEST_F(CpuBricks, BlockMasksOfAnyBlockSize) {
  for (const BlockSize block : {BlockSize{1, 1}, BlockSize{7, 48}, BlockSize{128, 64}, BlockSize{48, 40}}) {
    SCOPED_TRACE(testing::Message() << block.q << " x " << block.kv);
    Attention a =
        of_bf16({.batch = 2, .q_heads = 2, .kv_heads = 2, .q_rows = 110, .kv_rows = 205, .qk_dim = 8, .v_dim = 8});
    a.options.mask_mod = mods::sliding_window(40, 20);
    a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i - 40 <= j && j <= i + 20; };
    a.options.block_mask =
        std::make_shared<BlockMask>(BlockMask::build(a.options.mask_mod, MaskShape::uniform(2, 2, 110, 205), block));
    expect_bricks(a);
  }
}

TEST_F(CpuBricks, SequencesOfManyLengths) {
  Attention a = of_bf16({.q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 200, .qk_dim = 8, .v_dim = 8});
  const Tensor q = tensor_of<std::int32_t>(DType::i32, {0, 1, 1, 100, 150});
  const Tensor kv = tensor_of<std::int32_t>(DType::i32, {0, 70, 90, 90, 200});
  a.options.cu_seqlens_q = q;
  a.options.cu_seqlens_kv = kv;
  a.plain.packed = true;
  a.plain.sequences = {{0, 1, 0, 70, 0}, {1, 0, 70, 20, 0}, {1, 99, 90, 0, 0}, {100, 50, 90, 110, 0}};
  expect_bricks(a);
  make_causal(a);
  expect_bricks(a);

  Attention b =
      of_bf16({.batch = 4, .q_heads = 2, .kv_heads = 2, .q_rows = 80, .kv_rows = 150, .qk_dim = 8, .v_dim = 8});
  const std::vector<std::int64_t> rows = {80, 0, 37, 1}, keys = {150, 65, 0, 64};
  const Tensor q_lengths = tensor_of(DType::i64, rows), kv_lengths = tensor_of(DType::i64, keys);
  b.options.q_lengths = q_lengths;
  b.options.kv_lengths = kv_lengths;
  for (std::size_t i = 0; i < 4; ++i) b.plain.sequences[i] = {.q_len = rows[i], .kv_len = keys[i]};
  for (std::int64_t n = 0; n < 4; ++n) {
    for (std::int64_t j = keys[static_cast<std::size_t>(n)]; j < 150; ++j) {
      poke_bf16(b.k, {n, 0, j, 3}, kNan);
      poke_bf16(b.v, {n, 1, j, 4}, kInfinity);
    }
  }
  expect_bricks(b);
}

/// Queries and keys of two tensors each become the same operands, so the results have the same bits.
TEST_F(CpuBricks, RowsOfTwoTensors) {
  const Attention whole = of_bf16({.q_heads = 4, .kv_heads = 2, .q_rows = 70, .kv_rows = 170, .qk_dim = 100});
  const Attention::Result wanted = whole.run();
  const auto columns = [](const Tensor& of, std::int64_t first, std::int64_t end) {
    return copy(slice(ConstTensorView(of), 3, first, end), DType::bf16);
  };
  for (const std::int64_t cut : {1, 32, 40, 64, 99}) {
    Attention a = whole;
    const Tensor q_rest = columns(whole.q, cut, 100), k_rest = columns(whole.k, 100 - cut, 100);
    a.q = columns(whole.q, 0, cut);
    a.k = columns(whole.k, 0, 100 - cut);
    a.options.q_rest = q_rest;
    a.options.k_rest = k_rest;
    const Attention::Result got = a.run();
    EXPECT_EQ(bytes_of(got.o), bytes_of(wanted.o)) << cut;
    EXPECT_EQ(bytes_of(got.lse), bytes_of(wanted.lse)) << cut;
  }
}

TEST_F(CpuBricks, SharedKeysAndPages) {
  Attention a =
      of_bf16({.batch = 3, .q_heads = 4, .kv_heads = 2, .q_rows = 50, .kv_rows = 170, .qk_dim = 24, .v_dim = 40});
  Attention shared = a;
  shared.k = copy(slice(ConstTensorView(a.k), 0, 0, 1), DType::bf16);
  shared.v = copy(slice(ConstTensorView(a.v), 0, 0, 1), DType::bf16);
  expect_bricks(shared);

  // Each sequence's keys in pages of 10 rows, in any order.
  constexpr std::int64_t kPages = 17, kRows = 10;
  std::vector<std::int32_t> numbers(3 * kPages);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i * 20 % numbers.size());
  const auto in_pages = [&](const Tensor& x) {
    const std::int64_t dim = x.shape()[3];
    Tensor pages = nan_tensor(DType::bf16, {3 * kPages, 2, kRows, dim});
    for (std::int64_t n = 0; n < 3; ++n) {
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t j = 0; j < 170; ++j) {
          const std::int64_t page = numbers[static_cast<std::size_t>(n * kPages + j / kRows)];
          for (std::int64_t d = 0; d < dim; ++d) {
            poke_bf16(pages, {page, h, j % kRows, d}, get_element(x, {n, h, j, d}));
          }
        }
      }
    }
    return pages;
  };
  Tensor table = Tensor::empty(DType::i32, {3, kPages});
  std::copy(numbers.begin(), numbers.end(), static_cast<std::int32_t*>(table.data()));
  a.with_lse = false;
  const std::vector<std::byte> expected = bytes_of(a.run().o);
  const Tensor lengths = tensor_of<std::int64_t>(DType::i64, {170, 170, 170});
  Attention paged = a;
  paged.k = in_pages(a.k);
  paged.v = in_pages(a.v);
  paged.options.page_table = table;
  paged.options.kv_lengths = lengths;
  const Tensor o = nan_tensor(DType::f32, {3, 4, 50, 40});
  attention_into(paged.q, paged.k, paged.v, o, std::nullopt, paged.options);
  EXPECT_EQ(bytes_of(o), expected);
}

TEST_F(CpuBricks, SameBitsForAnyNumberOfThreadsAndForRowsBesideOthers) {
  Attention a =
      of_bf16({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 333, .kv_rows = 333, .qk_dim = 32, .v_dim = 32});
  make_causal(a);
  const Attention::Result one = a.run();
  for (const int threads : {0, 2, 3}) {
    a.options.threads = threads;
    const Attention::Result many = a.run();
    EXPECT_EQ(bytes_of(many.o), bytes_of(one.o)) << threads;
    EXPECT_EQ(bytes_of(many.lse), bytes_of(one.lse)) << threads;
  }
}

TEST_F(CpuBricks, SpecialScoresMakeTheirRowNanAndNoOther) {
  for (const double special : {kNan, kInfinity, -kInfinity, -3.4028235e38, 3e38}) {
    for (const std::int64_t key : {0, 127, 128, 299}) {
      Attention a = of_bf16({.q_rows = 70, .kv_rows = 300, .qk_dim = 8, .v_dim = 8});
      const auto value = static_cast<float>(special);
      a.options.score_mod =
          score_mod([&](Expr s, Expr, Expr, Expr i, Expr j) { return where((i == 3) & (j == Expr(key)), value, s); });
      a.plain.mods.score = [=](double s, auto, auto, auto i, auto j) { return i == 3 && j == key ? value : s; };
      expect_bricks(a);
    }
  }
}

TEST_F(CpuBricks, PoisonAtMaskedElementsReachesNothing) {
  for (const double poison : {kNan, kInfinity, -kInfinity}) {
    for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::sigmoid, Normalizer::none}) {
      Attention a = of_bf16({.q_rows = 130, .kv_rows = 300, .qk_dim = 8, .v_dim = 150});
      a.options.normalizer = a.plain.normalizer = normalizer;
      a.with_lse = normalizer == Normalizer::softmax;
      make_causal(a);
      const std::vector<std::byte> clean = bytes_of(a.run().o);
      for (std::int64_t j = 130; j < 300; ++j) {
        for (std::int64_t d = 0; d < 8; ++d) poke_bf16(a.k, {0, 0, j, d}, poison);
        for (std::int64_t d = 0; d < 150; ++d) poke_bf16(a.v, {0, 0, j, d}, poison);
      }
      EXPECT_EQ(bytes_of(a.run().o), clean);
    }
  }
}

TEST_F(CpuBricks, PoisonedRowsStayInTheRowsThatAttendThem) {
  Attention a = of_bf16({.q_rows = 130, .kv_rows = 130, .qk_dim = 8, .v_dim = 8});
  make_causal(a);
  poke_bf16(a.q, {0, 0, 50, 3}, kNan);
  poke_bf16(a.k, {0, 0, 90, 5}, kNan);
  expect_bricks(a);
  for (const double poison : {kNan, kInfinity, -kInfinity}) {
    Attention b = of_bf16({.q_heads = 4, .kv_heads = 2, .q_rows = 192, .kv_rows = 192, .qk_dim = 8, .v_dim = 150});
    make_causal(b);
    for (const std::int64_t d : {2, 149}) poke_bf16(b.v, {0, 1, 100, d}, poison);
    poke_bf16(b.v, {0, 1, 35, 70}, poison);
    expect_bricks(b);
  }
}

/// Rows decide for themselves whether their maximum stays from chunk to chunk, so no row's bits depend on another's.
TEST_F(CpuBricks, ARowWithOtherScoresChangesNoBitOfOthers) {
  for (const bool with_lse : {true, false}) {
    Attention a = of_bf16({.q_rows = 70, .kv_rows = 700, .qk_dim = 8, .v_dim = 24});
    a.with_lse = with_lse;
    const Attention::Result clean = a.run();
    for (const double other : {kNan, kInfinity, 200.0, 1e6}) {
      for (std::int64_t d = 0; d < 8; ++d) poke_bf16(a.q, {0, 0, 40, d}, other);
      const Attention::Result changed = a.run();
      for (std::int64_t i = 0; i < 70; ++i) {
        for (std::int64_t d = 0; d < 24 && i != 40; ++d) {
          ASSERT_EQ(get_element(changed.o, {0, 0, i, d}), get_element(clean.o, {0, 0, i, d})) << i << ", " << other;
        }
      }
    }
  }
}

/// Bricks hold keys beside a block of a mask. If no row of the block's chunk attends them, their values do not count.
TEST_F(CpuBricks, PoisonBesideSmallBlocksReachesNothing) {
  Attention a = of_bf16({.q_rows = 70, .kv_rows = 150, .qk_dim = 8, .v_dim = 24});
  a.plain.mods.mask = [](auto, auto, auto i, auto j) { return (i + j) % 3 != 0; };
  const BlockMask built = BlockMask::build(mask_mod([](Expr, Expr, Expr i, Expr j) { return (i + j) % 3 != 0; }),
                                           MaskShape::uniform(1, 1, 70, 150), BlockSize{1, 1});
  a.options.block_mask = std::make_shared<BlockMask>(
      BlockMask::from_lists(built.to_lists(), MaskShape::uniform(1, 1, 70, 150), BlockSize{1, 1}));
  const Attention::Result clean = a.run();
  for (const std::int64_t j : {3, 60, 63, 147}) poke_bf16(a.v, {0, 0, j, 20}, kNan);
  expect_bricks(a);
  const Attention::Result poisoned = a.run();
  for (std::int64_t i = 0; i < 70; i += 3) {
    for (std::int64_t d = 0; d < 24; ++d) {
      EXPECT_EQ(get_element(poisoned.o, {0, 0, i, d}), get_element(clean.o, {0, 0, i, d})) << i << ", " << d;
    }
  }
}

/// Tensors end at a page that nothing may touch.
/// Queries are multiplied where they stand if they are whole lines of the cache, close to each other, else as a copy.
TEST_F(CpuBricks, QueriesWhereTheyStandAndCopied) {
  const Attention a = of_bf16({.q_heads = 2, .kv_heads = 2, .q_rows = 64, .kv_rows = 130, .qk_dim = 64, .v_dim = 64});
  const auto output = [&](const ConstTensorView& q) {
    const Tensor o = nan_tensor(DType::f32, a.o_shape());
    attention_into({.q = q, .k = a.k, .v = a.v, .o = o}, a.options);
    return bytes_of(o);
  };
  const auto own = output(a.q);
  for (const std::int64_t columns : {96, 320}) {
    for (const std::int64_t first : {0, 8, 32}) {
      const Tensor wide = nan_tensor(DType::bf16, {1, 2, 64, columns});
      const ConstTensorView q = slice(ConstTensorView(wide), 3, first, first + 64);
      for (std::int64_t row = 0; row < 128; ++row) {
        std::memcpy(static_cast<std::uint16_t*>(wide.data()) + row * columns + first,
                    static_cast<const std::uint16_t*>(a.q.data()) + row * 64, 128);
      }
      EXPECT_EQ(output(q), own) << columns << " columns, from " << first;
    }
  }
}

/// Rows of o are rounded by the registers' rounding, and by another one where it would flush numbers.
TEST_F(CpuBricks, OutputsOfBf16AreThoseOfF32Rounded) {
  for (const std::int64_t dim : {16, 72, 128}) {
    Attention a = of_bf16({.q_heads = 2, .kv_heads = 2, .q_rows = 40, .kv_rows = 70, .qk_dim = 16, .v_dim = dim});
    for (std::int64_t key = 0; key < 70; ++key) {
      for (std::int64_t d = 0; d < dim; d += 3) poke_bf16(a.v, {0, 1, key, d}, key % 2 == 0 ? 0x1.5p-125 : -0x1p-125);
    }
    const Tensor o = nan_tensor(DType::f32, a.o_shape()), rounded = nan_tensor(DType::bf16, a.o_shape());
    attention_into({.q = a.q, .k = a.k, .v = a.v, .o = o}, a.options);
    attention_into({.q = a.q, .k = a.k, .v = a.v, .o = rounded}, a.options);
    EXPECT_EQ(bytes_of(rounded), bytes_of(o.to(DType::bf16))) << dim;
  }
}

TEST_F(CpuBricks, NothingPastTheTensorsIsRead) {
  for (const std::int64_t dim : {1, 31, 33, 64}) {
    Attention a = of_bf16({.q_rows = 67, .kv_rows = 129, .qk_dim = dim, .v_dim = dim});
    const Attention::Result expected = a.run();
    std::vector<std::unique_ptr<test::GuardedMemory>> memories;
    const auto guarded = [&](const Tensor& x) {
      const std::int64_t bytes = x.count() * size_of(x.dtype());
      memories.push_back(std::make_unique<test::GuardedMemory>(bytes, test::GuardedMemory::Side::end));
      std::memcpy(memories.back()->data(), x.data(), static_cast<std::size_t>(bytes));
      return ConstTensorView(memories.back()->data(), x.dtype(), x.shape());
    };
    const Tensor o = nan_tensor(DType::f32, a.o_shape()), lse = nan_tensor(DType::f32, {1, 1, 67});
    attention_into(guarded(a.q), guarded(a.k), guarded(a.v), o, lse.view(), a.options);
    EXPECT_EQ(bytes_of(o), bytes_of(expected.o));
  }
}

/// Both ways compute the same bits, on a machine with AMX.
TEST_F(CpuBricks, AmxAndItsStandInComputeTheSameBits) {
  if (cpu::cpu_caps().matrix_unit != device::MatrixUnit::amx) GTEST_SKIP() << "no AMX, or HEDDLE_CPU_AMX=emulated";
  for (const std::int64_t dim : {8, 64, 80, 128}) {
    Attention a = of_bf16({.q_heads = 2, .kv_heads = 2, .q_rows = 177, .kv_rows = 500, .qk_dim = dim, .v_dim = dim});
    make_causal(a);
    const Tensor by_amx = output_by(device::MatrixUnit::amx, a), emulated = output_by(device::MatrixUnit::emulated, a);
    EXPECT_EQ(bytes_of(by_amx), bytes_of(emulated)) << dim;
  }
}

TEST_F(CpuBricks, RowsThatAttendNothingAndSinks) {
  Attention a = of_bf16({.q_heads = 4, .kv_heads = 4, .q_rows = 70, .kv_rows = 340, .qk_dim = 8, .v_dim = 8});
  a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (i % 3 != 0) & (j < i * 5); });
  a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i % 3 != 0 && j < i * 5; };
  expect_bricks(a);
  const std::vector<float> values = {0.5f, -INFINITY, 80.0f, -80.0f};
  const Tensor sinks = tensor_of(DType::f32, values);
  a.options.sinks = sinks;
  a.plain.sinks = {0.5, -kInfinity, 80, -80};
  expect_bricks(a);
}

TEST_F(CpuBricks, SumsMayLeaveTheRangeThatTheirMeanKeeps) {
  Attention a = of_bf16({.q_rows = 130, .kv_rows = 300, .qk_dim = 8, .v_dim = 70});
  for (std::int64_t j = 0; j < 300; ++j) {
    for (std::int64_t d = 0; d < 70; d += 3) poke_bf16(a.v, {0, 0, j, d}, (j / 3 + d) % 2 == 0 ? -3e38 : 3e38);
  }
  expect_bricks(a);
  for (std::int64_t j = 0; j < 300; ++j) {
    for (std::int64_t d = 0; d < 70; d += 3) poke_bf16(a.v, {0, 0, j, d}, 3e38);
  }
  expect_bricks(a);
}

}  // namespace
}  // namespace heddle
