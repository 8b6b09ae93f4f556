// The CPU forward end to end against plain loops in double, on every SIMD target where the arithmetic is at stake.
#include "backend/backends.h"
#include "families/cpu/cpu_attention.h"
#include "families/cpu/cpu_choices.h"

namespace heddle {
namespace {

TEST(CpuForward, OddShapesOfEveryKind) {
  const std::vector<Shape> shapes = {
      {},
      {.q_heads = 2, .q_rows = 7, .kv_rows = 130, .qk_dim = 5, .v_dim = 3},
      {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_rows = 97, .kv_rows = 129, .qk_dim = 40, .v_dim = 24},
      {.q_heads = 5, .q_rows = 13, .kv_rows = 257, .qk_dim = 64, .v_dim = 80},
      {.q_rows = 103, .kv_rows = 63, .qk_dim = 128, .v_dim = 128},
      {.q_rows = 5, .kv_rows = 70, .qk_dim = 576, .v_dim = 512},
      {.q_rows = 9, .kv_rows = 300, .qk_dim = 200, .v_dim = 8},
  };
  on_every_target([&] {
    for (const Shape& shape : shapes) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        SCOPED_TRACE(testing::Message() << name(dtype) << " Sq " << shape.q_rows << " Dqk " << shape.qk_dim);
        Attention a(shape, dtype);
        expect_plain(a);
        make_causal(a);
        expect_plain(a);
      }
    }
  });
}

// Panels that keys fill in part, whose columns are transposed sixteen at a time.
TEST(CpuForward, FewKeysOfManyQueries) {
  on_every_target([&] {
    for (const std::int64_t keys : {1, 15, 16, 17, 47, 64, 65, 97}) {
      for (const std::int64_t dim : {3, 16, 39, 64, 72}) {
        for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
          SCOPED_TRACE(testing::Message() << name(dtype) << ' ' << keys << " keys, D " << dim);
          expect_plain(Attention({.q_heads = 2, .q_rows = 20, .kv_rows = keys, .qk_dim = dim, .v_dim = dim}, dtype));
        }
      }
    }
  });
}

TEST(CpuForward, ZeroSizes) {
  for (const Shape& shape : {Shape{.q_rows = 0, .kv_rows = 5}, Shape{.q_rows = 5, .kv_rows = 0}, Shape{.batch = 0}}) {
    expect_plain(Attention(shape));
  }
}

TEST(CpuForward, EveryStorageOfInputsAndOutput) {
  const Shape shape = {.q_heads = 2, .q_rows = 33, .kv_rows = 75, .qk_dim = 24, .v_dim = 19};
  constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};
  on_every_target([&] {
    for (const DType input : kAll) {
      Attention a(shape, input);
      a.o_dtype = input == DType::f64 ? DType::f64 : DType::f32;
      const Attention::Result wide = a.run();
      expect_plain(a, wide);
      for (const DType output : kAll) {
        // One rounding of what the wide output holds.
        a.o_dtype = output;
        EXPECT_EQ(bytes_of(a.run().o), bytes_of(wide.o.to(output))) << name(input) << " to " << name(output);
      }
    }
  });
}

