// Each ready-made mod against a plain function, over dense grids.
#include "heddle/mods.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "expr/dense_grid.h"

namespace heddle {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Mods, Windows) {
  expect_mask(mods::causal(), [](const Position& at) { return at.kv <= at.q; });
  expect_mask(mods::causal_lower_right(),
              [](const Position& at) { return at.kv - (kKeys - 1) <= at.q - (kQueries - 1); });
  expect_mask(mods::sliding_window(5), [](const Position& at) { return at.q - 5 <= at.kv && at.kv <= at.q; });
  expect_mask(mods::sliding_window(0, 7), [](const Position& at) { return at.q <= at.kv && at.kv <= at.q + 7; });
  expect_mask(mods::sliding_window(2147483647, 2147483647), [](const Position&) { return true; });
  expect_mask(mods::dilated_window(12, 3), [](const Position& at) {
    for (int back = 0; back <= 12; back += 3) {
      if (at.q - back == at.kv) return true;
    }
    return false;
  });
  expect_mask(mods::global_and_window(3, 2),
              [](const Position& at) { return at.q < 3 || at.kv < 3 || std::abs(at.q - at.kv) <= 2; });
  expect_mask(mods::block_diffusion(16), [](const Position& at) { return at.kv / 16 <= at.q / 16; });
}

TEST(Mods, OtherArguments) {
  const Expr shifted = mods::with_arguments(mods::sliding_window(2), {.kv_idx = leaf::kv_idx() + 3});
  expect_mask(shifted, [](const Position& at) { return at.q - 2 <= at.kv + 3 && at.kv + 3 <= at.q; });
  const Expr changed = mods::with_arguments(mods::causal(), {.q_idx = leaf::kv_idx(), .kv_idx = leaf::q_idx()});
  expect_mask(changed, [](const Position& at) { return at.q <= at.kv; });
  const Capture slopes("slopes", DType::f32, 1);
  const Expr capped = mods::with_arguments(mods::softcap(2.0), {.score = mods::alibi(slopes)});
  EXPECT_EQ(print(capped), "tanh((score + slopes[h] * f32(kv_idx - q_idx)) / 2.0) * 2.0");
  EXPECT_EQ(print(mods::with_arguments(mods::softcap(2.0), {.score = leaf::b()})), "tanh(f32(b) / 2.0) * 2.0");
  const Capture ids("ids", DType::i32, 2);
  EXPECT_EQ(print(mods::with_arguments(mods::documents(ids), {.b = 0, .q_idx = floor_div(leaf::q_idx(), 2)})),
            "ids[0, q_idx // 2] == ids[0, kv_idx]");
  EXPECT_TRUE(same(mods::with_arguments(mods::causal_lower_right(), {}), mods::causal_lower_right()));
  EXPECT_TRUE(mods::with_arguments(Expr(), {.b = 0}).empty());
  for (const auto& [arguments, said] :
       {std::pair(mods::Arguments{.score = leaf::b() == 0}, "score of a mod must be f32"),
        {mods::Arguments{.h = leaf::score()}, "h of a mod must be i32, but `score` is f32"},
        {mods::Arguments{.q_idx = Expr()}, "q_idx of a mod is empty"}}) {
    const Expr all = where(leaf::h() == leaf::q_idx(), leaf::score(), 0.0);
    const auto call = [&, given = arguments] { return mods::with_arguments(all, given); };
    EXPECT_THAT(call, ::testing::ThrowsMessage<Error>(HasSubstr(said)));
  }
}

TEST(Mods, SinksChunksAndWindowsByHead) {
  expect_mask(mods::sinks_and_window(3, 5),
              [](const Position& at) { return at.kv <= at.q && (at.kv < 3 || at.q - at.kv <= 5); });
  expect_mask(mods::causal_chunks(12), [](const Position& at) {
    const int begin = at.q - at.q % 12;
    return begin <= at.kv && at.kv <= at.q;
  });
  const std::vector<std::int64_t> before = {0, 3, 7, 100};
  Bindings bindings;
  bindings.captures["before"] = view(before, DType::i64, {kHeads});
  expect_mask(
      mods::windows_by_head(Capture("before", DType::i64, 1)),
      [&](const Position& at) { return at.kv <= at.q && at.kv >= at.q - before[static_cast<std::size_t>(at.h)]; },
      bindings);
}

