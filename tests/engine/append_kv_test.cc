// append_kv on the CPU: drawn cases against their definition, what it is for (attention over the cache), and what it
// refuses, with nothing written.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/append_case.h"
#include "expect_error.h"
#include "heddle/heddle.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

TEST(AppendKv, DrawnCases) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const AppendCase before(drawn_append(seed), seed), ran = before.on(Device{});
    append_kv(ran.tensors(), ran.options());
    ASSERT_EQ(AppendCase::wrong(before, ran), "") << "seed " << seed;
  }
}

TEST(AppendKv, NumbersBeyondEightBits) {
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    const double most = dtype == DType::e4m3 ? 448 : 57344, infinity = std::numeric_limits<double>::infinity();
    const double numbers[] = {most, 1.04 * most, 1e30, -1e30, infinity, -infinity, NAN, -0.0};
    const double stored[] = {most, most, most, -most, most, -most, NAN, -0.0};
    const Tensor k = Tensor::empty(DType::f64, {1, 1, 1, 8}), cache = Tensor::zeros(dtype, {1, 1, 2, 8}),
                 values = Tensor::zeros(dtype, {1, 1, 2, 8}), lengths = Tensor::zeros(DType::i32, {1});
    std::copy_n(numbers, 8, static_cast<double*>(k.data()));
    append_kv({.k = k, .k_cache = cache, .v = k, .v_cache = values.view()}, {.kv_lengths = lengths});
    for (std::int64_t i = 0; i < 8; ++i) {
      const double x = get_element(cache, {0, 0, 0, i});
      EXPECT_TRUE(x == stored[i] || (std::isnan(x) && std::isnan(stored[i]))) << i << " " << x;
      EXPECT_EQ(get_element(cache, {0, 0, 1, i}), 0);
    }
  }
}

/// Tokens one after the other: attention over the cache is that over all keys, turned at once.
TEST(AppendKv, TokenByTokenIsAllAtOnce) {
  AppendSpec spec = {.rows = DType::f32,
                     .keys = DType::f32,
                     .values = DType::f32,
                     .batch = 2,
                     .new_rows = 12,
                     .qk_dim = 16,
                     .v_dim = 16,
                     .page_rows = 5,
                     .pairs = Pairs::halves,
                     .turned = 16};
  AppendCase all(spec, 1);
  std::memset(all.lengths.data(), 0, 8);
  const AppendCase steps = all.on(Device{});
  append_kv(all.tensors(), all.options());
  for (std::int64_t i = 0; i < 12; ++i) {
    AppendTensors tensors = steps.tensors();
    tensors.k = slice(tensors.k, 2, i, i + 1);
    tensors.v = slice(*tensors.v, 2, i, i + 1);
    append_kv(tensors, steps.options());
    for (int b = 0; b < 2; ++b) static_cast<std::int32_t*>(steps.lengths.data())[b] = static_cast<std::int32_t>(i + 1);
  }
  EXPECT_EQ(std::memcmp(all.k_cache.buffer.data(), steps.k_cache.buffer.data(),
                        static_cast<std::size_t>(all.k_cache.buffer.count() * 4)),
            0);
  AttentionOptions options;
  options.kv_lengths = steps.lengths;
  options.page_table = steps.table;
  const Tensor q = Tensor::zeros(DType::f32, {2, 2, 1, 16});
  const AttentionResult result = attention(q, steps.k_cache.view(), steps.v_cache.view(), options);
  for (std::int64_t b = 0; b < 2; ++b) {
    double mean = 0;  // q is 0: all keys have one weight
    for (std::int64_t i = 0; i < 12; ++i) mean += get_element(all.v.view(), {b, 1, i, 3}) / 12;
    EXPECT_NEAR(get_element(result.o, {b, 1, 0, 3}), mean, 1e-5);
  }
}

// The values of such a cache are columns of its keys.
TEST(AppendKv, KeysAlone) {
  const AppendCase before({.page_rows = 6}, 5), ran = before.on(Device{});
  AppendTensors tensors = ran.tensors();
  tensors.v.reset();
  tensors.v_cache.reset();
  append_kv(tensors, ran.options());
  AppendCase with_values = ran;
  with_values.v_cache.buffer = before.v_cache.buffer;
  EXPECT_THAT(AppendCase::wrong(before, with_values), HasSubstr("v_cache"));  // which alone is as before
}

