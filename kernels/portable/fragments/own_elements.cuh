// One thread's part of a fragment. A type of its own, so that fragments of two configurations, one of queries and keys
// and one of values, may hand scores to each other.
#pragma once

namespace heddle::portable {

template <class Real, int kRows, int kColumns>
struct OwnElements {
  Real x[kRows][kColumns];
};

}  // namespace heddle::portable
