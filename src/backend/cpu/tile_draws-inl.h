// random_uniform along the columns of a tile: four columns share one call of Philox (shared/philox.h), and a vector
// makes as many calls as it has 64-bit lanes. Recompiled for each SIMD target.
#if defined(HEDDLE_BACKEND_CPU_TILE_DRAWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_TILE_DRAWS_INL_H_
#undef HEDDLE_BACKEND_CPU_TILE_DRAWS_INL_H_
#else
#define HEDDLE_BACKEND_CPU_TILE_DRAWS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/tile_evaluator.h"
#include "backend/cpu/tile_kernels.h"
#include "shared/philox.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sixteen columns whose kv_idx differ in the low four bits take four calls of Philox, one for each pair of columns.
inline constexpr int kDrawGroup = 16;

struct DrawKey {
  std::uint32_t seed, b, h, q;
};

/// out[0 .. 16 * groups) for the kv_idx 16 * group and on. May write up to one group more.
inline void DrawGroups(const DrawKey& key, std::uint32_t group, int groups, float* HWY_RESTRICT out) {
#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32
  // Words stand in the low halves of 64-bit lanes: a product gives both halves at once, and what remains in the high
  // halves does no harm because products read the low ones only.
  const hn::ScalableTag<std::uint64_t> d;
  const hn::Repartition<std::uint32_t, decltype(d)> du;
  const hn::RebindToSigned<decltype(du)> di;
  const hn::RebindToFloat<decltype(du)> df;
  using V = hn::Vec<decltype(d)>;
  const int groups_at_once = static_cast<int>(hn::Lanes(d)) / 4;
  const auto product = [&](V x, std::uint64_t factor)
                           HWY_ATTR { return hn::MulEven(hn::BitCast(du, x), hn::BitCast(du, hn::Set(d, factor))); };
  for (int g = 0; g < groups; g += groups_at_once) {
    const std::uint64_t first = (std::uint64_t{group} + static_cast<std::uint64_t>(g)) * 4;
    V x0 = hn::Set(d, std::uint64_t{key.b});
    V x1 = hn::Set(d, std::uint64_t{key.h});
    V x2 = hn::Set(d, std::uint64_t{key.q});
    V x3 = hn::And(hn::Iota(d, first), hn::Set(d, std::uint64_t{0x3fffffff}));
    std::uint32_t key0 = key.seed, key1 = shared::kRandomUniformDomain;
    for (int round = 0; round < 10; ++round) {
      const V product0 = product(x0, 0xD2511F53U);
      const V product2 = product(x2, 0xCD9E8D57U);
      x0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product2), x1), hn::Set(d, std::uint64_t{key0}));
      x1 = product2;
      x2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), x3), hn::Set(d, std::uint64_t{key1}));
      x3 = product0;
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    // Words 0 and 1 belong to columns 2p and 2p + 1 of the group, words 2 and 3 to 2p + 8 and 2p + 9.
    const auto pair = [&](V low, V high) HWY_ATTR {
      const V words = hn::Or(hn::And(low, hn::Set(d, std::uint64_t{0xffffffff})), hn::ShiftLeft<32>(high));
      const auto upper = hn::BitCast(di, hn::ShiftRight<8>(hn::BitCast(du, words)));
      return hn::Mul(hn::ConvertTo(df, upper), hn::Set(df, 0x1p-24F));
    };
    const auto left = pair(x0, x1);
    const auto right = pair(x2, x3);
    if (groups_at_once == 1) {
      hn::StoreU(left, df, out);
      hn::StoreU(right, df, out + 8);
    } else {
      hn::StoreU(hn::ConcatLowerLower(df, right, left), df, out);
      hn::StoreU(hn::ConcatUpperUpper(df, right, left), df, out + kDrawGroup);
    }
    out += kDrawGroup * groups_at_once;
  }
#else
  for (int g = 0; g < groups; ++g, out += kDrawGroup) {
    for (std::uint32_t pair = 0; pair < 4; ++pair) {
      const std::uint32_t kv = (group + static_cast<std::uint32_t>(g)) * kDrawGroup + 2 * pair;
      const shared::PhiloxWords words = shared::random_uniform_words(key.seed, key.b, key.h, key.q, kv);
      for (std::uint32_t offset : {0U, 1U, 8U, 9U}) {
        out[2 * pair + offset] = shared::random_uniform_value(words.word[shared::random_uniform_word_of(offset)]);
      }
    }
  }
#endif
}

template <class Real>
void DrawRow(const TileArguments& t) {
  // The columns of a tile may begin inside a group, and DrawGroups may write one more.
  HWY_ALIGN float draws[kMaxColumns + 3 * kDrawGroup];
  for (int r = 0; r < t.rows; ++r) {
    const auto argument = [&t, r](std::size_t i) {
      std::uint32_t value;
      std::memcpy(&value, t.in[i].base + r * t.in[i].row, sizeof value);
      return value;
    };
    const std::uint32_t kv = argument(4);
    const int skip = static_cast<int>(kv % kDrawGroup);
    const int groups = (skip + t.used_columns + kDrawGroup - 1) / kDrawGroup;
    DrawGroups({argument(0), argument(1), argument(2), argument(3)}, kv / kDrawGroup, groups, draws);
    Real* HWY_RESTRICT out = reinterpret_cast<Real*>(t.out + r * t.out_row);
    for (int c = 0; c < t.used_columns; ++c) out[c] = static_cast<Real>(draws[skip + c]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