class AppendKvRefuses : public testing::Test {
 protected:
  AppendSpec spec_ = {.rows = DType::f32,
                      .keys = DType::e4m3,
                      .values = DType::e4m3,
                      .q_out = DType::f32,
                      .page_rows = 4,
                      .factors = true,
                      .queries = true,
                      .pairs = Pairs::halves,
                      .turned = 32};
  AppendCase case_{spec_, 3};
  AppendTensors tensors_ = case_.tensors();
  AppendOptions options_ = case_.options();

  /// The sentence, and that nothing was written.
  void refuses(const std::string& sentence) {
    const AppendCase before = case_.on(Device{});
    expect_error([&] { append_kv(tensors_, options_); }, ErrorCode::invalid_argument, HasSubstr(sentence));
    for (const auto& [x, y] : {std::pair(&before.k_cache, &case_.k_cache), {&before.v_cache, &case_.v_cache}}) {
      EXPECT_EQ(std::memcmp(x->buffer.data(), y->buffer.data(), static_cast<std::size_t>(x->buffer.count())), 0);
    }
    tensors_ = case_.tensors();
    options_ = case_.options();
  }
  std::int32_t& length(int b) { return static_cast<std::int32_t*>(case_.lengths.data())[b]; }
  std::int32_t& page(std::int64_t b, std::int64_t n) {
    return static_cast<std::int32_t*>(case_.table.data())[b * case_.table.shape()[1] + n];
  }
};

TEST_F(AppendKvRefuses, RowsWithoutAPlace) {
  const std::int32_t before = length(1);
  length(1) = -1;
  refuses("kv_lengths[1] is -1; 0 and more are accepted");
  length(1) = 33;
  refuses("kv_lengths[1] is 33, and 4 new rows follow; the cache has room for 36 rows of a sequence");
  length(1) = before;
  const std::int64_t number = before / 4;
  const std::int32_t own = page(1, number);
  for (const std::int32_t wrong : {-1, 1000}) {
    page(1, number) = wrong;
    refuses(fmt::format("page_table[1, {}] is {}, for new rows of the sequence; pages are numbered from 0 to ", number,
                        wrong));
  }
  page(1, number) = own;
  page(0, length(0) / 4) = page(2, length(2) / 4);
  length(0) = length(2) % 4 + length(0) / 4 * 4;
  refuses("sequences 0 and 2 both have row ");
}

TEST_F(AppendKvRefuses, ListsThatDoNotFit) {
  spec_.listed = true;
  case_ = AppendCase(spec_, 3);
  const auto reset = [&] { tensors_ = case_.tensors(), options_ = case_.options(); };
  reset();
  auto* starts = static_cast<std::int32_t*>(case_.page_starts.data());
  auto* list = static_cast<std::int32_t*>(case_.table.data());
  const std::int32_t end = starts[3];
  starts[3] = starts[2] - 1;
  refuses(fmt::format("page_starts[3] is {}, where the pages of sequence 2 end; {} to {} are accepted", starts[3],
                      starts[2], end + 1));
  starts[3] = end + 2;
  refuses(fmt::format("page_starts[3] is {}, where the pages of sequence 2 end", end + 2));
  starts[3] = end;
  const std::int32_t pages = starts[1] - starts[0], before = length(0);
  length(0) = 4 * pages - 3;
  refuses(fmt::format("kv_lengths[0] is {}, and 4 new rows follow; the cache has room for {} rows of the sequence",
                      length(0), 4 * pages));
  length(0) = before;
  const std::int32_t at = starts[1] + length(1) / 4, own = list[at];
  list[at] = -1;
  refuses(fmt::format("page_table[{}] is -1, for new rows of sequence 1; pages are numbered from 0 to ", at));
  list[at] = own;
  options_.page_table = Tensor::zeros(DType::i32, {3, 9});
  refuses("page_table has shape [3, 9]; [entries], beside page_starts, is accepted");
  options_.page_table.reset();
  refuses("page_starts is given without page_table, the list of pages; both are accepted");
  options_.page_starts->shape[0] = 3;
  refuses("page_starts has shape [3]; [4] is accepted, an entry a sequence and the end of the last one");
  const Tensor wide = Tensor::zeros(DType::i64, {4});
  options_.page_starts = wide;
  refuses("page_starts is i64; i32 is accepted");
}

TEST_F(AppendKvRefuses, PositionsWithoutAngles) {
  options_.rotary->cos.shape[0] = options_.rotary->sin.shape[0] = length(0) + 3;
  refuses("rotary_cos has angles of positions 0 to ");
  const Tensor first = Tensor::zeros(DType::i32, {3});
  static_cast<std::int32_t*>(first.data())[2] = -1;
  options_.rotary->positions = first;
  refuses("rotary_positions[2] is -1, the position of the first of 4 rows; rotary_cos has angles of positions 0 to 98");
  const Tensor wide = Tensor::zeros(DType::i64, {3});
  static_cast<std::int64_t*>(wide.data())[0] = std::numeric_limits<std::int64_t>::max();
  options_.rotary->positions = wide;
  refuses("rotary_positions[0] is 9223372036854775807, the position of the first of ");
}