/// The three masks of the paper on block diffusion (BD3-LM), transcribed: diagonal, offset and causal blocks.
TEST(Mods, BlockDiffusionTraining) {
  for (const auto& [length, block] : {std::pair(26, 4), {26, 5}, {26, 26}, {26, 1}}) {
    expect_mask(mods::block_diffusion_training(length, block), [n = length, size = block](const Position& at) {
      const bool clean_query = at.q >= n, clean_key = at.kv >= n;
      const int query = clean_query ? (at.q - n) / size : at.q / size;
      const int key = clean_key ? (at.kv - n) / size : at.kv / size;
      const bool diagonal = query == key && clean_query == clean_key;
      const bool offset = query > key && clean_key && !clean_query;
      const bool causal = query >= key && clean_key && clean_query;
      return diagonal || offset || causal;
    });
  }
}

TEST(Mods, GraphBias) {
  std::vector<std::int32_t> distances(2 * kKeys * kKeys);
  for (std::size_t i = 0; i < distances.size(); ++i) distances[i] = static_cast<std::int32_t>(i * 7 % 9) - 1;
  std::vector<double> table(6 * kHeads);
  std::iota(table.begin(), table.end(), 0.25);
  Bindings bindings;
  bindings.captures["distances"] = view(distances, DType::i32, {2, kKeys, kKeys});
  bindings.captures["table"] = view(table, DType::f64, {6, kHeads});
  const auto bias_of = [&](int b, const Position& at) {
    const int distance = distances[static_cast<std::size_t>((b * kKeys + at.q) * kKeys + at.kv)];
    return table[static_cast<std::size_t>(std::min(std::max(distance, 0), 5) * kHeads + at.h)];
  };
  const Capture by_kind("table", DType::f64, 2);
  expect_score(
      mods::graph_bias(Capture("distances", DType::i32, 3), by_kind, 5),
      [&](double score, const Position& at) { return score + bias_of(at.b, at); }, bindings);
  bindings.captures["distances"] = view(distances, DType::i32, {kKeys, kKeys});
  expect_score(
      mods::graph_bias(Capture("distances", DType::i32, 2), by_kind, 5),
      [&](double score, const Position& at) { return score + bias_of(0, at); }, bindings);
}

TEST(Mods, LowerRightCausalCountsFromTheSequencesOwnEnd) {
  // Ten queries that begin at position 30 of 40 keys: query 30 sees keys 0 to 30.
  const Interpreter interpret(mods::causal_lower_right(), {}, Precision::f32);
  for (int q = 30; q < 40; ++q) {
    for (int kv = 0; kv < 40; ++kv) {
      Element element = element_at({0, 0, q, kv});
      element[Leaf::q_len] = 10;
      element[Leaf::kv_len] = 40;
      element[Leaf::q_start] = 30;
      EXPECT_EQ(interpret.boolean(element), kv <= q);
      element[Leaf::kv_idx] = kv - 7;  // the same keys, counted from elsewhere
      element[Leaf::kv_start] = -7;
      EXPECT_EQ(interpret.boolean(element), kv <= q);
    }
  }
}

TEST(Mods, PrefixLm) {
  expect_mask(mods::prefix_lm(9), [](const Position& at) { return at.kv <= at.q || at.kv < 9; });
  const std::vector<std::int32_t> lengths = {4, 30};
  Bindings bindings;
  bindings.captures["lengths"] = view(lengths, DType::i32, {2});
  expect_mask(
      mods::prefix_lm(Capture("lengths", DType::i32, 1)(leaf::b())),
      [&](const Position& at) { return at.kv <= at.q || at.kv < lengths[static_cast<std::size_t>(at.b)]; }, bindings);
}