TEST(CpuForward, DescalesMultiplyWhatIsStored) {
  Attention a({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 9, .kv_rows = 40, .qk_dim = 16, .v_dim = 8},
              DType::e4m3);
  a.o_dtype = DType::f32;
  const Tensor q = random_tensor(DType::f32, {2, 4}, 7), k = random_tensor(DType::f32, {1, 2}, 8),
               v = random_tensor(DType::f32, {2, 1}, 9);
  a.options.q_descale = q;
  a.options.k_descale = k;
  a.options.v_descale = v;
  const auto scaled = [](const Tensor& x, const Tensor& by) {
    Tensor y = x.to(DType::f64);
    const Dims& s = x.shape();
    for (std::int64_t i = 0; i < y.count(); ++i) {
      const std::int64_t b = i / (s[1] * s[2] * s[3]), h = i / (s[2] * s[3]) % s[1];
      static_cast<double*>(y.data())[i] *= get_element(by, {by.shape()[0] == 1 ? 0 : b, by.shape()[1] == 1 ? 0 : h});
    }
    return y;
  };
  const Attention::Result result = a.run();
  Attention expected = a;
  expected.q = scaled(a.q, q);
  expected.k = scaled(a.k, k);
  expected.v = scaled(a.v, v);
  // expect_plain takes the arithmetic's precision from q.
  PlainProblem plain = a.plain;
  plain.q = expected.q;
  plain.k = expected.k;
  plain.v = expected.v;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t i = 0; i < 9; ++i) {
        const PlainRow row = plain_row(plain, b, h, i);
        for (std::int64_t d = 0; d < 8; ++d) {
          EXPECT_NEAR(get_element(result.o, {b, h, i, d}), row.o[static_cast<std::size_t>(d)],
                      1e-5 * row.magnitude[static_cast<std::size_t>(d)] + 1e-30);
        }
      }
    }
  }
}

TEST(CpuForward, StridedViewsAndBroadcastBatches) {
  Attention a({.batch = 3, .q_heads = 4, .kv_heads = 2, .q_rows = 21, .kv_rows = 70, .qk_dim = 16, .v_dim = 12});
  const Attention::Result expected = a.run();
  // These tensors hold the same numbers in [B, S, H, D] memory.
  const auto transposed = [](const Tensor& x) { return copy(permute(ConstTensorView(x), {0, 2, 1, 3}), x.dtype()); };
  const Tensor q = transposed(a.q), k = transposed(a.k), v = transposed(a.v),
               o = nan_tensor(DType::f32, {3, 21, 4, 12});
  attention_into(permute(ConstTensorView(q), {0, 2, 1, 3}), permute(ConstTensorView(k), {0, 2, 1, 3}),
                 permute(ConstTensorView(v), {0, 2, 1, 3}), permute(TensorView(o), {0, 2, 1, 3}), std::nullopt,
                 a.options);
  EXPECT_EQ(bytes_of(transposed(o)), bytes_of(expected.o));

  for (const std::string which : {"q", "k", "v", "kv"}) {
    SCOPED_TRACE(which);
    Attention b = a;
    const auto first = [](const Tensor& x) { return copy(slice(ConstTensorView(x), 0, 0, 1), x.dtype()); };
    if (which == "q") b.q = first(a.q);
    if (which.starts_with('k')) b.k = first(a.k);
    if (which.ends_with('v')) b.v = first(a.v);
    const std::vector<std::int64_t> lengths = {70, 3, 41};
    const Tensor kv_lengths = tensor_of(DType::i64, lengths);
    b.options.kv_lengths = kv_lengths;
    for (std::size_t i = 0; i < 3; ++i) b.plain.sequences[i].kv_len = lengths[i];
    expect_plain(b);
  }
}

TEST(CpuForward, ModsOfEveryRole) {
  on_every_target([] {
    const Shape shape = {
        .batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 101, .kv_rows = 150, .qk_dim = 16, .v_dim = 20};
    for (const DType dtype : {DType::f32, DType::f64}) {
      Attention a(shape, dtype);
      a.options.score_mod = score_mod(
          [](Expr s, Expr, Expr h, Expr i, Expr j) { return tanh(s) * 3.0 + to_f32(j - i) * 0.03125 * to_f32(h); });
      a.plain.mods.score = [](double s, auto, auto h, auto i, auto j) {
        return std::tanh(s) * 3.0 + static_cast<double>(j - i) * 0.03125 * static_cast<double>(h);
      };
      expect_plain(a);
      a.options.weight_mod = mask_mod([](Expr b, Expr h, Expr i, Expr j) { return to_f32((i + j + b + h) % 3) * 0.5; });
      a.plain.mods.weight = [](auto b, auto h, auto i, auto j) {
        return static_cast<double>((i + j + b + h) % 3) * 0.5;
      };
      expect_plain(a);
      a.options.mask_mod = mods::sliding_window(30, 5);
      a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i - 30 <= j && j <= i + 5; };
      expect_plain(a);
      const Tensor sinks = random_tensor(dtype, {4}, 11);
      a.options.sinks = sinks;
      for (std::int64_t h = 0; h < 4; ++h) a.plain.sinks.push_back(get_element(sinks, {h}));
      expect_plain(a);
    }
  });
}

