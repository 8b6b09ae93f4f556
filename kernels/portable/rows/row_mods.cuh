// A mod over the scores that a thread holds. `Mod` is what the mod's text defines (device_text/expression_text.h); what
// belongs to the query is computed once a tile, what belongs to the key once a step and key.
#pragma once

#include "shared/mod_values.h"

namespace heddle::portable {

/// One mod's parts of each of the thread's rows, kRows of them. kPacked: they are of several heads, or sequences.
template <class Mod, int kRows, bool kPacked>
class RowsOfMod {
 public:
  using ModType = Mod;

  /// `batch_of(i)`, `head_of(i)` and `q_idx_of(i)` are those of the thread's row i.
  template <class BatchOf, class HeadOf, class IndexOf>
  __device__ __forceinline__ void begin(const shared::ModValues& mod, BatchOf&& batch_of, HeadOf&& head_of,
                                        IndexOf&& q_idx_of) {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) uniform_[i] = Mod::uniform(mod, batch_of(i), head_of(i));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      row_[i] = Mod::row(mod, uniform_[kPacked ? i : 0], batch_of(i), head_of(i), q_idx_of(i));
    }
  }
  __device__ __forceinline__ const typename Mod::Uniform& uniform(int i) const { return uniform_[kPacked ? i : 0]; }
  __device__ __forceinline__ const typename Mod::Row& row(int i) const { return row_[i]; }

 private:
  static constexpr int kHeads = kPacked ? kRows : 1;
  typename Mod::Uniform uniform_[kHeads];
  typename Mod::Row row_[kRows];
};

/// In place of a mod that a kernel never computes.
struct NoMod {
  struct Mod {
    struct Uniform {};
    struct Row {};
    struct Column {};
  };
};

/// t is scale q.k itself, in f64 too: generated text is f32.
struct ScoreItself {
  struct Mod {
    struct Uniform {};
    struct Row {};
    struct Column {};
    template <class... Arguments>
    static __device__ __forceinline__ Uniform uniform(const Arguments&...) {
      return {};
    }
    template <class... Arguments>
    static __device__ __forceinline__ Row row(const Arguments&...) {
      return {};
    }
    template <class... Arguments>
    static __device__ __forceinline__ Column column(const Arguments&...) {
      return {};
    }
  };
  template <class Real, class... Indices>
  static __device__ __forceinline__ Real element(const shared::ModValues&, const Mod::Uniform&, const Mod::Row&,
                                                 const Mod::Column&, Real score, const Indices&...) {
    return score;
  }
};

}  // namespace heddle::portable