TEST(Mods, Combine) {
  expect_mask((mods::causal() & !mods::sliding_window(3)) | mods::block_diffusion(10), [](const Position& at) {
    return (at.kv <= at.q && !(at.q - 3 <= at.kv && at.kv <= at.q)) || at.kv / 10 <= at.q / 10;
  });
}

TEST(Mods, Documents) {
  std::vector<std::int64_t> ids(kKeys);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = (i * i / 97) % 5;
  const auto id = [&](int token) { return ids[static_cast<std::size_t>(token)]; };
  Bindings bindings;
  bindings.captures["ids"] = view(ids, DType::i64, {kKeys});
  expect_mask(
      mods::documents(Capture("ids", DType::i64, 1)), [&](const Position& at) { return id(at.q) == id(at.kv); },
      bindings);

  std::vector<std::int32_t> batched(2 * kKeys);
  for (std::size_t i = 0; i < batched.size(); ++i) batched[i] = static_cast<std::int32_t>(i / 11);
  bindings.captures["ids"] = view(batched, DType::i32, {2, kKeys});
  const auto batched_id = [&](int b, int token) { return batched[static_cast<std::size_t>(b * kKeys + token)]; };
  expect_mask(
      mods::documents(Capture("ids", DType::i32, 2)),
      [&](const Position& at) { return batched_id(at.b, at.q) == batched_id(at.b, at.kv); }, bindings);
}

TEST(Mods, DocumentsFromOffsets) {
  const std::vector<std::int64_t> offsets = {0, 7, 7, 20, 21, kKeys};
  const Tensor starts = mods::document_starts(view(offsets, DType::i64, {6}));
  EXPECT_EQ(starts.shape(), Dims{kKeys});
  const auto document = [&](int token) {
    return std::upper_bound(offsets.begin(), offsets.end(), token) - offsets.begin();
  };
  for (int token = 0; token < kKeys; ++token) {
    EXPECT_EQ(get_element(starts, {token}),
              static_cast<double>(offsets[static_cast<std::size_t>(document(token) - 1)]));
  }
  Bindings bindings;
  bindings.captures["start_of"] = starts;
  expect_mask(
      mods::documents_from_starts(Capture("start_of", DType::i32, 1)),
      [&](const Position& at) { return document(at.q) == document(at.kv); }, bindings);
  const std::vector<std::int32_t> none = {0};
  EXPECT_EQ(mods::document_starts(view(none, DType::i32, {1})).count(), 0);
}

TEST(Mods, OffsetsAreValidated) {
  const auto starts_of = [](std::vector<std::int64_t> offsets) {
    const auto count = static_cast<std::int64_t>(offsets.size());
    return refusal([&] { mods::document_starts(view(offsets, DType::i64, {count})); });
  };
  EXPECT_EQ(starts_of({0, 5, 3}), "offsets of document_starts must not decrease, but element 2 is 3 after 5");
  EXPECT_EQ(starts_of({1, 5}), "offsets of document_starts must begin with 0");
  EXPECT_EQ(starts_of({0, (1 << 28) + 1}),
            "offsets of document_starts must end at 268435456 or before, but end at 268435457");
  EXPECT_EQ(starts_of({}), "offsets of document_starts must begin with 0");
  EXPECT_THAT(starts_of({0, std::int64_t{1} << 40}),
              HasSubstr("must end at 268435456 or before, but end at 1099511627776"));
  EXPECT_THAT(starts_of({0, std::int64_t{1} << 40, 3}), HasSubstr("must not decrease"));
  const std::vector<float> reals = {0, 5};
  EXPECT_EQ(refusal([&] { mods::document_starts(view(reals, DType::f32, {2})); }),
            "offsets of document_starts must be a list of i32 or i64 on the CPU, but is f32 [2]");
}

