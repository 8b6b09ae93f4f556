// Refusals of the Hopper family, sentence by sentence; and cases that it just takes.
#include "plan/hopper/sm90_refuses.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "families/forward_sm90/forward_sm90.h"
#include "heddle/mods.h"
#include "plan/hopper.h"

namespace heddle::test {
namespace {

/// A call that is taken, to be spoilt. Changes of the problem come after validation, which refuses many of them itself.
struct Refusal {
  HopperCall call{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 100, .kv_rows = 50, .dim = 64};
  device::CudaCaps caps = h200();
  problem::AttentionProblem problem = call.problem();
  AttentionTensors tensors = call.tensors();
  AttentionOptions options{};

  std::string sentence() const { return plan::sm90_refuses(problem, options, caps); }
};

TEST(ForwardSm90Refuses, NothingThatItTakes) {
  EXPECT_EQ(Refusal().sentence(), "");
  for (const std::int64_t dim : {8, 64, 80, 96, 128, 192, 200, 256}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const bool with_lse : {true, false}) {
        Refusal r{.call = {.batch = 3, .dim = dim, .mask = mods::causal(), .dtype = dtype, .with_lse = with_lse}};
        EXPECT_EQ(r.sentence(), "") << dim << name(dtype);
      }
    }
  }
}

TEST(ForwardSm90Refuses, NeitherSinksNorOtherNormalizers) {
  HopperCall with_sinks{.q_heads = 4, .kv_heads = 2};
  with_sinks.options.sinks = ConstTensorView(nullptr, DType::f32, {4});
  EXPECT_EQ(Refusal{.call = with_sinks}.sentence(), "");
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
    HopperCall call{.with_lse = false};
    call.options.normalizer = normalizer;
    EXPECT_EQ(Refusal{.call = call}.sentence(), "");
  }
}

TEST(ForwardSm90Refuses, NoEmptyTensors) {
  for (const HopperCall& call : {HopperCall{.batch = 0}, HopperCall{.q_heads = 0}, HopperCall{.q_rows = 0},
                                 HopperCall{.kv_rows = 0, .mask = mods::causal()}}) {
    EXPECT_EQ(Refusal{.call = call}.sentence(), "");
  }
}

TEST(ForwardSm90Refuses, OtherDevices) {
  Refusal r;
  r.caps.major = 8;
  r.caps.name = "NVIDIA A100";
  EXPECT_EQ(r.sentence(), "cuda:0 (NVIDIA A100) has compute capability 8.0; 9.0 is accepted");
  r.caps.major = 9;
  r.caps.minor = 1;
  EXPECT_EQ(r.sentence(), "cuda:0 (NVIDIA A100) has compute capability 9.1; 9.0 is accepted");
  r.caps = h200();
  r.caps.shared_memory_bytes = 166912;
  EXPECT_EQ(r.sentence(),
            "cuda:0 (NVIDIA H200) lends a block 166912 bytes of shared memory; at least 232448 are accepted");
}

TEST(ForwardSm90Refuses, OtherTypes) {
  Refusal r;
  r.problem.v_dtype = DType::f16;
  const std::string accepted = "bf16 for all or f16 for all is accepted, or each of e4m3 or e5m2";
  EXPECT_EQ(r.sentence(), "q, k, v are bf16, bf16, f16; " + accepted);
  r.problem.q_dtype = r.problem.k_dtype = r.problem.v_dtype = DType::f32;
  EXPECT_EQ(r.sentence(), "q, k, v are f32, f32, f32; " + accepted);
  r = {};
  r.problem.k_dtype = r.problem.v_dtype = DType::e4m3;
  EXPECT_EQ(r.sentence(), "q, k, v are bf16, e4m3, e4m3; " + accepted);
}

TEST(ForwardSm90Refuses, OtherHeadDimensions) {
  for (const std::int64_t dim : {0, 257, 512}) {
    Refusal r;
    r.problem.qk_dim = dim;
    EXPECT_EQ(r.sentence(), fmt::format("q and k have head dimension {}; 1 to 256 are accepted", dim));
    r.problem.qk_dim = 64;
    r.problem.v_dim = dim;
    EXPECT_EQ(r.sentence(), fmt::format("v has head dimension {}; 1 to 256 are accepted", dim));
  }
  for (const auto& [dim, v_dim] : {std::pair(192, 128), {64, 128}, {128, 64}, {256, 8}, {8, 256}}) {
    EXPECT_EQ((Refusal{.call = {.dim = dim, .v_dim = v_dim}}).sentence(), "") << dim << "/" << v_dim;
  }
}

