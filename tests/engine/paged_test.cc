// Keys and values in pages on the CPU: equal to the same ones in a row, within the criterion, and what is refused.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "engine/attention_case.h"
#include "expect_error.h"
#include "heddle/mods.h"
#include "problem/problem.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

TEST(Paged, AgreesWithTheReference) {
  std::uint64_t seed = 0;
  for (const std::int64_t page_rows : {1, 3, 7, 16, 64, 128}) {
    for (const char* sequences : {"whole", "lengths", "packed"}) {
      for (const std::int64_t q_rows : {1, 70}) {  // keys packed as they come, and before
        CaseSpec spec;
        spec.seed = ++seed;
        spec.page_rows = page_rows;
        spec.listed_pages = seed / 2 % 2 == 1;
        spec.sequences = sequences;
        spec.batch = 3;
        spec.kv_heads = spec.group = 2;
        spec.q_rows = q_rows;
        spec.kv_rows = 130;
        spec.qk_dim = 40;
        spec.v_dim = 33;
        spec.mask = seed % 2 == 0 ? "causal_lower_right" : "";
        spec.q_dtype = spec.k_dtype = spec.v_dtype = seed % 3 == 0 ? DType::bf16 : DType::f32;
        AttentionCase attention_case(spec);
        run_and_judge(attention_case);
      }
    }
  }
}

/// Two sequences of 10 and 5 keys in pages of 4, of 5 pages; and the same keys in a row.
struct Call {
  Tensor q = Tensor::zeros(DType::f32, {2, 2, 3, 8}), k = Tensor::zeros(DType::f32, {5, 1, 4, 8}),
         v = Tensor::zeros(DType::f32, {5, 1, 4, 8}), k_row = Tensor::zeros(DType::f32, {2, 1, 12, 8}),
         v_row = Tensor::zeros(DType::f32, {2, 1, 12, 8});
  std::int32_t table[6] = {3, 0, 4, 1, 2, -9};
  std::int64_t lengths[2] = {10, 5};
  AttentionOptions options;

  Call() {
    options.page_table = ConstTensorView(table, DType::i32, {2, 3});
    options.kv_lengths = ConstTensorView(lengths, DType::i64, {2});
    options.mask_mod = mods::causal_lower_right();
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (const Tensor* tensor : {&q, &k, &v}) {
      for (std::int64_t i = 0; i < tensor->count(); ++i) static_cast<float*>(tensor->data())[i] = normal(rng);
    }
    for (int b = 0; b < 2; ++b) {
      for (int j = 0; j < lengths[b]; ++j) {
        const int page = table[3 * b + j / 4];
        for (const auto& [from, to] : {std::pair(&k, &k_row), {&v, &v_row}}) {
          std::memcpy(static_cast<float*>(to->data()) + (12 * b + j) * 8,
                      static_cast<const float*>(from->data()) + (4 * page + j % 4) * 8, 8 * sizeof(float));
        }
      }
    }
  }
  AttentionResult paged() const { return attention(q, k, v, options, true); }
  void expect_refused(const char* sentence) const {
    expect_error([&] { paged(); }, ErrorCode::invalid_argument, HasSubstr(sentence));
  }
};

