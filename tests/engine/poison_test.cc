// NaN and infinity in rows and keys that take no part change no bit of the other rows. (Memory around every view is
// poisoned in all cases of the grid.)
#include "engine/poison.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "base/element.h"
#include "heddle/mods.h"
#include "kept_cases.h"
#include "sample.h"

namespace heddle::test {
namespace {

void run(AttentionCase& c) {
  const AttentionTensors tensors = c.tensors();
  attention_into(tensors.q, tensors.k, tensors.v, tensors.o, tensors.lse, c.options());
}

// The rows that `affected` does not choose come out the same, and free of NaN, after `poison` as before.
void expect_unreached(const CaseSpec& spec, const Expr& mask, const std::function<void(AttentionCase&)>& poison,
                      const Chooses& affected) {
  SCOPED_TRACE(spec.text());
  AttentionCase c(spec);
  c.options().mask_mod = mask;
  run(c);
  const auto clean = rows_of(c, affected);
  for (const auto& row : clean) {
    for (double x : row) ASSERT_EQ(x, x);
  }
  poison(c);
  run(c);
  EXPECT_EQ(rows_of(c, affected), clean);
}

// Small and odd sizes in every type.
std::vector<CaseSpec> specs() {
  std::vector<CaseSpec> specs;
  std::uint64_t number = 0;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    for (const auto& [rows, keys] :
         {std::pair(1, 70), std::pair(3, 300), std::pair(2, 2500), std::pair(130, 129), std::pair(200, 65)}) {
      if (!is_kept(number++, 7)) continue;
      CaseSpec spec;
      spec.seed = 1000 + static_cast<std::uint64_t>(rows);
      spec.batch = 2;
      spec.group = 2;
      spec.q_rows = rows;
      spec.kv_rows = keys;
      spec.qk_dim = 20;
      spec.v_dim = 33;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
      specs.push_back(spec);
    }
  }
  return specs;
}

TEST(Poison, KeysAndValuesThatNothingAttends) {
  const Chooses unattended = [](auto, auto, std::int64_t j) { return j % 5 == 2 || (j >= 30 && j < 64); };
  const Expr mask = (leaf::kv_idx() % 5 != 2) & ((leaf::kv_idx() < 30) | (leaf::kv_idx() >= 64));
  for (const CaseSpec& spec : specs()) {
    expect_unreached(
        spec, mask, [&](AttentionCase& c) { poison_rows(c.k, unattended); }, kNone);
    expect_unreached(
        spec, mask, [&](AttentionCase& c) { poison_rows(c.v, unattended); }, kNone);
  }
}

TEST(Poison, KeysAndValuesThatAScoreModMasks) {
  const Chooses unattended = [](auto, auto, std::int64_t j) { return j % 7 == 3; };
  for (CaseSpec spec : specs()) {
    AttentionCase c(spec);
    c.options().score_mod = where(leaf::kv_idx() % 7 == 3, -std::numeric_limits<double>::infinity(), leaf::score());
    run(c);
    const auto clean = rows_of(c, kNone);
    poison_rows(c.k, unattended);
    run(c);
    EXPECT_EQ(rows_of(c, kNone), clean) << spec.text();
  }
}

TEST(Poison, QueriesThatAttendNothing) {
  const Chooses blind = [](auto, auto, std::int64_t i) { return i % 3 == 1; };
  for (const CaseSpec& spec : specs()) {
    expect_unreached(
        spec, leaf::q_idx() % 3 != 1, [&](AttentionCase& c) { poison_rows(c.q, blind); }, kNone);
  }
}

// A row in which nothing attends is 0 whatever the values are that its neighbours attend.
TEST(Poison, RowsThatAttendNothingAreZero) {
  for (const CaseSpec& spec : specs()) {
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    c.options().mask_mod = leaf::q_idx() % 3 != 1;
    poison_rows(c.v, [](auto...) { return true; });
    run(c);
    std::vector<double> empty(static_cast<std::size_t>(spec.v_dim), 0);
    empty.push_back(-std::numeric_limits<double>::infinity());
    for (const auto& row : rows_of(c, [](auto, auto, std::int64_t i) { return i % 3 != 1; })) EXPECT_EQ(row, empty);
  }
}

// Mods are not asked about masked elements: what they would give there counts nowhere.
TEST(Poison, ScoresAndWeightsOfMaskedElements) {
  const Expr masked = leaf::kv_idx() > leaf::q_idx() + 3;
  for (const double poison : {kNaN, std::numeric_limits<double>::infinity()}) {
    for (CaseSpec spec : specs()) {
      for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}) {
        spec.normalizer = normalizer;
        AttentionCase c(spec);
        c.options().mask_mod = !masked;
        c.options().score_mod = where(masked, Expr(0.5), leaf::score());  // mods may change the last bits
        c.options().weight_mod = where(masked, Expr(2.0), Expr(1.0));
        run(c);
        const auto clean = rows_of(c, kNone);
        c.options().score_mod = where(masked, Expr(poison), leaf::score());
        c.options().weight_mod = where(masked, Expr(poison), Expr(1.0));
        run(c);
        EXPECT_EQ(rows_of(c, kNone), clean) << spec.text();
      }
    }
  }
}

