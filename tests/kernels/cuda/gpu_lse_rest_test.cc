// lse in two words on a GPU: forwards write what lse's rounding left out, backwards read it, and gradients are right
// however far from 0 scores are. Exact scores against float64 first, then the lists of cases by the criterion.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/deck.h"
#include "engine/large_scores.h"
#include "kernels/cuda/backward_capture_specs.h"
#include "kernels/cuda/gpu_backward_case.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

/// Families of both passes, as HEDDLE_FAMILY names them.
struct Families {
  const char *forward, *backward;
};
constexpr Families kHopper = {"forward_sm90", "backward_sm90"}, kPortable = {"forward_mma", "backward_mma"},
                   kMixed = {"forward_mma", "backward_sm90"}, kMixedToo = {"forward_sm90", "backward_mma"};

void move(LargeScores& large, Device device) {
  for (Tensor* tensor :
       {&large.q, &large.k, &large.v, &large.d_o, &large.o, &large.lse, &large.rest, &large.dq, &large.dk, &large.dv}) {
    *tensor = tensor->to(device);
  }
  if (large.terms) {
    large.terms = large.terms->to(device);
    large.options.bindings.captures["terms"] = *large.terms;
  }
  if (large.options.sinks) {
    large.sinks = large.sinks.to(device), large.d_sinks = large.d_sinks.to(device);
    large.options.sinks = large.sinks;
  }
}

/// A case, where it stands, and what its lse may err.
struct LargeCase {
  std::string text;
  double of_lse;
  LargeScores large;
};

/// Forward and backward of all cases on the GPU, by those families: plans do not know families.
void differentiate(std::vector<LargeCase>& cases, const Families& families) {
  const auto run = [&](const char* family, const std::function<void(LargeScores&)>& pass) {
    clear_plan_cache();
    const ScopedVariable only("HEDDLE_FAMILY", gpu_backend() == BackendChoice::cuda ? family : nullptr);
    side_by_side(cases.size(), [&](std::size_t i) {
      SCOPED_TRACE(cases[i].text);
      move(cases[i].large, device_under_test());
      pass(cases[i].large);
      move(cases[i].large, Device{});
    });
  };
  run(families.forward, [](LargeScores& large) { large.attend(gpu_backend()); });
  run(families.backward, [](LargeScores& large) { attention_backward_into(large.backward(), large.options); });
}

void expect_right(std::vector<LargeCase> cases, const Families& families) {
  differentiate(cases, families);
  side_by_side(cases.size(), [&](std::size_t i) {
    const LargeScores& large = cases[i].large;
    SCOPED_TRACE(cases[i].text);
    const bool is_wide = large.shape.dtype == DType::f32;
    EXPECT_LE(large.error_of_lse(), cases[i].of_lse);
    EXPECT_LE(large.error_of_o(), is_wide ? 1e-5 : large.shape.dtype == DType::f16 ? 0x1p-9 : 0x1p-7);
    EXPECT_LE(large.error(), is_wide ? 2e-5 : 0.03);
  });
}

void run_large(const Families& families, const std::vector<DType>& dtypes) {
  const double lowest = -std::numeric_limits<float>::max();
  std::vector<LargeCase> cases;
  for (const DType dtype : dtypes) {
    for (const std::int64_t dim : {16, 64, 128, 192}) {
      if (reduced() && dim != 64) continue;
      const LargeShape shape = {.dtype = dtype, .queries = 130, .keys = 200, .dim = dim, .kv_heads = 2, .group = 2};
      const std::string text = fmt::format("{}, {}, {}, dim {}", families.forward, families.backward, name(dtype), dim);
      for (const LargeForm form :
           {LargeForm::added, LargeForm::mapped, LargeForm::of_keys, LargeForm::of_rows, LargeForm::plain}) {
        for (const double level : {-0x1p9, 0x1p13, 0x1p20, -0x1p20, -0x1p30, lowest}) {
          const bool plain = level == 0x1p13 || level == -0x1p20 || (level == -0x1p30 && dtype != DType::f16);
          if (form == LargeForm::plain && !plain) continue;
          cases.push_back({fmt::format("{}, form {}, level {}", text, static_cast<int>(form), level),
                           std::abs(level) < 1000 ? 1e-4 : 4e-6,  // safe tiles begin at 2^10
                           LargeScores(
                               shape, [&](auto, auto) { return level; }, form)});
        }
      }
      for (const double low : {-1e9, lowest}) {
        for (const bool sunk : {false, true}) {
          LargeScores large(shape, [&](auto row, auto key) { return key < row - 60 ? 0.0 : low; });
          if (sunk) large.set_sink(low);
          cases.push_back({fmt::format("{}, a mask of {}{}", text, low, sunk ? ", sunk" : ""), 4e-6, std::move(large)});
        }
      }
    }
  }
  expect_right(std::move(cases), families);
}

