// The kernels of backward_sm90 in emulated CTAs, against the reference by the criterion of check.h: masks, mods,
// sequences, groups, head dims, types, and orders of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>

#include "engine/backward_case.h"
#include "heddle/check.h"
#include "heddle/error.h"
#include "kernels/cuda/emulated_backward.h"

namespace heddle::test {
namespace {

CaseSpec spec_of(std::int64_t q_rows, std::int64_t kv_rows, std::int64_t dim) {
  CaseSpec spec;
  spec.seed = 3;
  spec.batch = 1;
  spec.kv_heads = 1;
  spec.group = 1;
  spec.q_rows = q_rows;
  spec.kv_rows = kv_rows;
  spec.qk_dim = spec.v_dim = dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  return spec;
}

BackwardSpec rows_wanted(const std::string& wanted = "qkv") {
  BackwardSpec spec;
  spec.wanted = wanted;
  return spec;
}

void judge(const CaseSpec& spec, const BackwardSpec& backward_spec, const EmulatedRun& run = {}) {
  AttentionCase attention_case(spec);
  BackwardCase backward_case(attention_case, backward_spec);
  SCOPED_TRACE(backward_case.text());
  backward_case.run_forward();
  for (const Gradient& gradient : backward_case.gradients()) {
    const auto memory = gradient.memory.memory();
    std::memset(memory.data(), 0xff, memory.size());
  }
  run_emulated_backward(backward_case.tensors(), attention_case.options(), run);
  for (const Gradient& gradient : backward_case.gradients()) {
    EXPECT_TRUE(gradient.memory.gaps_untouched()) << gradient.name;
  }
  const GradientReport report = check_backward(backward_case.tensors(), attention_case.options());
  EXPECT_TRUE(report.passed) << report.text();
}

TEST(BackwardEmulated, OneTile) {
  judge(spec_of(64, 128, 128), rows_wanted());
  judge(spec_of(64, 128, 64), rows_wanted());
}

// Ends inside of a block of queries, of a warpgroup's keys, and of a tile; more steps than buffers.
TEST(BackwardEmulated, RaggedEnds) {
  for (const std::int64_t dim : {64, 128}) {
    judge(spec_of(330, 300, dim), rows_wanted());
    judge(spec_of(1, 65, dim), rows_wanted());
    judge(spec_of(100, 1, dim), rows_wanted());
  }
}

TEST(BackwardEmulated, Masks) {
  for (const char* mask : {"causal", "sliding_window", "documents", "some_queries_blind", "nothing"}) {
    CaseSpec spec = spec_of(130, 140, 64);
    spec.mask = mask;
    judge(spec, rows_wanted());
  }
  CaseSpec given = spec_of(200, 140, 64);
  given.mask = "causal";
  given.rows = "given";
  given.block = BlockSize{128, 64};
  judge(given, rows_wanted());
}

TEST(BackwardEmulated, Groups) {
  for (const char* mask : {"", "causal_lower_right", "by_head"}) {
    CaseSpec spec = spec_of(130, 140, 128);
    spec.kv_heads = 2;
    spec.group = 3;
    spec.mask = mask;
    judge(spec, rows_wanted());
  }
}

TEST(BackwardEmulated, Scores) {
  for (const char* score : {"alibi", "softcap", "full_bias", "t5_bias", "scaled_by_param", "padded", "some_rows_masked",
                            "temperature_and_gate"}) {
    CaseSpec spec = spec_of(70, 140, 64);
    spec.group = 2;
    spec.score = score;
    spec.mask = "causal_lower_right";
    judge(spec, rows_wanted());
  }
}

TEST(BackwardEmulated, Weights) {
  for (const char* weight : {"dropout", "weights_by_key", "drops_all"}) {
    CaseSpec spec = spec_of(70, 140, 64);
    spec.weight = weight;
    spec.mask = "causal_lower_right";
    judge(spec, rows_wanted());
  }
}

TEST(BackwardEmulated, Normalizers) {
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
    for (const char* score : {"", "softcap"}) {
      CaseSpec spec = spec_of(70, 140, 64);
      spec.normalizer = normalizer;
      spec.score = score;
      spec.mask = "causal";
      judge(spec, rows_wanted());
    }
  }
}

TEST(BackwardEmulated, Sequences) {
  for (const char* sequences : {"lengths", "packed"}) {
    CaseSpec spec = spec_of(150, 190, 64);
    spec.sequences = sequences;
    spec.batch = 3;
    spec.group = 2;
    spec.mask = "causal";
    spec.q_start = "ahead";
    spec.kv_start = "ahead";
    judge(spec, rows_wanted());
    spec.mask = "";
    judge(spec, rows_wanted("q"));
    judge(spec, rows_wanted("kv"));
  }
}

TEST(BackwardEmulated, Sinks) {
  for (const char* mask : {"", "some_queries_blind"}) {
    CaseSpec spec = spec_of(70, 100, 64);
    spec.group = 9;
    spec.sinks = "mixed";
    spec.mask = mask;
    judge(spec, rows_wanted("all"));
  }
}

TEST(BackwardEmulated, HeadDimsTypesAndLayouts) {
  for (const Layout layout : {Layout::bshd, Layout::gaps, Layout::reversed}) {
    for (const auto& [qk, v] : {std::pair(40, 100), std::pair(33, 7), std::pair(128, 64)}) {
      CaseSpec spec = spec_of(70, 130, qk);
      spec.v_dim = v;
      spec.layout = layout;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      BackwardSpec backward_spec = rows_wanted();
      backward_spec.layout = layout;
      if (layout == Layout::gaps) backward_spec.gradient_dtype = DType::f32;
      judge(spec, backward_spec);
    }
  }
}

// Orders of threads, copies and products that differ.
TEST(BackwardEmulated, AnyOrder) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    judge(spec_of(330, 300, 64), rows_wanted(), {.seed = seed});
    judge(spec_of(330, 300, 64), rows_wanted(), {.seed = seed, .d_q_columns = 32});
    judge(spec_of(330, 300, 128), rows_wanted(), {.seed = seed});
  }
}

}  // namespace
}  // namespace heddle::test
