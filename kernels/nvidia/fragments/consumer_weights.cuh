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

/// Scores have terms, or factors, that are powers of two before they are added: safe tiles fold them into the scores.
template <auto kConfig>
inline constexpr bool kFoldsSafely = kConfig.normalizer == Normalizer::softmax && !kConfig.capped &&
                                     kConfig.scores != ScoreForm::added && kConfig.scores != ScoreForm::mapped &&
                                     (ScoreTilt<kConfig.scores>::kAny || kConfig.computes_keys() || kConfig.fp8());

/// lse in two words: in safe tiles terms stay natural, since a large one loses digits as a power of two.
template <auto kConfig>
inline constexpr bool kNaturalSafely = kConfig.lse_rest&& kFoldsSafely<kConfig>;

/// kAsArray, kHoles: as Softmax has them.
template <auto kConfig, bool kAsArray, bool kHoles>
using RowWeightsOf =
    typename Either<kConfig.normalizer == Normalizer::softmax,
                    Softmax<kConfig.kv_block, weight_range<kConfig>(), kAsArray, kConfig.fp8(), kHoles, kConfig.scores,
                            kConfig.lse_rest>,
                    ElementWeights<kConfig.kv_block, kConfig.f16, kConfig.weighted, kConfig.scores, kConfig.normalizer,
                                   kConfig.dropped && kConfig.normalizer == Normalizer::sigmoid>>::Type;

}  // namespace heddle