// An exact score is exact after scaling: a mod may ask for scores of 0.
TEST(CpuForward, ScoresOfExactlyZeroAreZero) {
  const auto integers = [](DType dtype, const Dims& shape, unsigned seed) {
    std::mt19937 generator(seed);
    Tensor x = Tensor::empty(DType::f64, shape);
    for (std::int64_t i = 0; i < x.count(); ++i)
      static_cast<double*>(x.data())[i] = static_cast<int>(generator() % 7) - 3;
    return x.to(dtype);
  };
  on_every_target([&] {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const std::int64_t dim : {1, 3, 5, 64, 67, 130}) {
        Attention a({.q_heads = 2, .kv_heads = 1, .q_rows = 20, .kv_rows = 90, .qk_dim = dim, .v_dim = 1}, dtype);
        a.q = integers(dtype, a.q.shape(), 5);
        a.k = integers(dtype, a.k.shape(), 6);
        a.o_dtype = DType::f32;
        if (dtype == DType::f64) a.o_dtype = DType::f64;
        std::fill_n(static_cast<double*>((a.v = Tensor::empty(DType::f64, a.v.shape())).data()), 90, 1.0);
        a.v = a.v.to(dtype);
        a.with_lse = false;
        a.options.normalizer = Normalizer::none;
        a.options.score_mod =
            score_mod([](Expr s, Expr, Expr, Expr, Expr) { return where(s == 0.0, Expr(1.0), Expr(0.0)); });
        const Attention::Result result = a.run();
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t i = 0; i < 20; ++i) {
            int zeros = 0;
            for (std::int64_t j = 0; j < 90; ++j) {
              double sum = 0;
              for (std::int64_t d = 0; d < dim; ++d)
                sum += get_element(a.q, {0, h, i, d}) * get_element(a.k, {0, 0, j, d});
              zeros += sum == 0 ? 1 : 0;
            }
            ASSERT_EQ(get_element(result.o, {0, h, i, 0}), zeros) << name(dtype) << ", D " << dim << ", row " << i;
          }
        }
      }
    }
  });
}

TEST(CpuForward, OtherNormalizers) {
  on_every_target([] {
    for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
      Attention a({.q_heads = 2, .q_rows = 50, .kv_rows = 140, .qk_dim = 8, .v_dim = 9});
      a.with_lse = false;
      a.options.normalizer = a.plain.normalizer = normalizer;
      expect_plain(a);
      make_causal(a);
      expect_plain(a);
      // Masked by the score itself.
      a.options.score_mod = score_mod([](Expr s, Expr, Expr, Expr, Expr j) { return where(j % 3 == 0, s, -INFINITY); });
      a.plain.mods.score = [](double s, auto, auto, auto, auto j) { return j % 3 == 0 ? s : -kInfinity; };
      expect_plain(a);
      a.options.weight_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return to_f32(i - j); });
      a.plain.mods.weight = [](auto, auto, auto i, auto j) { return static_cast<double>(i - j); };
      expect_plain(a);
    }
  });
}

TEST(CpuForward, BlockMasksOfAnyBlockSize) {
  for (const BlockSize block :
       {BlockSize{1, 1}, BlockSize{7, 48}, BlockSize{128, 64}, BlockSize{48, 40}, BlockSize{300, 100}}) {
    SCOPED_TRACE(testing::Message() << block.q << " x " << block.kv);
    Attention a({.batch = 2, .q_heads = 2, .q_rows = 110, .kv_rows = 205, .qk_dim = 8, .v_dim = 8});
    a.options.mask_mod = mods::sliding_window(40, 20);
    a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i - 40 <= j && j <= i + 20; };
    a.options.block_mask =
        std::make_shared<BlockMask>(BlockMask::build(a.options.mask_mod, MaskShape::uniform(2, 2, 110, 205), block));
    expect_plain(a);
    a.options.mask_mod = {};
    expect_plain(a);
  }
}

