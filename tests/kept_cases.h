// Lists of cases under HEDDLE_TEST_REDUCED, which the sanitizers run with: their programs take ten to twenty times as
// long.
#pragma once

#include <cstdint>

#include "sample.h"

namespace heddle::test {

/// All; under HEDDLE_TEST_REDUCED one in `share`, drawn by the seed.
inline bool is_kept(std::uint64_t number, std::uint64_t share) {
  return !is_reduced() || (number + sample_seed()) % share == 0;
}

}  // namespace heddle::test
