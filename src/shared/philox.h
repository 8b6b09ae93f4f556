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

inline constexpr unsigned int kPhiloxFactor0 = 0xD2511F53U, kPhiloxFactor2 = 0xCD9E8D57U;
inline constexpr int kPhiloxRounds = 10;
/// The key of a round, from 0 on.
constexpr PhiloxKey philox_key(PhiloxKey key, int round) {
  return {{key.word[0] + static_cast<unsigned int>(round) * 0x9E3779B9U,
           key.word[1] + static_cast<unsigned int>(round) * 0xBB67AE85U}};
}

/// The rounds from `first` on. `multiply`: as PhiloxMultiply does, maybe in an instruction that the compiler does not
/// find.
template <class Multiply = PhiloxMultiply>
constexpr PhiloxWords philox_rounds(PhiloxWords x, PhiloxKey key, int first, Multiply multiply = {}) {
  for (int round = first; round < kPhiloxRounds; ++round) {
    const PhiloxKey own = philox_key(key, round);
    const PhiloxProduct product0 = multiply(x.word[0], kPhiloxFactor0), product2 = multiply(x.word[2], kPhiloxFactor2);
    x = {
        {product2.high ^ x.word[1] ^ own.word[0], product2.low, product0.high ^ x.word[3] ^ own.word[1], product0.low}};
  }
  return x;
}
/// Ten rounds over a counter: four random words.
constexpr PhiloxWords philox4x32(PhiloxWords counter, PhiloxKey key) { return philox_rounds(counter, key, 0); }

/// The second key word. It keeps these draws apart from other uses of the same seed.
inline constexpr unsigned int kRandomUniformDomain = 0x48656464U;

/// The sixteen draws that share one call, philox4x32({b, h, q_idx, column}, {seed, kRandomUniformDomain}). Columns that
/// differ in bits 0, 3, 4 and 5 only share it: a GPU thread that holds the columns 2c, 2c+1, 2c+8, 2c+9, ... of a
/// matrix fragment draws once for sixteen of them.
constexpr unsigned int random_uniform_column(unsigned int kv_idx) {
  return ((kv_idx >> 6) << 2) | ((kv_idx >> 1) & 3U);
}
inline constexpr unsigned int kRandomUniformGroup = 64, kRandomUniformColumns = 4;  // keys, and calls that they take

/// The part that the calls of a row share: b and q_idx stand where the first round multiplies, so all of the first
/// round but an exclusive or is the same for all columns, and a half each of the next two.
struct RandomUniformRow {
  unsigned int seed;
  unsigned int first;     // of the first round: what the column joins
  unsigned int second;    // of the second
  unsigned int third[3];  // of the third
};
template <class Multiply = PhiloxMultiply>
constexpr RandomUniformRow random_uniform_row(unsigned int seed, unsigned int b, unsigned int h, unsigned int q_idx,
                                              Multiply multiply = {}) {
  const PhiloxKey key = {{seed, kRandomUniformDomain}}, next = philox_key(key, 1), last = philox_key(key, 2);
  const PhiloxProduct of_b = multiply(b, kPhiloxFactor0), of_q = multiply(q_idx, kPhiloxFactor2);
  const PhiloxProduct second = multiply(of_q.high ^ h ^ key.word[0], kPhiloxFactor0);
  const PhiloxProduct third = multiply(second.high ^ of_b.low ^ next.word[1], kPhiloxFactor2);
  return {seed,
          of_b.high ^ key.word[1],
          of_q.low ^ next.word[0],
          {third.high ^ last.word[0], third.low, second.low ^ last.word[1]}};
}
/// The call of a column of random_uniform_column().
template <class Multiply = PhiloxMultiply>
constexpr PhiloxWords random_uniform_words(const RandomUniformRow& row, unsigned int column, Multiply multiply = {}) {
  const PhiloxProduct second = multiply(row.first ^ column, kPhiloxFactor2);
  const PhiloxProduct third = multiply(second.high ^ row.second, kPhiloxFactor0);
  return philox_rounds({{row.third[0] ^ second.low, row.third[1], third.high ^ row.third[2], third.low}},
                       {{row.seed, kRandomUniformDomain}}, 3, multiply);
}
constexpr PhiloxWords random_uniform_words(unsigned int seed, unsigned int b, unsigned int h, unsigned int q_idx,
                                           unsigned int kv_idx) {
  return random_uniform_words(random_uniform_row(seed, b, h, q_idx), random_uniform_column(kv_idx));
}
/// The draws of columns 8 i and 8 i + 1 of a call's eight pairs, the even one in the lower half of a word. A half has
/// 15 bits that count. The first four pairs take their upper byte from a word of the call, and their lower byte from
/// the exclusive or of that word and the next; the other four pairs do so with the two bytes exchanged. So each byte of
/// the call is the upper one of one draw, and any two draws are independent.
constexpr unsigned int random_uniform_pair(const PhiloxWords& words, unsigned int i) {
  constexpr unsigned int kLower = 0x00FF00FFU;  // bytes
  const unsigned int own = words.word[i & 3U], both = own ^ words.word[(i + 1) & 3U];
  if (i < 4) return (own & ~kLower) | (both & kLower);
  return ((own & kLower) << 8) | ((both >> 8) & kLower);
}
/// Which of the eight pairs a column is in.
constexpr unsigned int random_uniform_pair_of(unsigned int kv_idx) { return (kv_idx >> 3) & 7U; }

/// A draw is k / 2^15, exact in f32: k is the lower 15 bits of a column's half.
inline constexpr unsigned int kRandomUniformBits = 15, kRandomUniformCount = 1U << kRandomUniformBits;
constexpr unsigned int random_uniform_bits(unsigned int pair, unsigned int kv_idx) {
  return ((kv_idx & 1U) != 0 ? pair >> 16 : pair) & (kRandomUniformCount - 1);
}
constexpr float random_uniform_value(unsigned int k) { return static_cast<float>(k) * 0x1p-15F; }
/// The largest: 1 - 2^-15.
inline constexpr float kRandomUniformMax = random_uniform_value(kRandomUniformCount - 1);

/// The draw of one element; i32 arguments are taken modulo 2^32.
constexpr float random_uniform(unsigned int seed, unsigned int b, unsigned int h, unsigned int q_idx,
                               unsigned int kv_idx) {
  const PhiloxWords words = random_uniform_words(seed, b, h, q_idx, kv_idx);
  return random_uniform_value(random_uniform_bits(random_uniform_pair(words, random_uniform_pair_of(kv_idx)), kv_idx));
}

}  // namespace heddle::shared
