#include "peaks/plain_read.h"

#include <algorithm>

#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peaks/plain_read.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heddle::peaks::HWY_NAMESPACE {
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

}  // namespace heddle::peaks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::peaks {

HWY_EXPORT(Read);

namespace {

void read_slice(std::span<const std::byte> slice) {
  volatile std::uint32_t kept = HWY_DYNAMIC_DISPATCH(Read)(slice.data(), std::ssize(slice));
  (void)kept;
}

}  // namespace

void plain_read(int threads, std::span<const std::byte> first, std::span<const std::byte> second) {
  constexpr std::size_t kSlice = std::size_t{1} << 18;
  const auto slices_of = [](std::span<const std::byte> bytes) {
    return static_cast<std::int64_t>((bytes.size() + kSlice - 1) / kSlice);
  };
  const std::int64_t slices = slices_of(first);
  base::parallel_tasks(threads, slices + slices_of(second), [&](int, std::int64_t task) {
    const std::span<const std::byte> bytes = task < slices ? first : second;
    const std::size_t offset = static_cast<std::size_t>(task < slices ? task : task - slices) * kSlice;
    read_slice(bytes.subspan(offset, std::min(kSlice, bytes.size() - offset)));
  });
}

}  // namespace heddle::peaks
#endif  // HWY_ONCE
