// Every kernel that the planner may choose compiles without spills and without serialised tensor cores. Needs NVRTC, no
// GPU.
#include <gmock/gmock.h>

#include "backend/cuda/emit/forward_sm90.h"
#include "backend/cuda/jit/jit.h"
#include "expr/simplify.h"
#include "heddle/mods.h"
#include "plan/families/forward_sm90_costs.h"

namespace heddle::cuda {
namespace {

struct NamedMask {
  std::string name;
  Expr mask;
};

std::vector<NamedMask> masks() {
  return {{"none", {}},
          {"causal", mods::causal()},
          {"causal, lower right", mods::causal_lower_right()},
          {"window of a param", leaf::q_idx() - leaf::kv_idx() < param("window", ExprType::i32)}};
}

class Compiles : public testing::TestWithParam<std::size_t> {};

TEST_P(Compiles, WithoutSpillsAndSerialisation) {
  shared::ForwardSm90Config config = plan::kForwardSm90Kernels[GetParam()].config();
  for (const bool f16 : {false, true}) {
    for (const NamedMask& named : masks()) {
      config.f16 = f16;
      config.masked = !named.mask.empty();
      config.lse = !f16;
      const Expr mask = config.masked ? expr::simplify(named.mask, expr::Precision::f32) : Expr();
      const jit::Source source = emit::forward_sm90(config, mask, emit::layout_of({mask}));
      SCOPED_TRACE(source.name + ", mask: " + named.name);
      const std::shared_ptr<const jit::Cubin> cubin = jit::build(source);
      EXPECT_EQ(cubin->spill_bytes, 0);
      EXPECT_THAT(cubin->log, testing::Not(testing::HasSubstr("C75")));
      RecordProperty(source.name, static_cast<int>(cubin->compile_ms));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ForwardSm90, Compiles, testing::Range<std::size_t>(0, std::size(plan::kForwardSm90Kernels)));

}  // namespace
}  // namespace heddle::cuda