TEST_F(AppendKvRefuses, ArgumentsThatDoNotFit) {
  const Tensor three = Tensor::zeros(DType::f32, {3, 3}), halves = Tensor::zeros(DType::f16, {3, 2, 4, 64});
  tensors_.v = halves;
  refuses("v is f16 and k is f32; one dtype for k, v and q is accepted");
  tensors_.v = slice(*tensors_.v, 2, 0, 3);
  refuses("v has shape [3, 2, 3, 64]; [3, 2, 4, 64] is accepted, as k has it");
  tensors_.k_cache = slice(tensors_.k_cache, 3, 0, 63);
  refuses("k_cache has shape");
  tensors_.v_cache = slice(*tensors_.v_cache, 0, 0, 2);
  refuses("v_cache has shape");
  tensors_.v_cache = tensors_.k_cache;
  refuses("v_cache overlaps k_cache in memory; outputs that share no byte are accepted");
  tensors_.q_out->data = const_cast<void*>(tensors_.k.data);
  refuses("q_out overlaps k in memory; an output that shares no byte with an input is accepted");
  tensors_.k_cache.strides[0] = 0;
  refuses("so that elements share memory; one place an element is accepted");
  tensors_.v_cache.reset();
  refuses("v is given without v_cache; both are accepted, or none");
  tensors_.v.reset();
  tensors_.v_cache.reset();
  refuses("v_descale is given without v; both are accepted, or none");
  tensors_.q_out.reset();
  refuses("q is given without q_out; both are accepted, or none");
  options_.rotary.reset();
  refuses("q is given without rotary_cos and rotary_sin, which turn it; all are accepted, or none");
  options_.rotary->sin = slice(options_.rotary->sin, 0, 0, 50);
  refuses("rotary_sin is f32 [50, 16] and rotary_cos f32 [99, 16]; one dtype and shape for both are accepted");
  options_.rotary->cos = options_.rotary->sin = Tensor::zeros(DType::f32, {100, 33});
  refuses("rotary_cos has shape [100, 33], for 66 columns; k has 64, half of which is accepted");
  options_.k_descale = three;
  refuses("k_descale has shape [3, 3]; [3, 2] is accepted, where an extent may be 1");
  options_.kv_lengths = three;
  refuses("kv_lengths has shape [3, 3]; [3] is accepted, an entry a sequence");
  options_.kv_lengths = Tensor::zeros(DType::f32, {3});
  refuses("kv_lengths is f32; i32 and i64 are accepted");
  options_.page_table = Tensor::zeros(DType::i64, {3, 9});
  refuses("page_table is i64; i32 is accepted");
  options_.page_table = Tensor::zeros(DType::i32, {2, 9});
  refuses("page_table has shape [2, 9]; [3, max_pages] is accepted, a row a sequence");
  options_.page_table->device = {DeviceKind::cuda, 0};
  refuses("page_table is on cuda:0; the CPU is accepted, where k is");
  options_.cu_seqlens = Tensor::zeros(DType::i32, {4});
  refuses("k has shape [3, 2, 4, 64]; [1, Hkv, T, Dqk] is accepted with cu_seqlens");
}

TEST_F(AppendKvRefuses, FactorsWithoutEightBits) {
  spec_.keys = DType::bf16;
  spec_.factors = false;
  case_ = AppendCase(spec_, 3);
  tensors_ = case_.tensors();
  options_ = case_.options();
  const Tensor factors = Tensor::zeros(DType::f32, {3, 2});
  options_.k_descale = factors;
  refuses("k_descale is given, and k_cache is bf16; e4m3 and e5m2 are accepted with a factor");
}

TEST_F(AppendKvRefuses, StartsThatFallOrPassTheRows) {
  spec_.packed = true;
  case_ = AppendCase(spec_, 3);
  auto* starts = static_cast<std::int32_t*>(case_.starts.data());
  const std::int32_t last = starts[3];
  starts[3] = last + 4;
  tensors_ = case_.tensors();
  options_ = case_.options();
  refuses(fmt::format("cu_seqlens[3] is {}; {} to {} are accepted", last + 4, starts[2], last + 3));
  starts[3] = last;
  starts[1] = -1;
  refuses("cu_seqlens[1] is -1; 0 to ");
}

}  // namespace
}  // namespace heddle::test
