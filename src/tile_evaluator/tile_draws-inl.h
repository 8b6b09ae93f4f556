// random_uniform along the columns of a tile. Sixteen columns share one call of Philox (shared/philox.h), and a vector
// makes as many calls at once as it has 64-bit lanes. Recompiled for each SIMD target.
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

#include "shared/philox.h"
#include "tile_evaluator/tile_evaluator.h"
#include "tile_evaluator/tile_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The columns whose kv_idx differ in the low six bits take four calls of Philox: call p has the columns 2p and 2p + 1
/// of each eight, a pair of shared::random_uniform_pair().
inline constexpr int kDrawGroup = static_cast<int>(shared::kRandomUniformGroup);

struct DrawCounter {
  std::uint32_t b, h, q;
};

#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32

/// The keys of the ten rounds of one seed, each word in all lanes.
class DrawKeys {
  static constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<std::uint64_t>());

 public:
  static constexpr int kGroupsAtOnce = static_cast<int>(kLanes) / 4;

  void set(std::uint32_t seed) {
    const hn::ScalableTag<std::uint64_t> d;
    std::uint32_t low = seed, high = shared::kRandomUniformDomain;
    for (int round = 0; round < kRounds; ++round) {
      hn::Store(hn::Set(d, std::uint64_t{low}), d, low_[round]);
      hn::Store(hn::Set(d, std::uint64_t{high}), d, high_[round]);
      low += 0x9E3779B9U;
      high += 0xBB67AE85U;
    }
  }

  /// out[0 .. 64 * groups) for the kv_idx 64 * group and on. May write kGroupsAtOnce - 1 groups more.
  void draw(const DrawCounter& counter, std::uint32_t group, int groups, float* HWY_RESTRICT out) const {
    // A round waits seven cycles for the one before: several chains fill the time.
    constexpr int kChains = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
    int g = 0;
    for (; g + kChains * kGroupsAtOnce <= groups; g += kChains * kGroupsAtOnce) {
      draw_chains<kChains>(counter, group + static_cast<std::uint32_t>(g), out + g * kDrawGroup);
    }
    for (; g < groups; g += kGroupsAtOnce) {
      draw_chains<1>(counter, group + static_cast<std::uint32_t>(g), out + g * kDrawGroup);
    }
  }

 private:
  static constexpr int kRounds = 10;

  /// Words stand in the low halves of 64-bit lanes: a product gives both halves at once, and what remains in the high
  /// halves does no harm because products read the low ones only.
  template <int kChains>
  HWY_INLINE void draw_chains(const DrawCounter& counter, std::uint32_t group, float* HWY_RESTRICT out) const {
    const hn::ScalableTag<std::uint64_t> d;
    const hn::Repartition<std::uint32_t, decltype(d)> du;
    const hn::RebindToSigned<decltype(du)> di;
    const hn::RebindToFloat<decltype(du)> df;
    using V = hn::Vec<decltype(d)>;
    const auto product = [du](V x, V factor)
                             HWY_ATTR { return hn::MulEven(hn::BitCast(du, x), hn::BitCast(du, factor)); };
    const V factor0 = hn::Set(d, std::uint64_t{0xD2511F53U}), factor2 = hn::Set(d, std::uint64_t{0xCD9E8D57U});
    V x0[kChains], x1[kChains], x2[kChains], x3[kChains];
#pragma GCC unroll 4
    for (int k = 0; k < kChains; ++k) {
      x0[k] = hn::Set(d, std::uint64_t{counter.b});
      x1[k] = hn::Set(d, std::uint64_t{counter.h});
      x2[k] = hn::Set(d, std::uint64_t{counter.q});
      const std::uint64_t first = std::uint64_t{group} * 4 + static_cast<std::uint64_t>(k) * kLanes;
      x3[k] = hn::And(hn::Iota(d, first), hn::Set(d, std::uint64_t{0x0fffffff}));
    }
    for (int round = 0; round < kRounds; ++round) {
      const V low = hn::Load(d, low_[round]), high = hn::Load(d, high_[round]);
#pragma GCC unroll 4
      for (int k = 0; k < kChains; ++k) {
        const V product0 = product(x0[k], factor0), product2 = product(x2[k], factor2);
        x0[k] = hn::Xor3(hn::ShiftRight<32>(product2), x1[k], low);
        x1[k] = product2;
        x2[k] = hn::Xor3(hn::ShiftRight<32>(product0), x3[k], high);
        x3[k] = product0;
      }
    }
    // The low halves of the lanes hold pairs; each becomes two numbers, its own lower half and its upper one.
    const auto two = [=](V x) HWY_ATTR {
      const V lower = hn::And(x, hn::Set(d, std::uint64_t{shared::kRandomUniformCount - 1}));
      const V upper = hn::And(hn::ShiftLeft<16>(x), hn::Set(d, std::uint64_t{shared::kRandomUniformCount - 1} << 32));
      return hn::Mul(hn::ConvertTo(df, hn::BitCast(di, hn::Or(lower, upper))), hn::Set(df, 0x1p-15F));
    };
    // The pairs of a call, as shared::random_uniform_pair().
    const V lower = hn::Set(d, std::uint64_t{0x00FF00FF}), upper = hn::Set(d, std::uint64_t{0xFF00FF00});
    const auto first = [=](V own, V both) HWY_ATTR { return two(hn::Or(hn::And(own, upper), hn::And(both, lower))); };
    const auto second = [=](V own, V both) HWY_ATTR {
      return two(hn::Or(hn::ShiftLeft<8>(hn::And(own, lower)), hn::And(hn::ShiftRight<8>(both), lower)));
    };
#pragma GCC unroll 4
    for (int k = 0; k < kChains; ++k, out += 16 * kLanes) {
      const V both0 = hn::Xor(x0[k], x1[k]), both1 = hn::Xor(x1[k], x2[k]), both2 = hn::Xor(x2[k], x3[k]),
              both3 = hn::Xor(x3[k], x0[k]);
      store_half(first(x0[k], both0), first(x1[k], both1), first(x2[k], both2), first(x3[k], both3), out);
      store_half(second(x0[k], both0), second(x1[k], both1), second(x2[k], both2), second(x3[k], both3), out + 32);
    }
  }

  /// Four eights of columns, of each of the groups that are drawn at once.
  template <class Floats>
  HWY_INLINE static void store_half(Floats w0, Floats w1, Floats w2, Floats w3, float* HWY_RESTRICT out) {
    const hn::DFromV<Floats> df;
    if constexpr (kLanes == 4) {
      hn::StoreU(w0, df, out);
      hn::StoreU(w1, df, out + 8);
      hn::StoreU(w2, df, out + 16);
      hn::StoreU(w3, df, out + 24);
    } else {
      hn::StoreU(hn::ConcatLowerLower(df, w1, w0), df, out);
      hn::StoreU(hn::ConcatLowerLower(df, w3, w2), df, out + 16);
      hn::StoreU(hn::ConcatUpperUpper(df, w1, w0), df, out + kDrawGroup);
      hn::StoreU(hn::ConcatUpperUpper(df, w3, w2), df, out + kDrawGroup + 16);
    }
  }

  HWY_ALIGN std::uint64_t low_[kRounds][kLanes], high_[kRounds][kLanes];
};

