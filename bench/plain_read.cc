#include "plain_read.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plain_read.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heddle::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Eight chains: one chain of operations would be slower than the caches. `bytes` past a whole step are not read.
std::uint32_t Read(const std::byte* from, std::int64_t bytes) {
  const hn::ScalableTag<std::uint32_t> d;
  constexpr int kChains = 8;
  hn::Vec<hn::ScalableTag<std::uint32_t>> x[kChains];
  HWY_UNROLL(8)
  for (int i = 0; i < kChains; ++i) x[i] = hn::Zero(d);
  const auto* words = reinterpret_cast<const std::uint32_t*>(from);
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d)), step = kChains * lanes, count = bytes / 4;
  for (std::int64_t first = 0; first + step <= count; first += step) {
    HWY_UNROLL(8)
    for (int i = 0; i < kChains; ++i) x[i] = hn::Or(x[i], hn::LoadU(d, words + first + i * lanes));
  }
  HWY_UNROLL(8)
  for (int i = 1; i < kChains; ++i) x[0] = hn::Or(x[0], x[i]);
  return hn::GetLane(x[0]);
}

}  // namespace heddle::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::bench {

HWY_EXPORT(Read);

void plain_read(const std::byte* from, std::int64_t bytes) {
  volatile std::uint32_t kept = HWY_DYNAMIC_DISPATCH(Read)(from, bytes);
  (void)kept;
}

}  // namespace heddle::bench
#endif  // HWY_ONCE