TEST(CpuForward, PartialBlocksOfListsWithoutAMaskCountAsFull) {
  Attention a({.q_rows = 64, .kv_rows = 96, .qk_dim = 8, .v_dim = 8});
  BlockLists lists;
  lists.kv_num_blocks =
      copy(TensorView(tensor_of<std::int32_t>(DType::i32, {2, 1}).data(), DType::i32, {1, 1, 2}), DType::i32);
  const Tensor indices = tensor_of<std::int32_t>(DType::i32, {0, 2, 0, 1, 0, 0});
  lists.kv_indices = copy(TensorView(indices.data(), DType::i32, {1, 1, 2, 3}), DType::i32);
  a.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::from_lists(lists, MaskShape::uniform(1, 1, 64, 96), BlockSize{32, 32}));
  a.plain.mods.mask = [](auto, auto, auto i, auto j) { return i < 32 ? j / 32 != 1 : j / 32 == 1; };
  expect_plain(a);
}

TEST(CpuForward, LengthsAndStarts) {
  Attention a({.batch = 4, .q_heads = 2, .q_rows = 40, .kv_rows = 150, .qk_dim = 8, .v_dim = 8});
  const std::vector<std::int64_t> q = {40, 0, 17, 1}, kv = {150, 65, 0, 64}, start = {3, 0, 100, 63};
  const Tensor q_lengths = tensor_of(DType::i64, q), kv_lengths = tensor_of(DType::i64, kv),
               starts = tensor_of(DType::i64, start);
  a.options.q_lengths = q_lengths;
  a.options.kv_lengths = kv_lengths;
  a.options.q_start = starts;
  for (std::size_t i = 0; i < 4; ++i) a.plain.sequences[i] = {.q_len = q[i], .kv_len = kv[i], .q_start = start[i]};
  expect_plain(a);
  make_causal(a);
  expect_plain(a);
  // Whatever lies past the ends stays there.
  for (std::int64_t b = 0; b < 4; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t d = 0; d < 8; ++d) {
        for (std::int64_t i = q[static_cast<std::size_t>(b)]; i < 40; ++i) poke(a.q, {b, h, i, d}, kNan);
        if (h > 0) continue;
        for (std::int64_t j = kv[static_cast<std::size_t>(b)]; j < 150; ++j) {
          poke(a.k, {b, h, j, d}, kNan);
          poke(a.v, {b, h, j, d}, d % 2 == 0 ? kNan : kInfinity);
        }
      }
    }
  }
  expect_plain(a);
}

TEST(CpuForward, PackedBatches) {
  Attention a({.q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 200, .qk_dim = 8, .v_dim = 8});
  const Tensor q = tensor_of<std::int32_t>(DType::i32, {0, 1, 1, 100, 150});
  const Tensor kv = tensor_of<std::int32_t>(DType::i32, {0, 70, 90, 90, 200});
  a.options.cu_seqlens_q = q;
  a.options.cu_seqlens_kv = kv;
  a.plain.packed = true;
  a.plain.sequences = {{0, 1, 0, 70, 0}, {1, 0, 70, 20, 0}, {1, 99, 90, 0, 0}, {100, 50, 90, 110, 0}};
  expect_plain(a);
  make_causal(a);
  expect_plain(a);
  a.options.score_mod = score_mod([](Expr s, Expr b, Expr, Expr, Expr) {
    return s + to_f32(b) + to_f32(leaf::kv_token() - leaf::q_token()) * 0.01;
  });
  const auto sequences = a.plain.sequences;
  a.plain.mods.score = [sequences](double s, auto b, auto, auto i, auto j) {
    const Sequence& sequence = sequences[static_cast<std::size_t>(b)];
    const std::int64_t distance = sequence.kv_begin + j - sequence.q_begin - i;
    return s + static_cast<double>(b) + static_cast<double>(distance) * static_cast<double>(0.01f);
  };
  expect_plain(a);
}

