// Shards of a long sequence: attention over parts of the keys, each with its kv_start, merged, is attention over all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/attention_case.h"
#include "heddle/mods.h"

namespace heddle::test::kv_start {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 24, kValueDim = 40;

Tensor random_reals(const Dims& shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor;
}

Tensor integers(const std::vector<std::int64_t>& values) {
  const Tensor tensor = Tensor::empty(DType::i64, {std::ssize(values)});
  std::ranges::copy(values, static_cast<std::int64_t*>(tensor.data()));
  return tensor;
}

Tensor cumulative(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> ends = {0};
  for (const std::int64_t length : lengths) ends.push_back(ends.back() + length);
  return integers(ends);
}

/// Rows [begin[n], end[n]) of each sequence n of a packed tensor.
Tensor rows_of(const Tensor& packed, const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& begin,
               const std::vector<std::int64_t>& end) {
  const std::int64_t heads = packed.shape()[1], rows = packed.shape()[2], dim = packed.shape()[3];
  std::vector<float> taken;
  for (std::int64_t h = 0; h < heads; ++h) {
    std::int64_t first = 0;
    for (std::size_t n = 0; n < lengths.size(); first += lengths[n++]) {
      const float* data = static_cast<const float*>(packed.data()) + (h * rows + first) * dim;
      taken.insert(taken.end(), data + begin[n] * dim, data + end[n] * dim);
    }
  }
  const Tensor result = Tensor::empty(DType::f32, {1, heads, std::ssize(taken) / (heads * dim), dim});
  std::ranges::copy(taken, static_cast<float*>(result.data()));
  return result;
}

/// A packed batch of three sequences and what mods of positions read.
struct Batch {
  std::vector<std::int64_t> q_lengths = {100, 40, 33}, kv_lengths = {190, 70, 33}, q_starts = {90, 30, 0};
  Tensor q = random_reals({1, kHeads, 173, kDim}, 1), k = random_reals({1, kKvHeads, 293, kDim}, 2),
         v = random_reals({1, kKvHeads, 293, kValueDim}, 3);
  Tensor q_ends = cumulative(q_lengths), starts = integers(q_starts);
  Tensor slopes = mods::alibi_slopes(kHeads), bias = random_reals({kHeads, 190, 190}, 4),
         table = random_reals({kHeads, 2 * 20 + 1}, 5), ids = Tensor::empty(DType::i32, {190});
  AttentionOptions options;

  Batch() {
    for (int i = 0; i < 190; ++i) static_cast<std::int32_t*>(ids.data())[i] = i / 37;
    options.cu_seqlens_q = q_ends;
    options.q_start = starts;
  }

  /// Over keys [begin[n], end[n]) of each sequence n.
  AttentionResult over(const std::vector<std::int64_t>& begin, const std::vector<std::int64_t>& end) const {
    std::vector<std::int64_t> lengths;
    for (std::size_t n = 0; n < begin.size(); ++n) lengths.push_back(end[n] - begin[n]);
    const Tensor keys = rows_of(k, kv_lengths, begin, end), values = rows_of(v, kv_lengths, begin, end);
    const Tensor ends = cumulative(lengths), kv_start = integers(begin);
    AttentionOptions own = options;
    own.cu_seqlens_kv = ends;
    own.kv_start = kv_start;
    return attention(q, keys, values, own, true);
  }
};

void expect_close(const Tensor& x, const Tensor& y) {
  ASSERT_EQ(x.shape(), y.shape());
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const float a = static_cast<const float*>(x.data())[i], b = static_cast<const float*>(y.data())[i];
    if (std::isinf(a) && a == b) continue;
    ASSERT_NEAR(a, b, 2e-5) << "element " << i;
  }
}

struct Mods {
  std::string name;
  Expr score, mask, weight;
  std::vector<std::string> captures;
};

