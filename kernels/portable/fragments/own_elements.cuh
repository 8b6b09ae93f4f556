// One thread's part of a fragment. A type of its own, so that fragments of two configurations, one of queries and keys
// and one of values, may hand scores to each other.
#pragma once

namespace heddle::portable {

template <class Real, int kRows, int kColumns>
struct OwnElements {
  Real x[kRows][kColumns];
};

/// Rows of scores times their queries' factors.
template <class Real, int kRows, int kColumns, int kFragments, int kKeyFragments, class Queries>
__device__ __forceinline__ void scale_scores(OwnElements<Real, kRows, kColumns> (&s)[kFragments][kKeyFragments],
                                             const Queries (&q)[kFragments]) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[f][n].x[r][c] *= q[f].factor[r];
      }
    }
  }
}

}  // namespace heddle::portable