TEST(Poison, QueriesReachOnlyThemselves) {
  const Chooses poisoned = [](auto, std::int64_t h, std::int64_t i) { return h == 1 && i % 11 == 4; };
  for (const CaseSpec& spec : specs()) {
    expect_unreached(
        spec, {}, [&](AttentionCase& c) { poison_rows(c.q, poisoned); }, poisoned);
  }
}

TEST(Poison, KeysReachOnlyQueriesThatAttendThem) {
  const Chooses poisoned = [](auto, auto, std::int64_t j) { return j == 60; };
  const Chooses reached = [](auto, auto, std::int64_t i) { return i >= 60; };
  for (const CaseSpec& spec : specs()) {
    expect_unreached(
        spec, mods::causal(), [&](AttentionCase& c) { poison_rows(c.k, poisoned); }, reached);
  }
}

// How an element is kept from its row.
enum class Keeps { mask, score, blocks };

// Row i does not attend key j where i + j is a multiple of 3.
void keep_a_third(AttentionCase& c, Keeps how) {
  const Expr attends = (leaf::q_idx() + leaf::kv_idx()) % 3 != 0;
  if (how == Keeps::mask) c.options().mask_mod = attends;
  if (how == Keeps::score) {
    c.options().score_mod = where(attends, leaf::score(), -std::numeric_limits<double>::infinity());
  }
  if (how != Keeps::blocks) return;
  const CaseSpec& spec = c.spec();
  const MaskShape shape = MaskShape::uniform(spec.batch, spec.q_heads(), spec.q_rows, spec.kv_rows);
  const BlockMask rows = BlockMask::build(attends, shape, {1, 1}, {}, 1);
  c.options().block_mask = std::make_shared<BlockMask>(BlockMask::from_lists(rows.to_lists(), shape, {1, 1}));
}

// Values that are not finite reach the rows that attend them, as in the reference. They change no bit of the other
// rows, whether a mask, a score or a block keeps them away.
TEST(Poison, ValuesReachOnlyRowsThatAttendThem) {
  const Chooses poisoned = [](auto, auto, std::int64_t j) { return j == 3 || j == 60 || j == 63 || j == 2049; };
  const Chooses reached = [](auto, auto, std::int64_t i) { return i % 3 != 0; };
  std::uint64_t number = 0;
  for (CaseSpec spec : specs()) {
    for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}) {
      spec.normalizer = normalizer;
      spec.with_lse = normalizer == Normalizer::softmax;
      for (const Keeps how : {Keeps::mask, Keeps::score, Keeps::blocks}) {
        if (how == Keeps::blocks && (spec.q_rows < 100 || normalizer != Normalizer::softmax)) continue;
        if (!is_drawn(number++, 3)) continue;
        SCOPED_TRACE(spec.text());
        AttentionCase c(spec);
        keep_a_third(c, how);
        if (normalizer == Normalizer::none) c.options().weight_mod = where(leaf::kv_idx() % 2 == 0, 0.5, 1.5);
        run(c);
        const auto clean = rows_of(c, reached);
        for (const double poison : {kNaN, std::numeric_limits<double>::infinity()}) {
          poison_rows(c.v, poisoned, poison);
          run(c);
          EXPECT_EQ(rows_of(c, reached), clean);
          if (how == Keeps::mask && spec.kv_rows < 2000) judge(c);
        }
      }
    }
  }
}

TEST(Poison, ValuesOfADocumentStayInIt) {
  for (CaseSpec spec : specs()) {
    for (const std::string sequences : {"whole", "packed", "pages"}) {
      spec.sequences = sequences == "packed" ? "packed" : "whole";
      spec.page_rows = sequences == "pages" ? 16 : 0;
      SCOPED_TRACE(spec.text());
      AttentionCase c(spec);
      c.options().mask_mod = floor_div(leaf::q_idx(), 5) == floor_div(leaf::kv_idx(), 5);
      poison_rows(c.v, [](auto, auto, std::int64_t row) { return row % 7 == 3; });
      run_and_judge(c);
    }
  }
}

