// Few queries, whose keys and values the CPU reads in place: within the criterion, and the same bits for any number of
// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/attention_case.h"
#include "heddle/heddle.h"
#include "kept_cases.h"
#include "tile_evaluator/on_every_target.h"

namespace heddle::test {
namespace {

struct CacheTypes {
  DType q, k, v;
};
constexpr CacheTypes kCacheTypes[] = {
    {DType::f32, DType::f32, DType::f32},   {DType::bf16, DType::bf16, DType::bf16},
    {DType::f16, DType::f16, DType::f16},   {DType::bf16, DType::e4m3, DType::e4m3},
    {DType::f16, DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e4m3, DType::e5m2},
    {DType::f64, DType::f64, DType::f64},
};

template <class List>
auto dealt_of(const List& list, std::uint64_t seed) {
  return *(std::begin(list) + static_cast<std::ptrdiff_t>(seed % std::size(list)));
}

/// Rows of a tile: each number up to whole vectors, and some more.
constexpr std::int64_t kFewQueries[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 31, 32};
constexpr std::int64_t kGroupsOfFew[] = {1, 2, 1, 4, 1, 3, 8};

CaseSpec few_queries_spec(std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  const CacheTypes types = dealt_of(kCacheTypes, seed);
  spec.q_dtype = types.q;
  spec.k_dtype = types.k;
  spec.v_dtype = types.v;
  spec.q_rows = dealt_of(kFewQueries, seed / 3);
  spec.group = dealt_of(kGroupsOfFew, seed);
  if (spec.q_rows * spec.group > 64) spec.group = 1;
  spec.batch = 1 + static_cast<std::int64_t>(seed % 3);
  spec.kv_heads = 1 + static_cast<std::int64_t>(seed / 2 % 2);
  spec.kv_rows = static_cast<std::int64_t>(seed * 37 % 301);
  constexpr std::int64_t kDims[] = {64, 32, 128, 40, 96, 1, 80, 17, 64, 192};
  spec.qk_dim = dealt_of(kDims, seed / 2);
  spec.v_dim = seed % 5 == 0 ? dealt_of(kDims, seed) : spec.qk_dim;
  constexpr std::int64_t kPages[] = {0, 1, 0, 16, 7, 0, 64, 33};
  spec.page_rows = spec.kv_rows > 0 ? dealt_of(kPages, seed / 4) : 0;
  spec.listed_pages = spec.page_rows > 0 && seed / 32 % 2 == 1;
  spec.sequences = seed % 4 == 1 ? "lengths" : seed % 4 == 3 ? "packed" : "whole";
  spec.layout = seed % 3 == 0 ? Layout::bshd : Layout::bhsd;
  spec.q_start = spec.page_rows == 0 && seed % 7 == 2 ? "aligned" : "none";
  spec.kv_start = seed % 11 == 4 ? "ahead" : "none";
  spec.mask = seed % 3 == 1 ? dealt_of(mask_names(), seed / 3) : "";
  spec.score = seed % 4 == 2 ? dealt_of(score_names(), seed / 4) : "";
  spec.weight = seed % 9 == 3 ? dealt_of(weight_names(), seed / 9) : "";
  spec.normalizer = seed % 8 == 5 ? Normalizer::sigmoid : seed % 16 == 7 ? Normalizer::none : Normalizer::softmax;
  spec.sinks = spec.normalizer == Normalizer::softmax && seed % 6 == 0 ? "mixed" : "none";
  spec.with_lse = spec.normalizer == Normalizer::softmax;
  spec.with_max_scores = spec.with_lse && seed % 5 == 1;
  spec.with_lse_rest = spec.with_lse && seed % 5 == 2;
  spec.descale = size_of(types.k) == 1 && seed % 2 == 0;
  return spec;
}

TEST(FewQueries, AgreesWithTheReference) {
  for (std::uint64_t seed = 1; seed <= 420; ++seed) {
    if (!is_kept(seed, 13)) continue;
    const CaseSpec spec = few_queries_spec(seed);
    SCOPED_TRACE(spec.text());
    AttentionCase attention_case(spec);
    run_and_judge(attention_case);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(FewQueries, EveryLength) {
  for (std::int64_t keys = 0; keys <= 300; ++keys) {
    if (!is_kept(static_cast<std::uint64_t>(keys), 11)) continue;
    for (const std::int64_t turn : {keys, keys + 3}) {
      const CacheTypes types = kCacheTypes[static_cast<std::size_t>(turn) % std::size(kCacheTypes)];
      CaseSpec spec;
      spec.seed = static_cast<std::uint64_t>(keys);
      spec.q_dtype = types.q;
      spec.k_dtype = types.k;
      spec.v_dtype = types.v;
      spec.batch = 3;
      spec.group = 1 + keys % 9;
      spec.q_rows = 1;
      spec.kv_rows = keys;
      spec.qk_dim = spec.v_dim = 32;
      spec.page_rows = keys % 2 == 0 || keys == 0 ? 0 : 1 + keys % 13;
      SCOPED_TRACE(spec.text());
      AttentionCase attention_case(spec);
      run_and_judge(attention_case);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(FewQueries, OnEveryTargetOverPiecesOfTheKeys) {
  on_every_target([] {
    std::uint64_t seed = 0;
    for (const CacheTypes& types : kCacheTypes) {
      for (const std::int64_t rows : {1, 3, 8, 21, 64}) {
        CaseSpec spec;
        spec.seed = ++seed;
        if (!is_kept(seed, 7)) continue;
        spec.q_dtype = types.q;
        spec.k_dtype = types.k;
        spec.v_dtype = types.v;
        spec.group = rows;
        spec.q_rows = 1;
        spec.kv_rows = 1300;
        spec.qk_dim = spec.v_dim = seed % 2 == 0 ? 64 : 40;
        spec.page_rows = seed % 3 == 0 ? 48 : 0;
        spec.mask = seed % 4 == 0 ? "causal_lower_right" : "";
        SCOPED_TRACE(spec.text());
        AttentionCase attention_case(spec);
        run_and_judge(attention_case);
      }
    }
  });
}

TEST(FewQueries, BitsDoNotDependOnTheThreads) {
  std::uint64_t number = 0;
  for (const CacheTypes& types : kCacheTypes) {
    for (const std::int64_t rows : {1, 17}) {
      for (const char* mask : {"", "causal_lower_right"}) {
        if (!is_kept(number++, 9)) continue;
        std::optional<Outputs> one;
        for (const int threads : {1, 2, 5}) {
          CaseSpec spec;
          spec.seed = 7;
          spec.q_dtype = types.q;
          spec.k_dtype = types.k;
          spec.v_dtype = types.v;
          spec.group = rows;
          spec.q_rows = 1;
          spec.kv_rows = 2600;
          spec.qk_dim = spec.v_dim = 64;
          spec.mask = mask;
          spec.threads = threads;
          SCOPED_TRACE(spec.text());
          AttentionCase attention_case(spec);
          run_and_judge(attention_case);
          if (!one) one = outputs_of(attention_case);
          EXPECT_TRUE(outputs_of(attention_case) == *one) << threads << " threads";
        }
      }
    }
  }
}

TEST(FewQueries, ExplainSaysHowTheKeysAreCut) {
  const Tensor q = Tensor::zeros(DType::f32, {1, 8, 1, 16}), k = Tensor::zeros(DType::f32, {1, 1, 8192, 16}),
               o = Tensor::zeros(DType::f32, {1, 8, 1, 16});
  const AttentionTensors tensors = {q, k, k, o, {}};
  AttentionOptions options;
  options.backend = BackendChoice::cpu;
  const auto text = [&] { return AttentionPlan(tensors, options).explain(); };
  EXPECT_THAT(text(), testing::HasSubstr("keys and values of 1 tiles, in 16 pieces of at most 512 keys"));
  options.mask_mod = leaf::kv_idx() >= 8000;
  EXPECT_THAT(text(), testing::HasSubstr("keys and values of 1 tiles, in 1 pieces of at most 192 keys"));
  const Tensor many = Tensor::zeros(DType::f32, {1, 8, 50, 16});
  EXPECT_THAT(AttentionPlan({many, k, k, many, {}}, {.backend = BackendChoice::cpu}).explain(),
              testing::Not(testing::HasSubstr("in_place")));
}

}  // namespace
}  // namespace heddle::test
