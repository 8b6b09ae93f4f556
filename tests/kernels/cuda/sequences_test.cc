// The kernels that place sequences and list their tiles, on the host.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>

// The stand-ins for the GPU come before the kernels.
// clang-format off
#include "kernels/cuda/host_cta.h"
#include "around/sequences_kernels.cuh"
// clang-format on

namespace heddle::cuda {
namespace {

using shared::SequenceSpan;
using shared::SequencesParams;

/// Values as a device has them, with a stride.
struct Values {
  std::vector<std::int64_t> i64;
  std::vector<std::int32_t> i32;
  shared::LengthsView view(bool wide) const {
    if (wide) return {i64.data(), 2, 1};
    return {i32.data(), 3, 0};
  }
  explicit Values(const std::vector<std::int64_t>& values) {
    for (const std::int64_t value : values) {
      i64.insert(i64.end(), {value, -1});
      i32.insert(i32.end(), {static_cast<std::int32_t>(value), 77, 88});
    }
  }
};

std::vector<SequenceSpan> placed(SequencesParams params, int* left_count = nullptr) {
  std::vector<SequenceSpan> spans(static_cast<std::size_t>(params.count) + 2);
  spans.back().q_begin = -123;
  int count = 99;
  params.spans = spans.data();
  params.left_count = left_count != nullptr ? left_count : &count;
  host_cta::launch(place_sequences, 1, shared::kSpanThreads, params);
  EXPECT_EQ(*params.left_count, 0);
  EXPECT_EQ(spans.back().q_begin, -123) << "written behind the places";
  spans.pop_back();
  EXPECT_EQ(spans.back().q_begin, params.q_rows);
  return spans;
}

std::string text_of(const SequenceSpan& at) {
  return fmt::format("{} + {} to {}, {} + {}, box {} before {}, start {}", at.q_begin, at.q_len, at.q_end, at.kv_begin,
                     at.kv_len, at.kv_before, at.kv_end, at.q_start);
}

SequencesParams params_of(int count) {
  SequencesParams params{};
  params.count = count;
  params.q_rows = params.max_q_len = 100;
  params.kv_rows = params.max_kv_len = 200;
  return params;
}

TEST(PlaceSequences, ClampsPaddedLengthsAndStarts) {
  const Values q({-5, 0, 100, 4'000'000}), kv({7, 201, -1, 200}), starts({-9, 2147483600, 2147483600, -2147483648});
  for (const bool wide : {false, true}) {
    SequencesParams params = params_of(4);
    params.q = q.view(wide);
    params.kv = kv.view(wide);
    params.q_start = starts.view(wide);
    const std::vector<SequenceSpan> spans = placed(params);
    EXPECT_EQ(text_of(spans[0]), "0 + 0 to 0, 0 + 7, box 193 before 7, start -9");
    EXPECT_EQ(text_of(spans[1]), "0 + 0 to 0, 0 + 200, box 0 before 200, start 2147483600");
    EXPECT_EQ(text_of(spans[2]), "0 + 100 to 100, 0 + 0, box 199 before 1, start 2147483548");
    EXPECT_EQ(text_of(spans[3]), "0 + 100 to 100, 0 + 200, box 0 before 200, start -2147483648");
  }
  SequencesParams params = params_of(1);  // what is not given is whole
  EXPECT_EQ(text_of(placed(params)[0]), "0 + 100 to 100, 0 + 200, box 0 before 200, start 0");
  params.max_kv_len = 0;
  EXPECT_EQ(text_of(placed(params)[0]), "0 + 100 to 100, 0 + 0, box -1 before 1, start 0") << "no keys, but queries";
  const Values huge({std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()});
  params = params_of(2);
  params.q = params.kv = params.q_start = huge.view(true);
  EXPECT_EQ(text_of(placed(params)[0]), "0 + 100 to 100, 0 + 200, box 0 before 200, start 2147483548");
  EXPECT_EQ(text_of(placed(params)[1]), "0 + 0 to 0, 0 + 0, box 199 before 1, start -2147483648");
}

// Pages of 16 in a list of 20 entries: no sequence has more keys than its own hold, whatever the starts are.
TEST(PlaceSequences, CutsToTheirPages) {
  const int starts[] = {-3, 77, 2, 77, 5, 77, 5, 77, 4, 77, 19, 77, 25, 77, 2147483647, 77, -2147483648, 77, 3, 77};
  const Values kv({16, 999, 48, 200, 4, 40, 7, 48, 48});
  SequencesParams params = params_of(9);
  params.page_starts = {starts, 2, 20};
  params.page_rows = 16;
  const auto lengths = [&] {
    std::vector<int> found;
    for (const SequenceSpan& span : placed(params)) found.push_back(span.kv_len);
    found.pop_back();
    return found;
  };
  // From 0 to 2, 2 to 5, 5 to 5, 5 to 4, 4 to 19, 19 to 20, 20 to 20, 20 to 0, and 0 to 3.
  EXPECT_THAT(lengths(), testing::ElementsAre(32, 48, 0, 0, 200, 16, 0, 0, 48));
  params.kv = kv.view(true);
  EXPECT_THAT(lengths(), testing::ElementsAre(16, 48, 0, 0, 4, 16, 0, 0, 48));
}

TEST(PlaceSequences, MakesPackedOnesFollowEachOther) {
  const Values q({8, 30, 20, 90, 300, 50}), kv({0, 0, 10, 150, 150, 200});
  SequencesParams params = params_of(5);
  params.q_packed = params.kv_packed = 1;
  params.q = q.view(false);
  params.kv = kv.view(true);
  params.max_q_len = 40;
  params.max_kv_len = 120;
  const std::vector<SequenceSpan> spans = placed(params);
  EXPECT_EQ(text_of(spans[0]), "0 + 30 to 30, 0 + 0, box 119 before 1, start 0") << "the first counts as 0";
  EXPECT_EQ(text_of(spans[1]), "30 + 0 to 30, 0 + 10, box 110 before 10, start 0") << "it may not decrease";
  EXPECT_EQ(text_of(spans[2]), "30 + 40 to 70, 10 + 120, box 0 before 130, start 0") << "longer than the longest";
  EXPECT_EQ(text_of(spans[3]), "90 + 10 to 100, 150 + 0, box 119 before 1, start 0") << "past the end";
  EXPECT_EQ(text_of(spans[4]), "100 + 0 to 100, 150 + 50, box 70 before 200, start 0");
}

TEST(PlaceSequences, CutsPackedKeysToThoseThatCount) {
  const Values q({0, 30, 30, 100}), kv({0, 10, 150, 200}), used({7, 500, -3});
  SequencesParams params = params_of(3);
  params.q_packed = params.kv_packed = 1;
  params.q = q.view(true);
  params.kv = kv.view(false);
  for (const bool wide : {false, true}) {
    params.kv_used = used.view(wide);
    const std::vector<SequenceSpan> spans = placed(params);
    EXPECT_EQ(text_of(spans[0]), "0 + 30 to 30, 0 + 7, box 193 before 7, start 0");
    EXPECT_EQ(text_of(spans[1]), "30 + 0 to 30, 10 + 140, box 60 before 150, start 0") << "more than there are";
    EXPECT_EQ(text_of(spans[2]), "30 + 70 to 100, 150 + 0, box 199 before 1, start 0");
  }
}

// Keys in pages begin at no row of a tensor: each sequence's length is its own, though queries are packed.
TEST(PlaceSequences, TakesLengthsOfKeysBesidePackedQueries) {
  const Values q({0, 30, 30, 100}), kv({7, 0, 201}), starts({1, -2, 3});
  for (const bool wide : {false, true}) {
    SequencesParams params = params_of(3);
    params.q_packed = 1;
    params.q = q.view(wide);
    params.kv = kv.view(!wide);
    params.q_start = starts.view(wide);
    params.max_q_len = 60;
    const std::vector<SequenceSpan> spans = placed(params);
    EXPECT_EQ(text_of(spans[0]), "0 + 30 to 30, 0 + 7, box 193 before 7, start 1");
    EXPECT_EQ(text_of(spans[1]), "30 + 0 to 30, 0 + 0, box 199 before 1, start -2");
    EXPECT_EQ(text_of(spans[2]), "30 + 60 to 90, 0 + 200, box 0 before 200, start 3");
    params.kv = {};
    EXPECT_EQ(text_of(placed(params)[1]), "30 + 0 to 30, 0 + 200, box 0 before 200, start -2")
        << "all that there may be";
  }
}

/// Sequences in the order of a plain loop.
std::vector<SequenceSpan> plainly_placed(const SequencesParams& params, const std::vector<std::int64_t>& q,
                                         const std::vector<std::int64_t>& kv) {
  std::vector<SequenceSpan> spans;
  shared::RowSpan q_rows{}, kv_rows{};
  const auto next = [](shared::RowSpan& rows, std::int64_t end, int most) {
    rows.begin = rows.end;
    rows.end = std::max(rows.begin, static_cast<int>(std::clamp<std::int64_t>(end, 0, most)));
  };
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    next(q_rows, q[i + 1], params.q_rows);
    next(kv_rows, kv[i + 1], params.kv_rows);
    spans.push_back(shared::span_of(params, q_rows, kv_rows, 0));
  }
  return spans;
}

// More than the CTA has threads, and numbers of all kinds.
TEST(PlaceSequences, ScansAnyNumberOfThem) {
  std::mt19937 rng(1);
  for (const int count : {1, 31, 33, 1023, 1024, 1025, 3000}) {
    for (const bool garbage : {false, true}) {
      std::vector<std::int64_t> q = {0}, kv = {0};
      for (int i = 0; i < count; ++i) {
        const auto drawn = [&](std::int64_t before, unsigned most) {
          if (garbage) return static_cast<std::int64_t>(rng() % 200'000) - 20'000;
          return before + static_cast<std::int64_t>(rng() % most);
        };
        q.push_back(drawn(q.back(), 40));
        kv.push_back(drawn(kv.back(), 60));
      }
      SequencesParams params = params_of(count);
      params.q_packed = params.kv_packed = 1;
      params.q_rows = 40 * count + 10;
      params.kv_rows = 60 * count;
      params.max_q_len = 35;
      params.max_kv_len = 50;
      const Values q_values(q), kv_values(kv);
      params.q = q_values.view(true);
      params.kv = kv_values.view(false);
      const std::vector<SequenceSpan> spans = placed(params), expected = plainly_placed(params, q, kv);
      int end = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(text_of(spans[i]), text_of(expected[i])) << i << " of " << count;
        ASSERT_GE(spans[i].q_begin, end);
        end = spans[i].q_begin + spans[i].q_len;
        ASSERT_LE(end, params.q_rows);
        ASSERT_LE(spans[i].kv_begin + spans[i].kv_len, params.kv_rows);
        ASSERT_LE(spans[i].q_begin + spans[i].q_len, spans[i + 1].q_begin);
      }
    }
  }
}

/// 5 sequences of which the host lists kTiles tiles each.
class ListTiles : public testing::Test {
 protected:
  static constexpr int kCount = 5, kTiles = 140, kRows = 128;