/// Drafts of every shape: ancestors by walking up, against the intervals.
TEST(Mods, Tree) {
  const std::vector<std::vector<std::int32_t>> drafts = {
      {-1}, {-1, 0, 1, 2, 3}, {-1, 0, 0, 1, 1, 2, 2}, {-1, -1, 0, 1, 2, 0}, {3, 3, 1, -1, 2, 0, 0}, {-1, -1, -1}};
  for (const auto& parents : drafts) {
    const auto count = static_cast<std::int64_t>(parents.size());
    const mods::TreeIntervals intervals = mods::tree_intervals(view(parents, DType::i32, {count}));
    Bindings bindings;
    bindings.captures["enter"] = intervals.enter;
    bindings.captures["last"] = intervals.last;
    for (const int first : {0, 11}) {
      const Expr mask = mods::tree(Capture("enter", DType::i32, 1), Capture("last", DType::i32, 1), first);
      expect_mask(
          mask,
          [&](const Position& at) {
            if (at.kv < first) return true;
            const auto inside = [&](int token) { return token >= first && token < first + count; };
            if (!inside(at.q) || !inside(at.kv)) return false;
            int token = at.q - first;
            while (token >= 0 && token != at.kv - first) token = parents[static_cast<std::size_t>(token)];
            return token >= 0;
          },
          bindings);
    }
  }
}

TEST(Mods, TreeParentsAreValidated) {
  const auto intervals_of = [](std::vector<std::int32_t> parents) {
    const auto count = static_cast<std::int64_t>(parents.size());
    return refusal([&] { mods::tree_intervals(view(parents, DType::i32, {count})); });
  };
  EXPECT_EQ(intervals_of({-1, 0, 3}), "parents of tree_intervals must be -1 to 2, but element 2 is 3");
  EXPECT_EQ(intervals_of({-1, -2}), "parents of tree_intervals must be -1 to 1, but element 1 is -2");
  EXPECT_THAT(intervals_of({0}), HasSubstr("must not form a cycle, but element 0 "));
  EXPECT_THAT(intervals_of({-1, 2, 1, 0}), HasSubstr("must not form a cycle, but element 1 "));
  EXPECT_EQ(intervals_of({}), "");
  EXPECT_EQ(intervals_of(std::vector<std::int32_t>(100000, -1)), "");
}

TEST(Mods, Alibi) {
  const Tensor slopes = mods::alibi_slopes(kHeads);
  Bindings bindings;
  bindings.captures["slopes"] = slopes;
  expect_score(
      mods::alibi(Capture("slopes", DType::f32, 1)),
      [](double score, const Position& at) { return score + std::pow(0.25, at.h + 1) * (at.kv - at.q); }, bindings);
}

TEST(Mods, AlibiSlopes) {
  const auto slopes_of = [](std::int64_t heads) {
    const Tensor slopes = mods::alibi_slopes(heads);
    const auto* data = static_cast<const float*>(slopes.data());
    return std::vector<float>(data, data + heads);
  };
  EXPECT_THAT(slopes_of(1), ElementsAre(0x1p-8F));
  EXPECT_THAT(slopes_of(8), ElementsAre(0x1p-1F, 0x1p-2F, 0x1p-3F, 0x1p-4F, 0x1p-5F, 0x1p-6F, 0x1p-7F, 0x1p-8F));
  // Six heads: the four of four, then the first and the third of eight.
  EXPECT_THAT(slopes_of(6), ElementsAre(0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F, 0x1p-1F, 0x1p-3F));
}

TEST(Mods, RelativeBias) {
  std::vector<double> table(kHeads * 19);
  std::iota(table.begin(), table.end(), 0.5);
  Bindings bindings;
  bindings.captures["table"] = view(table, DType::f64, {kHeads, 19});
  expect_score(
      mods::relative_bias(Capture("table", DType::f64, 2), 9),
      [&](double score, const Position& at) {
        return score + table[static_cast<std::size_t>(at.h * 19 + std::clamp(at.kv - at.q, -9, 9) + 9)];
      },
      bindings);
}

