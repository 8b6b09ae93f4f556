#include "plan/mods/backward_mods.h"

#include <fmt/format.h>

#include "expr/differentiate.h"
#include "expr/simplify.h"

namespace heddle::plan {

BackwardMods backward_mods(const problem::AttentionProblem& problem, OfPlaces of_places) {
  const KernelMods forward = kernel_mods(problem, OfKeys::left, of_places);
  using shared::ScoreForm;
  BackwardMods mods;
  mods.mask = forward.mask;
  mods.weight = forward.weight;
  mods.drops = forward.drops;
  mods.factor = forward.factor;
  mods.kv_start = forward.kv_start;
  mods.places = forward.places;
  if (forward.form == ScoreForm::mapped || forward.cap != 0) {
    mods.form = ScoreForm::mapped;
    mods.factor = 1;
    // The mod as given: rules of the simplifier keep its values, but not its slopes where branches meet.
    const Expr score = at_places(problem, forward.places).score_mod;
    const Expr given = by_position(score.empty() ? leaf::score() : score, forward.kv_start);
    mods.score = expr::simplify(given, problem.precision);
    mods.derivative = expr::d_score(given, problem.precision);
  } else if (forward.form != ScoreForm::plain) {
    mods.form = ScoreForm::added;
    mods.offset = forward.offset;
  }
  return mods;
}

std::string describe_derivative(const BackwardMods& mods) {
  using shared::ScoreForm;
  if (mods.form == ScoreForm::added) {
    return fmt::format("added: t = {} * score + {}, recomputed for each element; its derivative joins the scale",
                       mods.factor, print(mods.offset));
  }
  if (mods.form == ScoreForm::mapped) {
    return fmt::format("mapped: t = {}, recomputed for each element with its derivative {}, which joins the weight",
                       print(mods.score), print(mods.derivative));
  }
  if (mods.factor != 1) return fmt::format("plain: t = {} * score; the factor joins the scale", mods.factor);
  return {};
}

}  // namespace heddle::plan