#else

class DrawKeys {
 public:
  static constexpr int kGroupsAtOnce = 1;
  void set(std::uint32_t seed) { seed_ = seed; }
  void draw(const DrawCounter& counter, std::uint32_t group, int groups, float* HWY_RESTRICT out) const {
    for (int g = 0; g < groups; ++g, out += kDrawGroup) {
      for (std::uint32_t pair = 0; pair < 4; ++pair) {
        const std::uint32_t kv = (group + static_cast<std::uint32_t>(g)) * kDrawGroup + 2 * pair;
        const shared::PhiloxWords words = shared::random_uniform_words(seed_, counter.b, counter.h, counter.q, kv);
        for (std::uint32_t offset = 0; offset < kDrawGroup; offset += offset % 2 == 0 ? 1 : 7) {
          out[2 * pair + offset] = shared::random_uniform_value(shared::random_uniform_bits(
              shared::random_uniform_pair(words, shared::random_uniform_pair_of(offset)), offset));
        }
      }
    }
  }

 private:
  std::uint32_t seed_ = 0;
};

#endif

template <class Real>
void DrawRow(const TileArguments& t) {
  const hn::ScalableTag<Real> d;
  const hn::Rebind<float, decltype(d)> df;
  const int lanes = static_cast<int>(hn::Lanes(d));
  // The columns of a tile may begin inside a group.
  HWY_ALIGN float draws[kMaxColumns + kDrawGroup + DrawKeys::kGroupsAtOnce * kDrawGroup];
  DrawKeys keys;
  for (int r = 0; r < t.rows; ++r) {
    const auto argument = [&t, r](std::size_t i) {
      std::uint32_t value;
      std::memcpy(&value, t.in[i].base + r * t.in[i].row, sizeof value);
      return value;
    };
    if (r == 0 || t.in[0].row != 0) keys.set(argument(0));
    const std::uint32_t kv = argument(4);
    const int skip = static_cast<int>(kv % kDrawGroup);
    const int groups = (skip + t.columns + kDrawGroup - 1) / kDrawGroup;
    keys.draw({argument(1), argument(2), argument(3)}, kv / kDrawGroup, groups, draws);
    Real* HWY_RESTRICT out = reinterpret_cast<Real*>(t.out + r * t.out_row);
    for (int c = 0; c < t.columns; c += lanes) {
      const auto drawn = hn::LoadU(df, draws + skip + c);
      if constexpr (sizeof(Real) == 4) {
        hn::StoreU(drawn, d, out + c);
      } else {
        hn::StoreU(hn::PromoteTo(d, drawn), d, out + c);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::cpu
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