/// HuggingFace's T5Attention._relative_position_bucket, transcribed.
int t5_bucket(int relative_position, bool bidirectional, int num_buckets, int max_distance) {
  int relative_buckets = 0;
  if (bidirectional) {
    num_buckets /= 2;
    relative_buckets += (relative_position > 0 ? 1 : 0) * num_buckets;
    relative_position = std::abs(relative_position);
  } else {
    relative_position = -std::min(relative_position, 0);
  }
  const int max_exact = num_buckets / 2;
  const bool is_small = relative_position < max_exact;
  if (is_small) return relative_buckets + relative_position;
  const int if_large =
      max_exact + static_cast<int>(std::log(static_cast<double>(relative_position) / max_exact) /
                                   std::log(static_cast<double>(max_distance) / max_exact) * (num_buckets - max_exact));
  return relative_buckets + std::min(if_large, num_buckets - 1);
}

struct T5Case {
  int buckets, max_distance;
  bool bidirectional;
};

TEST(Mods, T5Bias) {
  for (const T5Case& c : {T5Case{32, 128, true}, T5Case{32, 128, false}, T5Case{64, 256, true}, T5Case{32, 20, false},
                          T5Case{320, 800, true}, T5Case{4, 2, true}, T5Case{2, 2, false}, T5Case{33, 50, true}}) {
    std::vector<double> table(static_cast<std::size_t>(c.buckets));  // a bucket's value is its number
    std::iota(table.begin(), table.end(), 0.0);
    Bindings bindings;
    bindings.captures["table"] = view(table, DType::f64, {c.buckets, 1});
    const Expr mod = mods::t5_bias(Capture("table", DType::f64, 2), c.buckets, c.max_distance, c.bidirectional);
    const Interpreter interpret(mod, bindings, Precision::f64);
    LeafRanges leaves = grid_ranges();
    leaves[Leaf::h] = expr::Range::point(0);
    leaves[Leaf::q_idx] = leaves[Leaf::kv_idx] = {0, 1 << 20, false};
    const test::ExactBounds bounds(bindings.captures);
    EXPECT_NO_THROW(check_reads_inside(mod, leaves, bounds, Precision::f64)) << c.buckets;
    for (int distance = -2000; distance <= 2000; ++distance) {
      Element element;
      element[Leaf::q_idx] = std::max(0, -distance);
      element[Leaf::kv_idx] = std::max(0, distance);
      ASSERT_EQ(interpret.real(element), t5_bucket(distance, c.bidirectional, c.buckets, c.max_distance))
          << distance << " of " << c.buckets;
    }
  }
}

TEST(Mods, Softcap) {
  expect_score(mods::softcap(2.5), [](double score, const Position&) { return 2.5 * std::tanh(score / 2.5); });
}

TEST(Mods, Dropout) {
  const Expr weight = mods::dropout(0.25, param("seed", ExprType::i32));
  EXPECT_TRUE(same(as_role(weight, Role::weight), weight));
  int dropped = 0;
  int differ = 0;
  Bindings bindings;
  bindings.params["seed"] = 17;
  const Interpreter interpret(weight, bindings, Precision::f64);
  bindings.params["seed"] = 18;
  const Interpreter other_seed(weight, bindings, Precision::f64);
  for_each_position([&](const Position& at) {
    const double w = interpret.real(element_at(at));
    ASSERT_TRUE(w == 0 || w == 1 / 0.75);
    dropped += w == 0 ? 1 : 0;
    differ += w != other_seed.real(element_at(at)) ? 1 : 0;
  });
  const double count = 2.0 * kHeads * kQueries * kKeys;
  EXPECT_NEAR(dropped / count, 0.25, 0.02);  // six standard deviations
  EXPECT_NEAR(differ / count, 2 * 0.25 * 0.75, 0.03);
  EXPECT_EQ(Interpreter(mods::dropout(0, 1), {}, Precision::f64).real({}), 1);
}