std::vector<Mods> mods_of_positions() {
  const Capture slopes("slopes", DType::f32, 1), bias("bias", DType::f32, 3), table("table", DType::f32, 2),
      ids("ids", DType::i32, 1);
  const Expr h = leaf::h(), q = leaf::q_idx(), kv = leaf::kv_idx(), score = leaf::score();
  return {{"alibi", mods::alibi(slopes), {}, {}, {"slopes"}},
          {"causal", {}, mods::causal(), {}, {}},
          {"window", {}, mods::sliding_window(50, 10), {}, {}},
          {"dilated", {}, mods::dilated_window(120, 3), {}, {}},
          {"prefix", {}, mods::prefix_lm(100), {}, {}},
          {"documents", {}, mods::documents(ids) && mods::causal(), {}, {"ids"}},
          {"bias", score + bias(h, q, kv), mods::causal(), {}, {"bias"}},
          {"bias by at", score + bias.at({h, q, kv - 5}, 0.5), {}, {}, {"bias"}},
          {"relative bias", mods::relative_bias(table, 20), mods::causal(), {}, {"table"}},
          {"dropout", {}, mods::causal(), mods::dropout(0.3, 9), {}},
          {"mapped", tanh(score * 0.3 + to_f32(kv) * 0.01) * 5.0, {}, {}, {}}};
}

TEST(KvStart, ShardsMergedAreTheWhole) {
  for (const Mods& mods : mods_of_positions()) {
    for (const BackendChoice backend : {backend_under_test(), BackendChoice::reference}) {
      SCOPED_TRACE(mods.name + std::string(" on ") + std::string(name(backend)));
      Batch batch;
      batch.options.backend = backend;
      batch.options.score_mod = mods.score;
      batch.options.mask_mod = mods.mask;
      batch.options.weight_mod = mods.weight;
      const std::vector<std::pair<std::string, const Tensor*>> tensors = {
          {"slopes", &batch.slopes}, {"bias", &batch.bias}, {"table", &batch.table}, {"ids", &batch.ids}};
      for (const auto& [name, tensor] : tensors) {
        if (std::ranges::count(mods.captures, name) > 0) batch.options.bindings.captures[name] = *tensor;
      }
      const std::vector<std::int64_t> none = {0, 0, 0}, first = {64, 7, 33}, second = {130, 7, 33};
      const AttentionResult whole = batch.over(none, batch.kv_lengths);
      const AttentionResult parts[] = {batch.over(none, first), batch.over(first, second),
                                       batch.over(second, batch.kv_lengths)};
      const std::vector<ConstTensorView> o_parts = {parts[0].o, parts[1].o, parts[2].o},
                                         lse_parts = {parts[0].lse, parts[1].lse, parts[2].lse};
      const Tensor o = Tensor::empty(DType::f32, whole.o.shape()), lse = Tensor::empty(DType::f32, whole.lse.shape());
      merge_states(o_parts, lse_parts, o, lse.view());
      expect_close(o, whole.o);
      expect_close(lse, whole.lse);
    }
  }
}

bool same_bits(const Tensor& x, const Tensor& y) {
  return x.shape() == y.shape() &&
         std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.count() * size_of(x.dtype()))) == 0;
}

// It is of the sequence's own lengths, wherever that stands.
TEST(KvStart, LowerRightCausalStaysWhereItIs) {
  Batch batch;
  batch.options.backend = backend_under_test();
  const Tensor ends = cumulative(batch.kv_lengths), starts = integers({1000, -3, 1 << 30});
  batch.options.cu_seqlens_kv = ends;
  batch.options.mask_mod = mods::causal_lower_right();
  const AttentionResult without = attention(batch.q, batch.k, batch.v, batch.options, true);
  batch.options.kv_start = starts;
  const AttentionResult with = attention(batch.q, batch.k, batch.v, batch.options, true);
  EXPECT_TRUE(same_bits(with.o, without.o));
  EXPECT_TRUE(same_bits(with.lse, without.lse));
}

// Each leaf as text, at the ends of i32 too.
TEST(KvStart, IsALeafOfItsOwn) {
  constexpr std::int64_t kMost = 2147483647;
  const Tensor q = random_reals({2, 1, 3, 8}, 1), k = random_reals({2, 1, 5, 8}, 2);
  const Tensor starts = integers({kMost - 4, -kMost - 1});
  AttentionOptions options;
  options.backend = backend_under_test();
  const AttentionResult without = attention(q, k, k, options, true);
  options.kv_start = starts;
  options.mask_mod =
      parse("kv_idx - kv_start == kv_token and where(b == 0, kv_start == 2147483643, kv_start == -2147483647 - 1)", {});
  const AttentionResult with = attention(q, k, k, options, true);
  EXPECT_TRUE(same_bits(with.o, without.o));
}

}  // namespace
}  // namespace heddle::test::kv_start
