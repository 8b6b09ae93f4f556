// Forms in which kernels compute mods and weights of values: names for a family's configuration, and the numbers that a
// run passes to some of them. Host and device code read this file: no headers, plain integers only.
#pragma once

namespace heddle::shared {

/// How scores become t, or t in powers of two, before their exponentials are taken.
enum class ScoreForm : int {
  plain,    // factor * score
  shifted,  // and a term of the query and the head alone, computed once a block
  tilted,   // and one that is linear in the key's index: computed for a block's first key, and its slope
  distant,  // and one that depends on kv_idx - q_idx alone: computed once for each distance in a block
  added,    // and a term of each element
  mapped,   // the score_mod of each element, as it is written
};
inline constexpr const char* kScoreForms[] = {"plain", "shifted", "tilted", "distant", "added", "mapped"};

/// How a partial step finds what its mask_mod excludes.
enum class MaskForm : int {
  direct,    // element by element, when the scores have come
  distance,  // all of it depends on kv_idx - q_idx alone: bits, found while the product runs
  values,    // what it reads or works out of the query and of the key: bits likewise
  both,      // a part that depends on the distance alone, and a part of values
  stored,    // all of it was found before any run: each thread loads its bits (stored_mask.h)
};
inline constexpr const char* kMaskForms[] = {"direct", "distance", "values", "both", "stored"};

/// How t becomes the weight of its value, before the weight_mod.
enum class Normalizer : int {
  softmax,  // e^t over the row's sum of them
  none,     // t
  sigmoid,  // 1 / (1 + e^-t)
};
inline constexpr const char* kNormalizers[] = {"softmax", "none", "sigmoid"};

constexpr const char* name(ScoreForm form) { return kScoreForms[static_cast<int>(form)]; }
constexpr const char* name(MaskForm form) { return kMaskForms[static_cast<int>(form)]; }
constexpr const char* name(Normalizer normalizer) { return kNormalizers[static_cast<int>(normalizer)]; }

/// Keys of a step in which weights are drawn are a multiple of this; a thread's sixteen of them share one call
/// (philox.h).
inline constexpr int kKeysOfDraw = 64;

/// A term that depends on kv_idx - q_idx alone is the same at all distances from `from` on, and at all up to `to`.
struct FlatDistances {
  int from, to;
};

/// A softcap. t in powers of two is outside * tanh(inside * product), or product * (c0 + c1 u + c2 u^2) with
/// u = product^2 and c = series, as long as no |product| exceeds limit.
struct Cap {
  float inside, outside;
  float series[3];
  float limit;
};

}  // namespace heddle::shared
