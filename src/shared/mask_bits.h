// Masks as bits: which of the scores that a thread holds attend, one word for each of its two rows. Of tensor cores'
// accumulators of 64 rows, thread `lane` of a warp has the rows lane / 4 and 8 more of the warp's 16, and of a block of
// keys the columns 8 j + 2 (lane % 4) + e, e = 0 and 1. Read by kernels and by tests on the host.
#pragma once

namespace heddle::shared {

/// The bit of column (j, e) in a thread's word. In this order, since words whose bits are columns 8 j + e, of four j
/// each, make it by shifts alone.
constexpr int mask_bit(int j, int e) { return 8 * (j % 4) + 2 * (j / 4) + e; }
/// The column of a bit, of those of a thread whose first one is 0.
constexpr int mask_column(int bit) { return 32 * (bit % 8 / 2) + 8 * (bit / 8) + bit % 2; }

/// The bits of a block of so many keys.
constexpr unsigned mask_bits_of(int keys) {
  unsigned bits = 0;
  for (int j = 0; j < keys / 8; ++j) bits |= 3U << mask_bit(j, 0);
  return bits;
}

/// Words for the bits of all distances between a warp's 16 rows and a block of keys: bit n is that of n - 15 between
/// the warp's first row and the block's first key.
constexpr int distance_bit_words(int keys) { return (15 + keys + 31) / 32; }

/// 32 bits of two words from bit `shift` on, 0 <= shift < 32.
constexpr unsigned funnel(unsigned low, unsigned high, int shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> shift);
}

/// The words of a thread's two rows.
struct MaskWords {
  unsigned row[2];
};

/// Those of a thread of the warp, from the warp's words of distances.
template <int kKeys>
constexpr MaskWords words_of_distances(const unsigned (&distances)[distance_bit_words(kKeys)], int lane) {
  constexpr int kWords = distance_bit_words(kKeys);
  constexpr unsigned kPairs = 0x03030303;            // columns 8 j and 8 j + 1 of four j
  const int first = 15 - lane / 4 + 2 * (lane % 4);  // the bit of the upper row and the thread's first column: 8 to 21
  unsigned upper = 0;
  for (int i = 0; i < (kKeys + 31) / 32; ++i) {
    const unsigned columns = funnel(distances[i], i + 1 < kWords ? distances[i + 1] : 0, first);
    upper |= (columns & kPairs) << 2 * i;
  }
  // The row 8 further down has at column j what the upper one has at j - 1; j % 4 = 0 follows on 3, of j / 4 one less.
  const unsigned before = distances[0] >> (first - 8) & 3;
  return {{upper, upper << 8 | (upper >> 22 & 0xFC) | before}};
}

}  // namespace heddle::shared
