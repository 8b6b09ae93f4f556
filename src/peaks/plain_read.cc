#include "peaks/plain_read.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peaks/plain_read.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heddle::peaks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Eight chains: one chain of operations would be slower than the caches.
std::uint8_t Read(const std::uint8_t* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  constexpr std::size_t kChains = 8;
  hn::Vec<hn::ScalableTag<std::uint8_t>> x[kChains];
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kChains; ++i) x[i] = hn::Zero(d);
  const std::size_t lanes = hn::Lanes(d), step = kChains * lanes;
  std::size_t first = 0;
  for (; first + step <= bytes; first += step) {
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kChains; ++i) x[i] = hn::Or(x[i], hn::LoadU(d, from + first + i * lanes));
  }
  HWY_UNROLL(8)
  for (std::size_t i = 1; i < kChains; ++i) x[0] = hn::Or(x[0], x[i]);
  HWY_ALIGN std::uint8_t stored[HWY_MAX_BYTES];
  hn::Store(x[0], d, stored);
  std::uint8_t all = 0;
  for (std::size_t i = 0; i < lanes; ++i) all |= stored[i];
  for (; first < bytes; ++first) all |= from[first];
  return all;
}

}  // namespace heddle::peaks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::peaks {

HWY_EXPORT(Read);

std::byte plain_read(int threads, std::span<const std::byte> first, std::span<const std::byte> second) {
  constexpr std::size_t kSlice = std::size_t{1} << 18;
  const auto slices_of = [](std::span<const std::byte> bytes) {
    return static_cast<std::int64_t>((bytes.size() + kSlice - 1) / kSlice);
  };
  const std::int64_t slices = slices_of(first);
  std::atomic<std::uint8_t> all = 0;
  base::parallel_tasks(threads, slices + slices_of(second), [&](int, std::int64_t task) {
    const std::span<const std::byte> bytes = task < slices ? first : second;
    const std::size_t offset = static_cast<std::size_t>(task < slices ? task : task - slices) * kSlice;
    const auto* from = reinterpret_cast<const std::uint8_t*>(bytes.data() + offset);
    all |= HWY_DYNAMIC_DISPATCH(Read)(from, std::min(kSlice, bytes.size() - offset));
  });
  return std::byte{all.load()};
}

}  // namespace heddle::peaks
#endif  // HWY_ONCE
