// Derivatives of a mod at one element: their values, and by what they are judged.
#include "reference/mod_slopes.h"

#include <gtest/gtest.h>

namespace heddle::reference {
namespace {

expr::Element scored(double score) {
  expr::Element element;
  element.score = score;
  return element;
}

ModSlopes slopes_of(const char* mod, const Bindings& bindings = {}) {
  return ModSlopes(parse(mod, Symbols(bindings)), bindings, {.params = true}, expr::Precision::f64,
                   expr::Precision::f64);
}

TEST(ModSlopes, AModThatIsNotGivenIsTheScore) {
  const ModSlopes slopes(Expr(), {}, {}, expr::Precision::f64, expr::Precision::f64);
  EXPECT_TRUE(slopes.is_score());
  EXPECT_EQ(slopes.score(scored(3)), 1);
  EXPECT_EQ(slopes.score_terms(scored(3)), 0) << "1 is exact";
}

// Terms that cancel were rounded at their own size.
TEST(ModSlopes, TermsOfSumsAndDifferencesAreAddedByMagnitude) {
  const ModSlopes capped = slopes_of("tanh(score)");
  EXPECT_NEAR(capped.score(scored(30)), 0, 1e-15);
  EXPECT_NEAR(capped.score_terms(scored(30)), 2, 1e-15) << "1 - tanh^2";

  Bindings bindings;
  bindings.params["x"] = 1.25, bindings.params["y"] = 1.0;
  const ModSlopes difference = slopes_of("score * x - score * y", bindings);
  EXPECT_DOUBLE_EQ(difference.score(scored(3)), 0.25);
  EXPECT_DOUBLE_EQ(difference.score_terms(scored(3)), 2.25);
  const ModSlopes sum = slopes_of("score * x + score * -y", bindings);
  EXPECT_DOUBLE_EQ(sum.score(scored(3)), 0.25);
  EXPECT_DOUBLE_EQ(sum.score_terms(scored(3)), 2.25);
  ASSERT_EQ(sum.reads().size(), 2U);
  for (const ReadSlope& read : sum.reads()) EXPECT_DOUBLE_EQ(read.slope_terms(scored(3)), 3) << read.name();
}

}  // namespace
}  // namespace heddle::reference
