// Tensors that hold granules of a longer sequence, on the backend under test: kernels without native positions read
// them as any mod.
#include <gtest/gtest.h>

#include "engine/backward_case.h"
#include "kept_cases.h"

namespace heddle::test {
namespace {

struct GranuleCase {
  const char *mask, *score, *weight;
  DType dtype;
  std::int64_t granule;
};

TEST(Granules, ForwardAndBackward) {
  std::uint64_t seed = 500;
  for (const GranuleCase& of : {GranuleCase{"causal", "alibi", "", DType::f32, 64},
                                {"sliding_window", "t5_bias", "dropout", DType::f64, 128},
                                {"documents", "softcap", "", DType::bf16, 128},
                                {"", "padded", "weights_by_key", DType::f32, 40},
                                {"tree", "alibi", "", DType::f32, 128},
                                {"long_documents_causal", "", "", DType::f32, 128},
                                {"dilated", "padded", "dropout", DType::f32, 128}}) {
    CaseSpec spec;
    spec.seed = ++seed;
    if (!is_kept(seed, 4)) continue;
    spec.group = 2;
    spec.q_rows = 290;
    spec.kv_rows = 330;
    spec.qk_dim = spec.v_dim = 32;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = of.dtype;
    spec.granule = of.granule;
    spec.mask = of.mask;
    spec.score = of.score;
    spec.weight = of.weight;
    AttentionCase forward(spec);
    run_and_judge(forward);
    BackwardSpec wanted;
    wanted.wanted = "qkv";
    BackwardCase backward(forward, wanted);
    run_and_judge(backward, backend_under_test());
  }
}

}  // namespace
}  // namespace heddle::test
