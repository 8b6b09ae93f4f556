// Calls of the C interface (calls.h).
#pragma once

#include <cstdint>
#include <random>

#include "reliability/call_settings.h"

namespace heddle::test {

/// Throws what a status of c.h stands for: std::bad_alloc, or heddle::Error with the sentence.
void throw_status(std::int32_t status);

Call draw_c_plan(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_explain(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_one_call(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_block_mask(std::mt19937_64& random, const CallSettings& settings);
Call draw_c_texts(std::mt19937_64& random, const CallSettings& settings);

}  // namespace heddle::test
