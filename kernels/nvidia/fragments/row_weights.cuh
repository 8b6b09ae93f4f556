// Which of the two forms the weights of a consumer's rows: a softmax, or weights that know nothing of each other.
#pragma once

#include "fragments/element_weights.cuh"
#include "fragments/softmax.cuh"

namespace heddle {

template <bool kFirst, class First, class Second>
struct Either {
  using Type = First;
};
template <class First, class Second>
struct Either<false, First, Second> {
  using Type = Second;
};

/// kAsArray, kHoles: as Softmax has them.
template <auto kConfig, bool kAsArray, bool kHoles>
using RowWeightsOf =
    typename Either<kConfig.normalizer == Normalizer::softmax,
                    Softmax<kConfig.kv_block, weight_range<kConfig>(), kAsArray, kConfig.fp8(), kHoles, kConfig.scores>,
                    ElementWeights<kConfig.kv_block, kConfig.f16, kConfig.weighted, kConfig.scores, kConfig.normalizer,
                                   kConfig.dropped && kConfig.normalizer == Normalizer::sigmoid>>::Type;

}  // namespace heddle
