// Elements that no row reads get no gradient, whatever dO holds: an `at` took its fill, or a branch was not taken.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/fill_cases.h"

namespace heddle::test::fill {
namespace {

class BackwardFill : public testing::TestWithParam<BackendChoice> {};
INSTANTIATE_TEST_SUITE_P(Backends, BackwardFill, testing::ValuesIn(backward_backends()),
                         [](const auto& at) { return std::string(name(at.param)); });

TEST_P(BackwardFill, GivesItsTensorNothing) {
  for (const FillCase& fill : kFillCases) {
    for (const bool of_weight : {false, true}) {
      if (of_weight && fill.of_score) continue;
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        AttentionCase c(fill_spec(dtype));
        add_mods(c, fill, of_weight);
        BackwardCase backward_case(c, {});
        poison_d_o(backward_case, fill);
        SCOPED_TRACE(fmt::format("{} {}{}", fill.name, name(dtype), of_weight ? " of a weight" : ""));
        run_and_judge(backward_case, GetParam());
        expect_finite_table(backward_case);
      }
    }
  }
}

}  // namespace
}  // namespace heddle::test::fill
