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

/// Both words of a product.
struct PhiloxProduct {
  unsigned int low, high;
};
struct PhiloxMultiply {
  constexpr PhiloxProduct operator()(unsigned int x, unsigned int factor) const {
    const unsigned long long product = static_cast<unsigned long long>(factor) * x;
    return {static_cast<unsigned int>(product), static_cast<unsigned int>(product >> 32)};
  }
};

/// Ten rounds over one counter: four random words. `multiply`: as PhiloxMultiply does, maybe in an instruction that the
/// compiler does not find.
template <class Multiply = PhiloxMultiply>
constexpr PhiloxWords philox4x32(PhiloxWords counter, PhiloxKey key, Multiply multiply = {}) {
  PhiloxWords x = counter;
  for (int round = 0; round < 10; ++round) {
    const PhiloxProduct product0 = multiply(x.word[0], 0xD2511F53U), product2 = multiply(x.word[2], 0xCD9E8D57U);
    x = {
        {product2.high ^ x.word[1] ^ key.word[0], product2.low, product0.high ^ x.word[3] ^ key.word[1], product0.low}};
    key.word[0] += 0x9E3779B9U;
    key.word[1] += 0xBB67AE85U;
  }
  return x;
}

/// The second key word: tells these draws from those of another use of the same seed.
inline constexpr unsigned int kRandomUniformDomain = 0x48656464U;

/// The eight draws that share one call, 16 bits of it each. Columns that differ in bits 0, 3 and 4 only share it: a GPU
/// thread that holds the columns 2c, 2c+1, 2c+8, 2c+9, ... of a matrix fragment draws once for eight of them. b and
/// q_idx stand where the first round multiplies, so that what comes of them is the same for all columns.
template <class Multiply = PhiloxMultiply>
constexpr PhiloxWords random_uniform_words(unsigned int seed, unsigned int b, unsigned int h, unsigned int q_idx,
                                           unsigned int kv_idx, Multiply multiply = {}) {
  const unsigned int column = ((kv_idx >> 5) << 2) | ((kv_idx >> 1) & 3U);
  return philox4x32({{b, h, q_idx, column}}, {{seed, kRandomUniformDomain}}, multiply);
}
/// Which of the four words belongs to a column and its neighbour: the even one has its lower half, the odd one its
/// upper.
constexpr unsigned int random_uniform_word_of(unsigned int kv_idx) { return (kv_idx >> 3) & 3U; }

/// A draw is k / 2^15, exact in f32: k is the lower 15 bits of a column's half.
inline constexpr unsigned int kRandomUniformBits = 15, kRandomUniformCount = 1U << kRandomUniformBits;
constexpr unsigned int random_uniform_bits(unsigned int word, unsigned int kv_idx) {
  return ((kv_idx & 1U) != 0 ? word >> 16 : word) & (kRandomUniformCount - 1);
}
constexpr float random_uniform_value(unsigned int k) { return static_cast<float>(k) * 0x1p-15F; }
/// The largest: 1 - 2^-15.
inline constexpr float kRandomUniformMax = random_uniform_value(kRandomUniformCount - 1);

/// The draw of one element; i32 arguments are taken modulo 2^32.
constexpr float random_uniform(unsigned int seed, unsigned int b, unsigned int h, unsigned int q_idx,
                               unsigned int kv_idx) {
  const PhiloxWords words = random_uniform_words(seed, b, h, q_idx, kv_idx);
  return random_uniform_value(random_uniform_bits(words.word[random_uniform_word_of(kv_idx)], kv_idx));
}

}  // namespace heddle::shared
