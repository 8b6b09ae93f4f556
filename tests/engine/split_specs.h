// Cases whose queries, or keys, or both stand in two tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/attention_case.h"
#include "engine/deck.h"

namespace heddle::test {

/// The cases of `Specs`, cut at any column: q and k elsewhere than each other.
template <class Specs>
class SplitSpecs {
 public:
  SplitSpecs(std::uint64_t seed, Specs source)
      : source_(std::move(source)),
        which_({kQueries | kKeys, kQueries, kKeys}, seed + 81),
        q_rest_({64, 24, 8, 1, 17, 128, 32}, seed + 82),
        k_rest_({64, 1, 24, 16, 64, 100, 8}, seed + 83) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      const int which = which_.deal();
      const std::int64_t most_of_keys = spec.qk_dim - (spec.values_in_keys ? spec.v_dim : 1);
      if ((which & kQueries) != 0) spec.q_rest = std::min(q_rest_.deal(), spec.qk_dim - 1);
      if ((which & kKeys) != 0) spec.k_rest = std::min(k_rest_.deal(), most_of_keys);
      if (spec.q_rest + spec.k_rest > 0) return spec;
    }
  }

 private:
  static constexpr int kQueries = 1, kKeys = 2;
  Specs source_;
  Deck<int> which_;
  Deck<std::int64_t> q_rest_, k_rest_;
};

}  // namespace heddle::test
