// The candidates of the Hopper family for a call.
#pragma once

#include <vector>

#include "families/forward_sm90/forward_sm90.h"
#include "plan/hopper.h"

namespace heddle::test {

inline std::vector<plan::Choice> choices_of(const HopperCall& call) {
  return plan::forward_sm90(call.problem(), call.tensors(), call.all_options(), h200(),
                            [&](BlockSize block) { return call.rows_of(block); });
}

inline std::vector<BlockSize> tiles_of(const std::vector<plan::Choice>& choices) {
  std::vector<BlockSize> tiles;
  for (const plan::Choice& choice : choices) tiles.push_back(choice.plan.tile);
  return tiles;
}

}  // namespace heddle::test
