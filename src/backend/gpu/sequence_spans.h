// Where sequences stand, as kernels take it, if the host knows.
#pragma once

#include <cstdint>
#include <vector>

#include "problem/problem.h"
#include "shared/sequence_span.h"

namespace heddle::gpu {

/// The longest of the sequences' lengths; 0 without sequences.
int longest(const problem::AttentionProblem& problem, std::int64_t Sequence::*length);

/// A span for each sequence.
std::vector<shared::SequenceSpan> spans_of(const problem::AttentionProblem& problem);

/// A packed tensor as a batch of `sequences` sequences that all begin at the same address.
template <class View>
View by_sequence(View view, std::int64_t sequences) {
  view.shape[0] = sequences;
  view.strides[0] = 0;
  return view;
}

}  // namespace heddle::gpu
