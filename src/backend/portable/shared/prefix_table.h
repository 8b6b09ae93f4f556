// Sequences near the one that a CTA of decode_mma computes, where sequences share their first keys
// (ForwardMmaConfig::prefixed()). Read by the planner and by the kernel: plain integers only.
#pragma once

#include "shared/sequence_span.h"

namespace heddle::shared {

/// Two windows of as many sequences as a wave has lanes, in a CTA's shared memory. Each wave writes a window before it
/// comes there: all write the same.
inline constexpr int kPrefixWindow = 32, kNearSequences = 2 * kPrefixWindow;

/// Sequence b stands at b % kNearSequences.
struct PrefixTable {
  SequenceSpan spans[kNearSequences];  // kv_end: of packed keys, though not all be used
  int first[kNearSequences];           // the first sequence of the tile of keys that it shares; -1: it shares none
  int keys[kNearSequences];            // of that tile
};

}  // namespace heddle::shared
