// Packed keys of which kv_lengths says how many count: the rows behind them, which hold NaN, reach nothing, and have
// gradients of zero.
#include <gtest/gtest.h>

#include "engine/attention_case.h"
#include "engine/backward_case.h"
#include "expect_error.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

std::vector<CaseSpec> slot_specs() {
  std::vector<CaseSpec> drawn;
  for (const char* mask : {"", "causal_lower_right", "sliding_window"}) {
    for (const std::int64_t q_rows : {1, 70}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        CaseSpec spec;
        spec.seed = drawn.size() + 900;
        spec.sequences = "slots";
        spec.kv_heads = spec.group = 2;
        spec.q_rows = q_rows;
        spec.kv_rows = 190;
        spec.qk_dim = 40;
        spec.v_dim = 33;
        spec.mask = mask;
        spec.score = drawn.size() % 2 == 0 ? "alibi" : "";
        spec.rows = drawn.size() % 3 == 0 ? "given" : "built";
        spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
        drawn.push_back(spec);
      }
    }
  }
  return drawn;
}

TEST(Slots, AgreeWithTheReference) {
  for (const CaseSpec& spec : slot_specs()) {
    SCOPED_TRACE(spec.text());
    AttentionCase attention_case(spec);
    run_and_judge(attention_case);
  }
}

TEST(Slots, HaveGradientsOfTheKeysThatCount) {
  for (const BackendChoice backend : backward_backends()) {
    for (const CaseSpec& spec : slot_specs()) {
      AttentionCase attention_case(spec);
      BackwardCase backward_case(attention_case, {});
      SCOPED_TRACE(backward_case.text());
      run_and_judge(backward_case, backend);
    }
  }
}

TEST(Slots, AreThoseOfTheSameSequencesWithoutGaps) {
  constexpr std::int32_t kQueries[] = {0, 2, 5}, kSlots[] = {0, 6, 10}, kUsed[] = {4, 3}, kCloser[] = {0, 4, 7};
  const Tensor q = Tensor::zeros(DType::f32, {1, 2, 5, 8}), k = Tensor::zeros(DType::f32, {1, 1, 10, 8}),
               k_closer = Tensor::zeros(DType::f32, {1, 1, 7, 8});
  const auto fill = [](const Tensor& to) {
    for (std::int64_t i = 0; i < to.count(); ++i) static_cast<float*>(to.data())[i] = static_cast<float>(i % 13) / 7;
  };
  fill(q);
  fill(k);
  for (int row = 0; row < 7; ++row) {
    const auto* from = static_cast<const float*>(k.data()) + 8 * (row < 4 ? row : row + 2);
    std::copy(from, from + 8, static_cast<float*>(k_closer.data()) + 8 * row);
  }
  AttentionOptions options;
  options.mask_mod = mods::causal_lower_right();
  options.cu_seqlens_q = ConstTensorView(kQueries, DType::i32, {3});
  options.cu_seqlens_kv = ConstTensorView(kSlots, DType::i32, {3});
  options.kv_lengths = ConstTensorView(kUsed, DType::i32, {2});
  const Tensor o = attention(q, k, k, options).o;
  options.cu_seqlens_kv = ConstTensorView(kCloser, DType::i32, {3});
  options.kv_lengths.reset();
  const Tensor o_closer = attention(q, k_closer, k_closer, options).o;
  for (std::int64_t i = 0; i < o.count(); ++i) {
    EXPECT_EQ(static_cast<const float*>(o.data())[i], static_cast<const float*>(o_closer.data())[i]);
  }
}

}  // namespace
}  // namespace heddle::test