// Granules in any order; numbers outside of the sequence are clipped to it.
TEST(Mods, ByGranules) {
  constexpr int kRows = 16, kLongest = 5 * kRows;
  std::vector<std::int64_t> queries, keys;
  for (int i = 0; i * kRows < kQueries; ++i) queries.push_back((7 * i + 4) % 5);
  for (int i = 0; i * kRows < kKeys; ++i) keys.push_back((3 * i + 4) % 7 - 1);
  Bindings bindings;
  bindings.captures["q_granules"] = view(queries, DType::i64, {std::ssize(queries)});
  bindings.captures["kv_granules"] = view(keys, DType::i64, {std::ssize(keys)});
  const Capture of_queries("q_granules", DType::i64, 1), of_keys("kv_granules", DType::i64, 1);
  const auto position = [](const std::vector<std::int64_t>& granules, int row) {
    return std::clamp<std::int64_t>(granules[static_cast<std::size_t>(row / kRows)], 0, 4) * kRows + row % kRows;
  };
  expect_mask(
      mods::by_granules(mods::sliding_window(20), of_queries, of_keys, kRows, kLongest),
      [&](const Position& at) {
        const std::int64_t q = position(queries, at.q), kv = position(keys, at.kv);
        return q - 20 <= kv && kv <= q;
      },
      bindings);
  EXPECT_TRUE(mods::by_granules({}, of_queries, of_keys).empty());
}

