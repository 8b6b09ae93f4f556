// Philox4x32-10 (Salmon et al., SC 2011), the counter-based generator behind random_uniform. Plain integer code, for
// the host and for device compilers that have no standard headers.
#pragma once

namespace heddle::shared {

struct PhiloxWords {
  unsigned int word[4];
  constexpr bool operator==(const PhiloxWords&) const = default;
};
struct PhiloxKey {
  unsigned int word[2];
};

/// Ten rounds over one counter: four random words.
constexpr PhiloxWords philox4x32(PhiloxWords counter, PhiloxKey key) {
  PhiloxWords x = counter;
  for (int round = 0; round < 10; ++round) {
    const unsigned long long product0 = 0xD2511F53ULL * x.word[0];
    const unsigned long long product2 = 0xCD9E8D57ULL * x.word[2];
    x = {{static_cast<unsigned int>(product2 >> 32) ^ x.word[1] ^ key.word[0], static_cast<unsigned int>(product2),
          static_cast<unsigned int>(product0 >> 32) ^ x.word[3] ^ key.word[1], static_cast<unsigned int>(product0)}};
    key.word[0] += 0x9E3779B9U;
    key.word[1] += 0xBB67AE85U;
  }
  return x;
}

/// The second key word: tells these draws from those of another use of the same seed.
inline constexpr unsigned int kRandomUniformDomain = 0x48656464U;

/// The four draws that share one call. Columns that differ in bits 0 and 3 only share it: a GPU thread that holds the
/// columns 2c, 2c+1, 2c+8, 2c+9 of a matrix fragment draws once for the four.
constexpr PhiloxWords random_uniform_words(unsigned int seed, unsigned int b, unsigned int h, unsigned int q_idx,
                                           unsigned int kv_idx) {
  const unsigned int column = ((kv_idx >> 4) << 2) | ((kv_idx >> 1) & 3U);
  return philox4x32({{b, h, q_idx, column}}, {{seed, kRandomUniformDomain}});
}
/// Which of the four belongs to a column.
constexpr unsigned int random_uniform_word_of(unsigned int kv_idx) {
  return (kv_idx & 1U) | (((kv_idx >> 3) & 1U) << 1);
}
/// A word as a number in [0, 1): its upper 24 bits, exact in f32.
constexpr float random_uniform_value(unsigned int word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

/// The draw of one element; i32 arguments are taken modulo 2^32.
constexpr float random_uniform(unsigned int seed, unsigned int b, unsigned int h, unsigned int q_idx,
                               unsigned int kv_idx) {
  return random_uniform_value(random_uniform_words(seed, b, h, q_idx, kv_idx).word[random_uniform_word_of(kv_idx)]);
}

}  // namespace heddle::shared