TEST(ForwardSm90Refuses, OptionsOfOtherKernels) {
  Refusal r;
  const ConstTensorView view(nullptr, DType::f32, {4});
  r.problem.with_sinks = true;
  r.options.sinks = view;
  EXPECT_EQ(r.sentence(), "");
  r.problem.q_dtype = r.problem.k_dtype = r.problem.v_dtype = DType::e4m3;
  EXPECT_EQ(r.sentence(), "");
}

// Weights that no row's sum bounds have no room in P of 8 bits.
TEST(ForwardSm90Refuses, OtherNormalizersInEightBits) {
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
    Refusal r;
    r.problem.normalizer = normalizer;
    EXPECT_EQ(r.sentence(), "");
    r.problem.q_dtype = r.problem.k_dtype = r.problem.v_dtype = DType::e5m2;
    EXPECT_EQ(r.sentence(), fmt::format("normalizer is {} and q is e5m2; softmax is accepted for q, k and v of 8 bits",
                                        problem::name(normalizer)));
  }
}

TEST(ForwardSm90Refuses, RowsOfTwoTensors) {
  Refusal r;
  r.problem.q_rest_dim = 64;
  EXPECT_EQ(r.sentence(), "q_rest is given; queries of one tensor are accepted");
  r.problem.q_rest_dim = 0;
  r.problem.k_rest_dim = 64;
  EXPECT_EQ(r.sentence(), "k_rest is given; keys of one tensor are accepted");
}

TEST(ForwardSm90Refuses, NoMixtureOfEightBits) {
  const ConstTensorView view(nullptr, DType::f32, {4});
  for (const DType q : {DType::e4m3, DType::e5m2}) {
    for (const DType k : {DType::e4m3, DType::e5m2}) {
      for (const DType v : {DType::e4m3, DType::e5m2}) {
        Refusal r;
        r.problem.q_dtype = q;
        r.problem.k_dtype = k;
        r.problem.v_dtype = v;
        r.options.q_descale = r.options.k_descale = r.options.v_descale = view;
        EXPECT_EQ(r.sentence(), "");
      }
    }
  }
}

// P of 8 bits has no room for weights without a known bound.
TEST(ForwardSm90Refuses, WeightsWithoutABoundInEightBits) {
  Refusal r;
  r.problem.q_dtype = r.problem.k_dtype = r.problem.v_dtype = DType::e4m3;
  for (const double taken : {0.0, 1.0, -1.5, 16.0}) {
    r.problem.weight_mod = where(leaf::kv_idx() > 3, Expr(taken), Expr(1.0));
    EXPECT_EQ(r.sentence(), "") << taken;
  }
  r.problem.weight_mod = where(leaf::kv_idx() > 3, Expr(-17.0), Expr(1.0));
  EXPECT_THAT(r.sentence(), testing::HasSubstr("is not proven to stay inside -16 .. 16, where"));
  r.problem.weight_mod = Capture("weights", DType::f32, 1)(leaf::kv_idx());
  EXPECT_THAT(r.sentence(), testing::StartsWith("weight_mod is weights[kv_idx], which is not proven"));
  r.problem.q_dtype = r.problem.k_dtype = r.problem.v_dtype = DType::bf16;
  EXPECT_EQ(r.sentence(), "");
}

TEST(ForwardSm90Refuses, ScalesOutsideOfF32) {
  Refusal r;
  for (const double scale : {1e39, -1e39, 3e38}) {
    r.problem.scale = scale;
    EXPECT_EQ(r.sentence(), fmt::format("scale is {}; numbers in the range of f32 are accepted", scale));
  }
  for (const double scale : {-0.125, 0.0, 1e-40, 1e-37, 1.0, 1e38}) {
    r.problem.scale = scale;
    EXPECT_EQ(r.sentence(), "");
  }
  r.problem.score_mod = leaf::score() * 10.0;
  EXPECT_EQ(r.sentence(),
            "scale is 1e+38, and score_mod multiplies it by 10; numbers in the range of f32 are accepted");
}

TEST(ForwardSm90Refuses, NoSequencesThatDiffer) {
  Refusal r;
  r.problem.sequences[1].q_len = 99;
  r.problem.sequences[0].kv_len = 0;
  r.problem.sequences[1].q_start = -50;
  EXPECT_EQ(r.sentence(), "");
  const std::array<std::int32_t, 4> ends = {0, 30, 30, 100}, kv_ends = {0, 1, 20, 50};
  HopperCall packed = {.q_rows = 100, .kv_rows = 50};
  packed.options.cu_seqlens_q = ConstTensorView(ends.data(), DType::i32, {4});
  packed.options.cu_seqlens_kv = ConstTensorView(kv_ends.data(), DType::i32, {4});
  EXPECT_EQ(Refusal{.call = packed}.sentence(), "");
}