  ListTiles() {
    for (int batch = 0; batch < kCount; ++batch) {
      for (int tile = 0; tile < kTiles; ++tile) {
        items_.push_back({.q_tile = tile,
                          .head = 7,
                          .batch = batch,
                          .kv_head = 1,
                          .steps = 13,
                          .first_run = 0,
                          .runs = 1,
                          .before = 0,
                          .run = runs_[0]});
      }
    }
    params_.max_q_len = params_.q_rows = kTiles * kRows;
    params_.q = q_.view(false);
    params_.kv = kv_.view(false);
    params_.kv_block = 16;
    params_.tile_queries = kRows;
    params_.warpgroups = 2;
    params_.items = items_.data();
    params_.item_count = static_cast<int>(items_.size());
    params_.runs = runs_.data();
    params_.steps_before = before_.data();
    left_.resize(items_.size() + 1);
    left_.back().head = -5;
    params_.left = left_.data();
    params_.left_count = &left_count_;
  }

  void expect_list(const std::vector<SequenceSpan>& spans) const {
    ASSERT_EQ(left_count_, 0 + 1 + 1 + 2 + kTiles);
    EXPECT_EQ(left_.back().head, -5);
    std::set<std::pair<int, int>> seen;
    const std::array<int, kCount> steps = {1, 1, 13, 1, 2};
    for (int i = 0; i < left_count_; ++i) {
      const shared::WorkItem& item = left_[static_cast<std::size_t>(i)];
      seen.emplace(item.batch, item.q_tile);
      EXPECT_EQ(item.head, 7);
      EXPECT_EQ(item.kv_head, 1);
      EXPECT_EQ(item.steps, steps[static_cast<std::size_t>(item.batch)]);
      EXPECT_EQ(item.run.flags, item.batch == 1 ? 0 : 3) << "a tile without keys is attended by none";
      EXPECT_EQ(item.before, item.batch == 1 ? shared::kStepNextUneven : 0);
      EXPECT_LT(item.q_tile * kRows, spans[static_cast<std::size_t>(item.batch)].q_len);
    }
    EXPECT_EQ(std::ssize(seen), left_count_);
  }