TEST(Poison, BatchEntriesAndHeadsReachOnlyThemselves) {
  for (const CaseSpec& spec : specs()) {
    const Chooses entry = [](std::int64_t b, auto...) { return b == 1; };
    expect_unreached(
        spec, {},
        [&](AttentionCase& c) {
          for (const GuardedTensor* tensor : {&c.q, &c.k, &c.v}) poison_rows(*tensor, entry);
        },
        entry);
  }
  for (CaseSpec spec : specs()) {
    spec.kv_heads = 2;
    expect_unreached(
        spec, {},
        [&](AttentionCase& c) {
          const Chooses head = [](auto, std::int64_t h, auto) { return h == 0; };
          poison_rows(c.k, head);
          poison_rows(c.v, head);
        },
        [](auto, std::int64_t h, auto) { return h < 2; });
  }
}

TEST(Poison, SequencesOfAPackedBatchReachOnlyThemselves) {
  for (CaseSpec spec : specs()) {
    spec.sequences = "packed";
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    const auto q_ends = static_cast<const std::int32_t*>(c.options().cu_seqlens_q->data);
    const auto kv_ends = static_cast<const std::int64_t*>(c.options().cu_seqlens_kv->data);
    const std::int64_t last = c.sequences() - 1;
    const Chooses q_rows = [&](auto, auto, std::int64_t i) { return i >= q_ends[last]; };
    const Chooses kv_rows = [&](auto, auto, std::int64_t j) { return j >= kv_ends[last]; };
    run(c);
    const auto clean = rows_of(c, q_rows);
    poison_rows(c.q, q_rows);
    poison_rows(c.k, kv_rows);
    poison_rows(c.v, kv_rows);
    run(c);
    EXPECT_EQ(rows_of(c, q_rows), clean);
  }
}

// Rows past a sequence's end are NaN in the case already; here every other content of them gives the same bits.
TEST(Poison, PaddingPastTheLengths) {
  for (CaseSpec spec : specs()) {
    spec.sequences = "lengths";
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    const auto q_lengths = static_cast<const std::int32_t*>(c.options().q_lengths->data);
    const auto kv_lengths = static_cast<const std::int64_t*>(c.options().kv_lengths->data);
    run(c);
    const auto poisoned = rows_of(c, kNone);
    for (const auto& row : poisoned) {
      for (double x : row) ASSERT_EQ(x, x);
    }
    const auto clear = [](const GuardedTensor& tensor, const auto* lengths) {
      tensor.for_each_element([&](const Dims& at, std::int64_t offset) {
        if (at[2] >= lengths[at[0]]) base::store_element(tensor.view().data, tensor.view().dtype, offset, 1);
      });
    };
    clear(c.q, q_lengths);
    clear(c.k, kv_lengths);
    clear(c.v, kv_lengths);
    run(c);
    EXPECT_EQ(rows_of(c, kNone), poisoned);
  }
}

// Captures end at a page that nothing may touch; lanes outside the problem read inside all the same.
TEST(Poison, CapturesAreReadInside) {
  for (const CaseSpec& given : specs()) {
    CaseSpec spec = given;
    spec.q_start = "ahead";
    AttentionCase c(spec);
    const auto row = [&](DType dtype, std::int64_t count) {
      const GuardedTensor tensor(dtype, {1, 1, 1, count}, Layout::bhsd);
      for (std::int64_t i = 0; i < count; ++i)
        base::store_element(tensor.view().data, dtype, i, static_cast<double>((i / 7) % 5));
      return tensor;
    };
    const GuardedTensor ids = row(DType::i64, c.positions()), by_key = row(DType::f16, spec.kv_rows);
    const GuardedTensor bias(DType::bf16, {spec.batch, spec.q_heads(), spec.q_rows, spec.kv_rows}, Layout::bhsd);
    bias.for_each_element([&](const Dims& at, std::int64_t offset) {
      base::store_element(bias.view().data, DType::bf16, offset, static_cast<double>(at[3] % 3));
    });
    const auto vector_of = [](const GuardedTensor& tensor) {
      const TensorView view = tensor.view();
      return TensorView(view.data, view.dtype, Dims{view.shape[3]});
    };
    c.options().bindings.captures = {{"ids", vector_of(ids)}, {"by_key", vector_of(by_key)}, {"bias", bias.view()}};
    c.options().mask_mod = mods::documents(Capture("ids", DType::i64, 1));
    c.options().score_mod = leaf::score() + Capture("by_key", DType::f16, 1)(leaf::kv_idx()) +
                            Capture("bias", DType::bf16, 4)(leaf::b(), leaf::h(), leaf::q_token(), leaf::kv_idx());
    run_and_judge(c);
  }
}

}  // namespace
}  // namespace heddle::test