TEST(CpuForward, TheSameBitsForAnyNumberOfThreads) {
  Attention a({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 333, .kv_rows = 333, .qk_dim = 32, .v_dim = 32});
  make_causal(a);
  a.options.score_mod = mods::softcap(20);
  const Attention::Result one = a.run();
  for (const int threads : {0, 2, 3, 7}) {
    a.options.threads = threads;
    const Attention::Result many = a.run();
    EXPECT_EQ(bytes_of(many.o), bytes_of(one.o)) << threads;
    EXPECT_EQ(bytes_of(many.lse), bytes_of(one.lse)) << threads;
  }
}

/// A workspace that holds the packed keys and values of one pair at a time.
TEST(CpuForward, LaunchesInWavesWhereTheWorkspaceIsSmall) {
  enum class Way { packed, packed_with_shared_keys, in_pieces };
  for (const Way way : {Way::packed, Way::packed_with_shared_keys, Way::in_pieces}) {
    const std::int64_t q_rows = way == Way::in_pieces ? 2 : 50, scale = way == Way::in_pieces ? 40 : 1;
    Attention a(
        {.batch = 3, .q_heads = 4, .kv_heads = 2, .q_rows = q_rows, .kv_rows = 200 * scale, .qk_dim = 24, .v_dim = 40});
    const std::vector<std::int64_t> lengths = {120 * scale, 200 * scale, 7 * scale};
    const Tensor kv_lengths = tensor_of(DType::i64, lengths);
    a.options.kv_lengths = kv_lengths;
    for (std::size_t i = 0; i < 3; ++i) a.plain.sequences[i].kv_len = lengths[i];
    if (way == Way::packed_with_shared_keys) a.k = copy(slice(ConstTensorView(a.k), 0, 0, 1), DType::f32);
    const Attention::Result expected = a.run();

    Attention::Result got{nan_tensor(DType::f32, a.o_shape()), nan_tensor(DType::f32, {3, 4, q_rows})};
    const AttentionTensors tensors = {a.q, a.k, a.v, got.o, got.lse.view()};
    const problem::AttentionProblem problem = problem::validate(tensors, a.options);
    plan::Plan plan = plan::cpu_forward(problem, 2, cpu::cpu_caps());
    const std::int64_t pair = way == Way::in_pieces ? plan::cpu_forward_partials(problem, problem.sequences[1]).bytes
                                                    : plan::cpu_forward_packed_k_bytes(problem, 200) +
                                                          plan::cpu_forward_packed_v_bytes(problem, 200);
    EXPECT_GT(plan::cpu_forward_pair_bytes(problem, plan.tile.q), 3 * pair);
    plan.workspace_bytes = pair + 2 * plan::cpu_forward_scratch(problem, plan.tile.q).bytes;
    Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes});
    std::memset(workspace.data(), 0xff, static_cast<std::size_t>(plan.workspace_bytes));
    cpu::prepare_forward({problem, plan, tensors, a.options, {}, nullptr})
        ->launch({tensors, &a.options, &a.options.bindings, nullptr, workspace.data()});
    expect_plain(a, got);
    EXPECT_EQ(bytes_of(got.o), bytes_of(expected.o));
  }
}

TEST(CpuForward, ReportsProgressForward) {
  Attention a({.q_heads = 8, .q_rows = 512, .kv_rows = 1024, .qk_dim = 64, .v_dim = 64});
  a.with_lse = false;
  std::vector<double> seen;
  a.options.threads = 2;
  a.options.progress = [&](double done) { seen.push_back(done); };
  a.run();
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  for (const double done : seen) EXPECT_TRUE(done > 0 && done <= 1) << done;
}

}  // namespace
}  // namespace heddle