TEST(Paged, IsTheSameAsKeysInARow) {
  for (const BackendChoice backend : {BackendChoice::cpu, BackendChoice::reference}) {
    Call call;
    call.options.backend = backend;
    const AttentionResult paged = call.paged();
    AttentionOptions in_a_row = call.options;
    in_a_row.page_table.reset();
    const AttentionResult expected = attention(call.q, call.k_row, call.v_row, in_a_row, true);
    EXPECT_EQ(std::memcmp(paged.o.data(), expected.o.data(), 2 * 2 * 3 * 8 * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(paged.lse.data(), expected.lse.data(), 2 * 2 * 3 * sizeof(float)), 0);
  }
}

TEST(Paged, IsExplained) {
  const Call call;
  const problem::AttentionProblem problem =
      problem::validate({call.q, call.k, call.v, TensorView(nullptr, DType::f32, Dims{2, 2, 3, 8}), {}}, call.options);
  EXPECT_EQ(problem.page_rows, 4);
  EXPECT_EQ(problem.kv_rows, 12);
  EXPECT_THAT(to_string(problem), HasSubstr("pages of 4 rows"));
}

TEST(Paged, RefusesTablesThatDoNotFit) {
  Call call;
  call.table[2] = 5;
  call.expect_refused("page_table[0, 2] is 5, for the keys of a sequence of 10; pages are numbered from 0 to 4");
  call.table[2] = -1;
  call.expect_refused("page_table[0, 2] is -1");
  call.table[2] = 4;
  call.paged();
  call.lengths[0] = 13;
  call.expect_refused("kv_lengths[0] is 13; lengths from 0 to the padded size 12 are accepted");
  call.lengths[0] = 10;
  call.options.page_table = ConstTensorView(call.table, DType::i32, {1, 3});
  call.expect_refused("page_table has shape [1, 3]; [2, max_pages] is accepted, a row a sequence");
  call.options.page_table = ConstTensorView(call.table, DType::i32, {6});
  call.expect_refused("page_table has shape [6]; [B, max_pages] is accepted");
  call.options.page_table = ConstTensorView(call.lengths, DType::i64, {2, 1});
  call.expect_refused("page_table is i64; i32 is accepted");
  call.options.page_table = ConstTensorView(call.table, DType::i32, {2, 3}, Device{DeviceKind::cuda, 0});
  call.expect_refused("page_table is on cuda:0; the CPU is accepted, where q is");
}

/// The third page is the first of sequence 0 that a query reads: engines mark the freed ones before it with -1.
void expect_freed_pages_unread(Call call, std::int32_t freed) {
  const AttentionResult expected = call.paged();
  // The page that stands in for them may hold anything.
  for (Tensor* tensor : {&call.k, &call.v}) {
    std::fill_n(static_cast<float*>(tensor->data()), 4 * 8, std::numeric_limits<float>::quiet_NaN());
  }
  call.table[0] = freed, call.table[1] = -1;
  call.options.page_table = ConstTensorView(call.table, DType::i32, {2, 3});
  call.options.kv_lengths = ConstTensorView(call.lengths, DType::i64, {2});
  const AttentionResult found = call.paged();
  EXPECT_EQ(std::memcmp(found.o.data(), expected.o.data(), 2 * 2 * 3 * 8 * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(found.lse.data(), expected.lse.data(), 2 * 2 * 3 * sizeof(float)), 0);
  call.table[4] = -1;
  call.expect_refused("page_table[1, 1] is -1, for the keys of a sequence of 5");
}

TEST(Paged, EntriesThatNoQueryReadsMayBeNoPage) {
  const Expr window = leaf::kv_idx() >= 8 - 8 * leaf::b();
  for (const BackendChoice backend : {BackendChoice::cpu, BackendChoice::reference}) {
    for (const std::int32_t freed : {-1, INT32_MIN, 4, INT32_MAX}) {
      Call call;
      call.options.backend = backend;
      call.options.mask_mod = mods::causal_lower_right() & window;
      expect_freed_pages_unread(call, freed);
    }
    Call call;
    call.options.backend = backend;
    call.options.mask_mod = {};
    const BlockLists lists = BlockMask::build(window, MaskShape::uniform(2, 2, 3, 12), {.q = 2, .kv = 4}).to_lists();
    const MaskShape shape = {.heads = 2, .sequences = {{.q_len = 3, .kv_len = 10}, {.q_len = 3, .kv_len = 5}}};
    call.options.block_mask =
        std::make_shared<BlockMask>(BlockMask::from_lists(lists, shape, {.q = 2, .kv = 4}, window));
    expect_freed_pages_unread(call, -1);
  }
}

/// A window within pages and blocks of other sizes, judged by the reference in float64.
TEST(Paged, FreedPagesBeforeAWindowAreRight) {
  for (const std::int64_t page_rows : {3, 16, 64}) {
    for (const std::int64_t q_rows : {1, 70}) {
      CaseSpec spec;
      spec.page_rows = page_rows;
      spec.batch = spec.kv_heads = spec.group = 2;
      spec.q_rows = q_rows;
      spec.kv_rows = 700;
      spec.qk_dim = 40;
      spec.v_dim = 33;
      AttentionCase c(spec);
      c.options().mask_mod = mods::causal_lower_right() & (leaf::q_idx() + 700 - q_rows - leaf::kv_idx() < 150);
      const ConstTensorView table = *c.options().page_table;
      auto* entries = static_cast<std::int32_t*>(const_cast<void*>(table.data));
      const std::int64_t freed = (700 - q_rows - 149) / page_rows;
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t n = 0; n < freed; ++n) entries[b * table.strides[0] + n * table.strides[1]] = -1;
      }
      run_and_judge(c);
      entries[freed * table.strides[1]] = -1;
      EXPECT_THROW(run_and_judge(c), Error);
    }
  }
}

/// Such keys and values whose pages stand in a list.
struct ListedCall : Call {
  std::int32_t list[7] = {-1, 3, 0, 4, 1, 2, 7}, starts[3] = {1, 4, 6};
  ListedCall() {
    options.page_table = ConstTensorView(list, DType::i32, {7});
    options.page_starts = ConstTensorView(starts, DType::i32, {3});
  }
};