TEST(ForwardSm90Refuses, MoreThanItsListsCount) {
  constexpr std::int64_t kLast = (std::int64_t{1} << 31) - 1024;
  constexpr std::int64_t kLastKey = std::int64_t{1} << 25;
  Refusal r{.call = {.q_rows = kLast, .kv_rows = kLastKey}};
  EXPECT_EQ(r.sentence(), "");
  r = Refusal{.call = {.kv_rows = kLastKey + 1}};
  EXPECT_EQ(r.sentence(), "k has 33554433 rows; up to 33554432 are accepted");
  r = Refusal{.call = {.q_rows = kLast + 1}};
  EXPECT_EQ(r.sentence(), "q has 2147482625 rows; up to 2147482624 are accepted");
  r = Refusal{.call = {.batch = 1 << 18, .q_heads = 64, .q_rows = 128}};
  EXPECT_EQ(r.sentence(), "");
  r = Refusal{.call = {.batch = 1 << 18, .q_heads = 64, .q_rows = 129}};
  EXPECT_EQ(r.sentence(),
            "262144 sequences of 64 heads and 129 queries make 33554432 tiles of 128 queries; up to 16777216 are "
            "accepted");
}

TEST(ForwardSm90Refuses, ModsThatReadTooMuch) {
  Refusal r;
  Expr params = leaf::q_idx() >= leaf::kv_idx();
  for (int i = 0; i < shared::kModParams; ++i) params = params & param(fmt::format("p{}", i), ExprType::boolean);
  r.problem.mask_mod = params;
  EXPECT_EQ(r.sentence(), "");
  r.problem.mask_mod = params & param("one_more", ExprType::boolean);
  EXPECT_EQ(r.sentence(), "the mods read 17 params; up to 16 are accepted");

  Expr captures = leaf::q_idx() >= leaf::kv_idx();
  const auto read = [](int i) { return Capture(fmt::format("c{}", i), DType::boolean, 1)(leaf::q_idx()); };
  for (int i = 0; i < shared::kModCaptures; ++i) captures = captures & read(i);
  r.problem.mask_mod = captures;
  EXPECT_EQ(r.sentence(), "");
  r.problem.weight_mod = to_f32(read(0));
  EXPECT_EQ(r.sentence(), "");
  r.problem.weight_mod = to_f32(read(99));
  EXPECT_EQ(r.sentence(), "the mods read 9 captures; up to 8 are accepted");

  // A kv_start takes one of either.
  r.problem.weight_mod = {};
  const Sequence own = r.problem.sequences.front();
  r.problem.sequences = {own, own};
  r.problem.sequences[1].kv_start = 64;
  EXPECT_EQ(r.sentence(), "the mods read 8 captures, and kv_start takes one more; up to 8 are accepted");
  r.problem.sequences[0].kv_start = 64;
  EXPECT_EQ(r.sentence(), "");
  r.problem.mask_mod = params;
  EXPECT_EQ(r.sentence(), "the mods read 16 params, and kv_start takes one more; up to 16 are accepted");
}

TEST(ForwardSm90Refuses, CapturesThatTheModsCannotReach) {
  const Device cuda{DeviceKind::cuda, 0};
  const Capture flags("flags", DType::boolean, 1);
  Refusal r;
  r.problem.mask_mod = flags(leaf::kv_idx());
  ConstTensorView view(nullptr, DType::boolean, Dims{50}, cuda);
  const auto sentence_with = [&](const ConstTensorView& capture) {
    r.options.bindings.captures["flags"] = capture;
    return r.sentence();
  };
  EXPECT_EQ(sentence_with(view), "");
  view.device = {};
  EXPECT_EQ(sentence_with(view), "capture 'flags' is on the CPU; cuda:0, where q is, is accepted");
  view.device = {DeviceKind::cuda, 1};
  EXPECT_EQ(sentence_with(view), "capture 'flags' is on cuda:1; cuda:0, where q is, is accepted");
  EXPECT_EQ(sentence_with(ConstTensorView(nullptr, DType::boolean, Dims{std::int64_t{1} << 31}, cuda)),
            "capture 'flags' has shape [2147483648]; extents up to 2147483647 are accepted");
  const Expr zero = 0;
  r.problem.mask_mod = Capture("deep", DType::boolean, 5).read({zero, zero, zero, zero, leaf::kv_idx()});
  EXPECT_EQ(r.sentence(), "capture 'deep' has 5 axes; up to 4 are accepted");
  // A capture that the mask does not read may be anywhere.
  r.problem.mask_mod = mods::causal();
  EXPECT_EQ(sentence_with(ConstTensorView(nullptr, DType::boolean, Dims{50})), "");
}

}  // namespace
}  // namespace heddle::test
