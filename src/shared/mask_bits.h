// Masks as bits: which of a thread's scores attend, one word for each of its two rows. Tensor cores leave 64 rows of
// scores in the registers of four warps. Thread `lane` has row lane / 4 of a warp's 16 rows, and the row 8 further
// down. It has the columns 8 j + 2 (lane % 4) + e of a block of keys, e = 0 and 1, for all j. Kernels, and tests on the
// host, read this file.
#pragma once

namespace heddle::shared {

/// The bit of column (j, e) in a thread's word: in the order of its columns.
constexpr int mask_bit(int j, int e) { return 2 * j + e; }
/// The column of a bit, counted from the thread's first column.
constexpr int mask_column(int bit) { return 8 * (bit / 2) + bit % 2; }

/// The words of a thread's two rows.
struct MaskWords {
  unsigned row[2];
};

/// The words of a stored mask. Key block n of item i has block words_at[i] + n of them (stored_mask.h).
struct StoredWords {
  const MaskWords* words;
  const int* words_at;
};

/// The first n bits, of a word's 32.
constexpr unsigned first_bits(int n) { return n <= 0 ? 0 : n >= 32 ? ~0U : (1U << n) - 1; }
/// The bits that a thread has of a block of `keys` keys.
constexpr unsigned mask_bits_of(int keys) { return first_bits(keys / 4); }

/// How many of a thread's columns are at most `last` keys to the right of its first one. If none is, the number is
/// negative and still falls by 2 for every 8 keys.
constexpr int columns_up_to(int last) { return 2 * (last >> 3) + ((last & 7) == 0 ? 1 : 2); }
/// The columns whose distance kv_idx - q_idx is at least and at most such; `first` is that of the thread's first column
/// and its upper row.
constexpr MaskWords words_of_range(int least, int most, int first) {
  const int up_to = columns_up_to(most - first), before = columns_up_to(least - 1 - first);
  // The row 8 further down sees each column 8 further left.
  return {{first_bits(up_to) & ~first_bits(before), first_bits(up_to + 2) & ~first_bits(before + 2)}};
}

/// Whether a word repeats the bits of a block's first two columns for all columns.
template <int kKeys>
constexpr bool repeats_two(unsigned word) {
  return ((word ^ (word & 3) * 0x55555555U) & mask_bits_of(kKeys)) == 0;
}

// Distances between a warp's 16 rows and a block of keys are numbered: n is that of n - 15 between the warp's first row
// and the block's first key. Eight words for them: bit (j, e) of word i is that of number i + 8 j + e. What is past
// their ends, of a block of 128 keys, has a ninth: bit i is that of number kPastDistances + i.
inline constexpr int kDistanceWords = 8, kPastDistances = 128;
constexpr int distance_number(int word, int bit) { return word + mask_column(bit); }
constexpr bool has_past_distances(int keys) { return keys + 16 > kPastDistances; }

/// The number of a thread's upper row and first column: 8 to 21.
constexpr int distance_of_thread(int lane) { return 15 - lane / 4 + 2 * (lane % 4); }
/// Which word a thread takes.
constexpr int distance_word(int lane) { return distance_of_thread(lane) % 8; }

/// 32 bits of two words from bit `shift` on, 0 <= shift < 32.
constexpr unsigned funnel(unsigned low, unsigned high, int shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> shift);
}
/// A thread's words, from its distance_word() and the ninth.
constexpr MaskWords words_of_distances(unsigned word, unsigned past, int lane) {
  const int columns = distance_of_thread(lane) / 8;  // that the word has before those of the upper row: 1 or 2
  const unsigned own = past >> distance_word(lane), high = (own & 3) | (own >> 6 & 0xC);
  return {{funnel(word, high, 2 * columns), funnel(word, high, 2 * columns - 2)}};
}

// Where all of a warp's rows are alike, each key is asked about once: a thread asks about four, one after the other,
// and word i of the warp has bit n for key 4 n + i.
/// A thread's word, from those two of the four that its columns are in: word 2 (lane % 2) + e is for e.
constexpr unsigned word_of_keys(unsigned even, unsigned odd, int lane) {
  constexpr unsigned kEven = 0x55555555;
  const int shift = lane % 4 / 2;
  return (even >> shift & kEven) | (odd >> shift & kEven) << 1;
}

}  // namespace heddle::shared