TEST(PagedList, IsTheSameAsATable) {
  for (const BackendChoice backend : {BackendChoice::cpu, BackendChoice::reference}) {
    for (const bool with_lengths : {true, false}) {
      Call table;
      ListedCall list;
      list.options.backend = table.options.backend = backend;
      if (!with_lengths) {  // all rows of a sequence's pages
        list.options.kv_lengths.reset();
        table.lengths[0] = 12, table.lengths[1] = 8;
      }
      const AttentionResult expected = table.paged(), found = list.paged();
      EXPECT_EQ(std::memcmp(found.o.data(), expected.o.data(), 2 * 2 * 3 * 8 * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(found.lse.data(), expected.lse.data(), 2 * 2 * 3 * sizeof(float)), 0);
    }
  }
}

// A kept plan is another one's for other starts, and reads the list of each run.
TEST(PagedList, MayChangeBetweenCalls) {
  ListedCall call;
  call.list[4] = 0;
  const AttentionResult first = call.paged();
  call.list[4] = 1;
  call.paged();
  std::int32_t moved[7] = {3, 0, 4, -5, -5, 0, 2};
  call.options.page_table = ConstTensorView(moved, DType::i32, {7});
  call.starts[0] = 0, call.starts[1] = 5, call.starts[2] = 7;
  const AttentionResult second = call.paged();
  EXPECT_EQ(std::memcmp(first.o.data(), second.o.data(), 2 * 2 * 3 * 8 * sizeof(float)), 0);
}

TEST(PagedList, IsExplained) {
  const ListedCall call;
  const problem::AttentionProblem problem =
      problem::validate({call.q, call.k, call.v, TensorView(nullptr, DType::f32, Dims{2, 2, 3, 8}), {}}, call.options);
  EXPECT_TRUE(problem.listed_pages);
  EXPECT_EQ(problem.kv_rows, 12);
  EXPECT_THAT(to_string(problem), HasSubstr("listed pages of 4 rows"));
}

TEST(PagedList, RefusesListsThatDoNotFit) {
  ListedCall call;
  call.list[5] = 9;
  call.expect_refused("page_table[5] is 9, for the keys of sequence 1, which has 5; pages are numbered from 0 to 4");
  call.list[5] = 2;
  call.starts[1] = 0;
  call.expect_refused(
      "page_starts[1] is 0, where the pages of sequence 0 end; 1 to 7 are accepted: the entries of page_table that no "
      "sequence before has");
  call.starts[1] = 4;
  call.starts[2] = 8;
  call.expect_refused("page_starts[2] is 8, where the pages of sequence 1 end; 4 to 7 are accepted");
  call.starts[2] = 6;
  call.starts[0] = -1;
  call.expect_refused("page_starts[0] is -1, where the pages of sequence 0 begin; 0 to 7 are accepted");
  call.starts[0] = 1;
  call.lengths[1] = 9;
  call.expect_refused("kv_lengths[1] is 9; page_starts gives sequence 1 2 pages of 4 rows, so 0 to 8 are accepted");
  call.lengths[1] = 5;
  call.options.page_starts = ConstTensorView(call.starts, DType::i32, {2});
  call.expect_refused("page_starts has shape [2]; [3] is accepted, an entry a sequence and the end of the last one");
  call.options.page_starts = ConstTensorView(call.starts, DType::i32, {1, 3});
  call.expect_refused("page_starts has shape [1, 3]; [B + 1] is accepted");
  call.options.page_starts = ConstTensorView(call.lengths, DType::i64, {2});
  call.expect_refused("page_starts is i64; i32 is accepted");
  call.options.page_starts = ConstTensorView(call.starts, DType::i32, {3}, Device{DeviceKind::cuda, 0});
  call.expect_refused("page_starts is on cuda:0; the CPU is accepted");
  call.options.page_starts = ConstTensorView(call.starts, DType::i32, {3});
  call.options.page_table = ConstTensorView(call.table, DType::i32, {2, 3});
  call.expect_refused("page_table has shape [2, 3]; [entries], beside page_starts, is accepted");
  call.options.page_table.reset();
  call.expect_refused("page_starts is given without page_table, the list of pages; both are accepted");
}

TEST(Paged, RefusesPackedKeys) {
  Call call;
  const std::int32_t ends[] = {0, 3, 3};
  call.options.cu_seqlens_q = ConstTensorView(ends, DType::i32, {3});
  call.q = Tensor::zeros(DType::f32, {1, 2, 3, 8});
  call.paged();
  call.options.cu_seqlens_kv = ConstTensorView(ends, DType::i32, {3});
  call.expect_refused("cu_seqlens_kv is given together with page_table; kv_lengths is accepted");
}

}  // namespace
}  // namespace heddle::test
