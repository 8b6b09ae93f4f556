// The CPU forward with few queries and many keys, which it splits over the threads and merges.
#include "families/cpu/cpu_attention.h"

namespace heddle {
namespace {

/// Few queries over many keys: read in place, several heads in a tile, and in pieces beyond plan::kSplitKeys keys.
TEST(CpuForward, DecodesInPiecesOfTheKeys) {
  on_every_target([] {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const std::int64_t rows : {1, 3}) {
        const std::int64_t keys = 2 * plan::kSplitKeys + 77;
        Attention a(
            {.batch = 3, .q_heads = 6, .kv_heads = 2, .q_rows = rows, .kv_rows = keys, .qk_dim = 8, .v_dim = 12},
            dtype);
        a.o_dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
        const std::vector<std::int64_t> kv = {keys, plan::kSplitKeys, 5},
                                        start = {keys - rows, plan::kSplitKeys - rows, 5 - rows};
        const Tensor kv_lengths = tensor_of(DType::i64, kv), starts = tensor_of(DType::i64, start);
        a.options.kv_lengths = kv_lengths;
        a.options.q_start = starts;
        for (std::size_t i = 0; i < 3; ++i)
          a.plain.sequences[i] = {.q_len = rows, .kv_len = kv[i], .q_start = start[i]};
        expect_plain(a);
        make_causal(a);
        expect_plain(a);
        const Tensor sinks = random_tensor(dtype == DType::f64 ? DType::f64 : DType::f32, {6}, 11);
        a.options.sinks = sinks;
        for (std::int64_t h = 0; h < 6; ++h) a.plain.sinks.push_back(get_element(sinks, {h}));
        expect_plain(a);
        // Pieces without a key, and a mask and a score that tell the heads of a tile apart.
        a.options.mask_mod = mask_mod([](Expr, Expr h, Expr i, Expr j) { return (j <= i) & (j > i - h * 40); });
        a.plain.mods.mask = [](auto, auto h, auto i, auto j) { return j <= i && j > i - h * 40; };
        a.options.score_mod = score_mod([](Expr s, Expr, Expr h, Expr, Expr) { return s * to_f32(h + 1); });
        a.plain.mods.score = [](double s, auto, auto h, auto, auto) { return s * static_cast<double>(h + 1); };
        expect_plain(a);
      }
    }
  });
}

/// A head that attends fewer keys than the sequence has may have more pieces than all keys would.
TEST(CpuForward, DecodesByMasksThatLeaveOneHeadFewerKeys) {
  for (const auto& [keys, left] : {std::pair{3137, 3136}, {4097, 4096}, {8193, 8192}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      SCOPED_TRACE(testing::Message() << left << " of " << keys << " keys, " << name(dtype));
      Attention a({.q_heads = 3, .q_rows = 1, .kv_rows = keys, .qk_dim = 8, .v_dim = 8}, dtype);
      const auto last = static_cast<std::int64_t>(left);
      a.options.mask_mod = mask_mod([&](Expr, Expr h, Expr, Expr j) { return (j < last) | (h > 0); });
      a.plain.mods.mask = [&](auto, auto h, auto, auto j) { return j < last || h > 0; };
      expect_plain(a);
    }
  }
}

TEST(CpuForward, DecodesWithTheOtherNormalizersAndTheSameBitsForAnyNumberOfThreads) {
  for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::sigmoid, Normalizer::none}) {
    Attention a({.q_heads = 4, .kv_heads = 2, .q_rows = 2, .kv_rows = 7000, .qk_dim = 32, .v_dim = 32});
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

/// Poison that no row attends reaches no bit; poison that rows attend reaches them. Head dimensions of whole vectors
/// and of less, which are staged.
TEST(CpuForward, DecodingKeepsPoisonOut) {
  on_every_target([] {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const std::int64_t dim : {8, 64}) {
        SCOPED_TRACE(testing::Message() << name(dtype) << " dim " << dim);
        Attention a({.q_heads = 2, .q_rows = 2, .kv_rows = 5000, .qk_dim = dim, .v_dim = dim}, dtype);
        a.options.mask_mod = mask_mod([](Expr, Expr, Expr i, Expr j) { return (j % 100 == 7) & (j > i * 2500); });
        a.plain.mods.mask = [](auto, auto, auto i, auto j) { return j % 100 == 7 && j > i * 2500; };
        const std::vector<std::byte> clean = bytes_of(a.run().o);
        for (std::int64_t j = 0; j < 5000; ++j) {
          if (j % 100 == 7) continue;
          poke(a.k, {0, 0, j, 3}, kNan);
          poke(a.v, {0, 0, j, 5}, j % 2 == 0 ? kNan : kInfinity);
        }
        EXPECT_EQ(bytes_of(a.run().o), clean);
        poke(a.v, {0, 0, 4907, 2}, kInfinity);
        poke(a.q, {0, 1, 1, 0}, kNan);
        poke(a.k, {0, 0, 107, 3}, kNan);
        expect_plain(a);
      }
    }
  });
}

/// Every number of rows up to several blocks of them, by dot products and by quads, at head dimensions of whole pairs
/// of vectors, of whole quads and of neither.
TEST(CpuForward, DecodesF64InEveryBlockOfRows) {
  on_every_target([] {
    for (const std::int64_t dim : {32, 20, 13}) {
      for (std::int64_t rows = 1; rows <= 18; ++rows) {
        SCOPED_TRACE(testing::Message() << rows << " rows, dim " << dim);
        expect_plain(
            Attention({.q_heads = rows, .q_rows = 1, .kv_rows = 171, .qk_dim = dim, .v_dim = dim}, DType::f64));
      }
    }
  });
}

/// Sums of values near the end of f64's range leave it, although their mean does not.
TEST(CpuForward, DecodesLargeValuesOfF64) {
  on_every_target([] {
    for (const std::int64_t dim : {32, 13}) {
      Attention a({.q_heads = 3, .q_rows = 1, .kv_rows = 300, .qk_dim = dim, .v_dim = dim}, DType::f64);
      auto* values = static_cast<double*>(a.v.data());
      for (std::int64_t i = 0; i < a.v.count(); ++i) values[i] = i % 3 == 0 ? 0.875 : -0.875 / static_cast<double>(i);
      const Tensor o = a.run().o;
      for (std::int64_t i = 0; i < a.v.count(); ++i) values[i] = std::ldexp(values[i], 1023);
      const Tensor large = a.run().o;
      for (std::int64_t i = 0; i < o.count(); ++i) {
        const double expected = static_cast<const double*>(o.data())[i];
        EXPECT_NEAR(std::ldexp(static_cast<const double*>(large.data())[i], -1023), expected, 1e-13) << i;
      }
    }
  });
}

/// A NaN among keys and one among values of 8 bits, where conversions do not keep it: rows of dot products and of
/// quads.
TEST(CpuForward, DecodingSeesNanOfEightBits) {
  on_every_target([] {
    for (const bool of_values : {false, true}) {
      for (const std::int64_t rows : {1, 4, 13, 16}) {
        for (const std::int64_t byte : {0x7f, 0xff}) {
          Attention a({.q_heads = rows, .q_rows = 1, .kv_rows = 200, .qk_dim = 64, .v_dim = 64}, DType::e4m3);
          auto* bytes = static_cast<std::uint8_t*>((of_values ? a.v : a.k).data());
          bytes[150 * 64 + 33] = static_cast<std::uint8_t>(byte);
          SCOPED_TRACE(rows);
          expect_plain(a);
        }
      }
    }
  });
}

}  // namespace
}  // namespace heddle
