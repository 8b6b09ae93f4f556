// Calls of the C interface (calls.h).
#pragma once

#include "reliability/calls.h"

namespace heddle::test {

Call draw_c_plan(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_explain(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_one_call(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_block_mask(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_texts(std::mt19937_64& random, const CallSettings& settings);

}  // namespace heddle::test