class GpuLseRest : public GpuTest {};
TEST_F(GpuLseRest, LargeScores) { run_large(kHopper, {DType::bf16, DType::f16}); }
TEST_F(GpuLseRest, LargeScoresPortable) { run_large(kPortable, {DType::bf16, DType::f16, DType::f32}); }
TEST_F(GpuLseRest, LargeScoresOfMixedFamilies) {
  run_large(kMixed, {DType::bf16});
  run_large(kMixedToo, {DType::bf16});
}

/// Forwards of every form, near 0 and far from it.
std::vector<CaseSpec> forwards() {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 151'000;
  Deck<std::int64_t> dim({64, 128, 40, 192}, 3), rows({1, 64, 130, 257}, 4), keys({0, 16, 100, 129, 300}, 5);
  Deck<DType> dtype({DType::bf16, DType::f16}, 6);
  Deck<std::string> mask({"", "causal", "sliding_window", "by_head", "nothing"}, 7), weight({"", "", "dropout"}, 8),
      sinks({"none", "none", "normal", "large", "mixed"}, 9), sequences({"whole", "whole", "lengths", "packed"}, 10);
  Deck<double> far({0, 0, -3000, 20'000}, 11);
  std::vector<std::string> scores = score_names();
  scores.insert(scores.end(), 8, "");
  for (const std::string& score : scores) {
    CaseSpec spec;
    spec.seed = ++seed;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype.deal();
    spec.qk_dim = spec.v_dim = dim.deal();
    spec.score = score;
    spec.mask = mask.deal();
    spec.weight = weight.deal();
    spec.sinks = sinks.deal();
    spec.sequences = sequences.deal();
    spec.batch = spec.group = 2;
    spec.q_rows = rows.deal();
    spec.kv_rows = keys.deal();
    spec.far = far.deal();
    spec.with_lse_rest = true;
    spec.with_max_scores = seed % 5 == 0;
    specs.push_back(spec);
  }
  return specs;
}
TEST_F(GpuLseRest, Forwards) { run_all(forwards(), 7); }

class GpuLseRestMma : public GpuTest {
  const ScopedVariable family_{"HEDDLE_FAMILY", gpu_backend() == BackendChoice::cuda ? "forward_mma" : nullptr};
};
TEST_F(GpuLseRestMma, Forwards) {
  std::vector<CaseSpec> specs = forwards();
  for (CaseSpec& spec : specs) spec.with_max_scores = false;
  run_all(specs, 7);
}

/// The lists of the emulated CTAs.
class GpuLseRestBackward : public GpuTest {
  const ScopedVariable family_{"HEDDLE_FAMILY", "backward_sm90"};
};
TEST_F(GpuLseRestBackward, NearZero) {
  run_all_backwards(with_lse_rest(joined({ragged_ends(), masked(), sunk(), wide_tiles()})));
}
TEST_F(GpuLseRestBackward, FarScores) { run_all_backwards(far_scores()); }
TEST_F(GpuLseRestBackward, FarRows) { run_all_backwards(far_rows()); }
TEST_F(GpuLseRestBackward, FarReads) { run_all_backwards(far_reads()); }
TEST_F(GpuLseRestBackward, WideFar) { run_all_backwards(wide_far()); }

class GpuLseRestBackwardMma : public GpuLseRestBackward {
  const ScopedVariable family_{"HEDDLE_FAMILY", "backward_mma"};
};
TEST_F(GpuLseRestBackwardMma, FarScores) { run_all_backwards(far_scores()); }
TEST_F(GpuLseRestBackwardMma, FarRows) { run_all_backwards(far_rows()); }
TEST_F(GpuLseRestBackwardMma, WideFar) { run_all_backwards(wide_far()); }

}  // namespace
}  // namespace heddle::test
