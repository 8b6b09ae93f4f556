// Where the sequences of a batch are in its tensors, if they differ. Host and device code read this file: no headers,
// plain integers only.
#pragma once

namespace heddle::shared {

/// One sequence: an entry of a list by their numbers. Copied 16 bytes at a time.
struct SequenceSpan {
  int q_begin, q_len;  // its rows of q, o and lse
  int kv_len;
  int q_start;   // q_idx of its first query
  int kv_begin;  // its rows of k and v: kv_len from here on
  // Rows as TMA takes them: the end of k's and v's, how many more the longest sequence has, and the end of q's.
  int kv_end, kv_before, q_end;
};
static_assert(sizeof(SequenceSpan) % 16 == 0);
inline constexpr unsigned kSequenceQBegin = 0, kSequenceQLen = 4, kSequenceKvLen = 8, kSequenceQStart = 12,
                          kSequenceKvBegin = 16, kSequenceKvEnd = 20, kSequenceKvBefore = 24,
                          kSequenceQEnd = 28;  // offsets in bytes

}  // namespace heddle::shared