TEST(Mods, ArgumentsAreValidated) {
  const Capture reals("table", DType::f32, 2);
  const Capture slopes("slopes", DType::f32, 1);
  const Capture ids("ids", DType::i32, 1);
  EXPECT_EQ(refusal([] { mods::sliding_window(-1); }), "before of sliding_window must be 0 to 2147483647, but is -1");
  EXPECT_THAT(refusal([] { mods::sliding_window(1, std::int64_t{1} << 31); }), HasSubstr("after of sliding_window"));
  EXPECT_THAT(refusal([] { mods::dilated_window(4, 0); }), HasSubstr("step of dilated_window must be 1 to"));
  EXPECT_THAT(refusal([] { mods::dilated_window(-4, 1); }), HasSubstr("before of dilated_window must be 0 to"));
  EXPECT_THAT(refusal([] { mods::prefix_lm(-4); }), HasSubstr("prefix of prefix_lm"));
  EXPECT_EQ(refusal([] { mods::prefix_lm(Expr(0.5)); }), "prefix of prefix_lm must be an i32 expression, but is f32");
  EXPECT_EQ(refusal([] { mods::prefix_lm(Expr()); }), "prefix of prefix_lm must be an i32 expression, but is empty");
  EXPECT_THAT(refusal([] { mods::global_and_window(-1, 1); }), HasSubstr("global of global_and_window"));
  EXPECT_THAT(refusal([] { mods::global_and_window(1, -1); }), HasSubstr("window of global_and_window"));
  EXPECT_THAT(refusal([] { mods::block_diffusion(0); }), HasSubstr("block of block_diffusion must be 1 to"));
  EXPECT_EQ(refusal([&] { mods::documents(slopes); }),
            "ids of documents must be of integers, of rank 1 or 2, but 'slopes' is f32 of rank 1");
  EXPECT_THAT(refusal([&] { mods::documents_from_starts(reals); }), HasSubstr("start_of of documents_from_starts"));
  EXPECT_THAT(refusal([&] { mods::tree(slopes, ids); }),
              HasSubstr("enter of tree must be of integers, of rank 1, but"));
  EXPECT_THAT(refusal([&] { mods::tree(ids, slopes); }), HasSubstr("last of tree"));
  EXPECT_THAT(refusal([&] { mods::by_granules(mods::causal(), ids, slopes); }),
              HasSubstr("kv_granules of by_granules must be of integers"));
  EXPECT_THAT(refusal([&] { mods::by_granules(mods::causal(), ids, ids, 0); }), HasSubstr("rows of by_granules"));
  EXPECT_THAT(refusal([&] { mods::by_granules(mods::causal(), ids, ids, 128, std::int64_t{1} << 29); }),
              HasSubstr("longest of by_granules must be 1 to 268435456"));
  EXPECT_THAT(refusal([&] { mods::tree(ids, ids, 1.5); }), HasSubstr("first of tree must be an i32 expression"));
  EXPECT_EQ(refusal([&] { mods::alibi(ids); }),
            "slopes of alibi must be floating of rank 1, but 'ids' is i32 of rank 1");
  for (const std::int64_t heads : {std::int64_t{0}, std::int64_t{65537}}) {
    EXPECT_EQ(refusal([&] { mods::alibi_slopes(heads); }),
              fmt::format("heads of alibi_slopes must be 1 to 65536, but is {}", heads));
  }
  EXPECT_EQ(mods::alibi_slopes(65536).count(), 65536);
  EXPECT_THAT(refusal([&] { mods::relative_bias(slopes, 1); }),
              HasSubstr("table of relative_bias must be floating of rank 2"));
  EXPECT_THAT(refusal([&] { mods::relative_bias(reals, 2147483647); }), HasSubstr("must be 0 to 1073741823"));
  EXPECT_THAT(refusal([&] { mods::t5_bias(slopes, 32, 128, true); }), HasSubstr("table of t5_bias"));
  EXPECT_THAT(refusal([&] { mods::t5_bias(reals, 3, 128, true); }), HasSubstr("buckets of t5_bias must be 4 to"));
  EXPECT_THAT(refusal([&] { mods::t5_bias(reals, 32, 16, false); }),
              HasSubstr("max_distance of t5_bias must be 17 to"));
  EXPECT_THAT(refusal([] { mods::sinks_and_window(-1, 3); }), HasSubstr("sinks of sinks_and_window must be 0 to"));
  EXPECT_THAT(refusal([] { mods::sinks_and_window(1, -3); }), HasSubstr("before of sinks_and_window must be 0 to"));
  EXPECT_THAT(refusal([&] { mods::windows_by_head(slopes); }),
              HasSubstr("before of windows_by_head must be of integers"));
  EXPECT_THAT(refusal([] { mods::causal_chunks(0); }), HasSubstr("chunk of causal_chunks must be 1 to"));
  EXPECT_THAT(refusal([] { mods::block_diffusion_training(0, 4); }), HasSubstr("length of block_diffusion_training"));
  EXPECT_THAT(refusal([] { mods::block_diffusion_training(8, 0); }), HasSubstr("block of block_diffusion_training"));
  EXPECT_THAT(refusal([&] { mods::graph_bias(ids, reals, 4); }),
              HasSubstr("distances of graph_bias must be of integers, of rank 2 or 3"));
  EXPECT_THAT(refusal([&] { mods::graph_bias(Capture("d", DType::i64, 2), slopes, 4); }),
              HasSubstr("table of graph_bias must be floating of rank 2"));
  EXPECT_THAT(refusal([&] { mods::graph_bias(Capture("d", DType::i64, 2), reals, -1); }),
              HasSubstr("largest of graph_bias"));
  EXPECT_THAT(refusal([] { mods::softcap(0); }), HasSubstr("cap of softcap must be positive and finite, but is 0"));
  EXPECT_THAT(refusal([] { mods::softcap(NAN); }), HasSubstr("cap of softcap"));
  EXPECT_THAT(refusal([] { mods::softcap(INFINITY); }), HasSubstr("cap of softcap"));
  EXPECT_EQ(refusal([] { mods::dropout(1, 3); }), "p of dropout must be at least 0 and below 1, but is 1");
  EXPECT_THAT(refusal([] { mods::dropout(NAN, 3); }), HasSubstr("p of dropout"));
  EXPECT_THAT(refusal([] { mods::dropout(0.1, 0.5); }), HasSubstr("seed of dropout must be an i32 expression"));
}

}  // namespace
}  // namespace heddle