  std::array<shared::KvRun, 1> runs_ = {{{0, 13, 3, 3}}};
  std::array<unsigned, 2> before_ = {0, 13};
  std::vector<shared::WorkItem> items_, left_;
  Values q_{{0, 1, 128, 129, kTiles*kRows}}, kv_{{5, 0, 200, 16, 17}};
  SequencesParams params_ = params_of(kCount);
  int left_count_ = 0;
};

TEST_F(ListTiles, KeepsThoseThatASequenceHasAndCutsThem) {
  std::vector<SequenceSpan> spans = placed(params_, &left_count_);
  params_.spans = spans.data();
  const int ctas = (params_.item_count + shared::kListThreads - 1) / shared::kListThreads;
  host_cta::launch(list_tiles, ctas, shared::kListThreads, params_);
  expect_list(spans);
}

// 1450 tiles: the CTA lists them in two rounds, and both leave some.
TEST_F(ListTiles, InOneLaunchWithTheSpansInTheHostsOrder) {
  const shared::WorkItem none = items_.front();  // of the sequence without queries: it is dropped
  items_.insert(items_.begin() + kTiles, 750, none);
  params_.items = items_.data();
  params_.item_count = static_cast<int>(items_.size());
  ASSERT_GT(params_.item_count, shared::kSpanThreads + kTiles);
  std::vector<SequenceSpan> spans(kCount + 1);
  params_.spans = spans.data();
  left_count_ = 99;
  host_cta::launch(place_and_list, 1, shared::kSpanThreads, params_);
  expect_list(spans);
  EXPECT_EQ(spans.back().q_begin, params_.q_rows);
  for (int i = 1; i < left_count_; ++i) {
    const shared::WorkItem &before = left_[static_cast<std::size_t>(i - 1)], &item = left_[static_cast<std::size_t>(i)];
    EXPECT_LT(std::pair(before.batch, before.q_tile), std::pair(item.batch, item.q_tile));
  }
}

}  // namespace
}  // namespace heddle::cuda
