#include "base/hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "base/element.h"
#include "base/rows.h"

namespace heddle::base {
namespace {

constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87u;
constexpr std::uint64_t kPrime2 = 0xc2b2ae3d27d4eb4fu;
constexpr std::uint64_t kPrime3 = 0x165667b19e3779f9u;
constexpr std::uint64_t kPrime4 = 0x85ebca77c2b2ae63u;
constexpr std::uint64_t kPrime5 = 0x27d4eb2f165667c5u;

std::uint64_t round(std::uint64_t lane, std::uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

std::uint64_t hash_stripes(const std::byte*& at, const std::byte* end, std::uint64_t seed) {
  std::array<std::uint64_t, 4> lanes{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  for (; end - at >= 32; at += 32) {
    for (int i = 0; i < 4; ++i) {
      lanes[static_cast<std::size_t>(i)] = round(lanes[static_cast<std::size_t>(i)], load_raw<std::uint64_t>(at, i));
    }
  }
  std::uint64_t hash =
      std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const std::uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

constexpr std::int64_t kBlockBytes = 1 << 16;

}  // namespace

std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed) {
  if (size == 0) data = &size;
  const auto* at = static_cast<const std::byte*>(data);
  const std::byte* end = at + size;
  std::uint64_t hash = size >= 32 ? hash_stripes(at, end, seed) : seed + kPrime5;
  hash += size;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, load_raw<std::uint64_t>(at, 0)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (load_raw<std::uint32_t>(at, 0) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ (std::to_integer<std::uint64_t>(*at) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::uint64_t hash_view(const ConstTensorView& view) {
  std::uint64_t hash = hash_combine(static_cast<std::uint64_t>(view.dtype), static_cast<std::uint64_t>(view.rank()));
  for (const std::int64_t extent : view.shape) hash = hash_combine(hash, static_cast<std::uint64_t>(extent));
  const std::int64_t count = view.count();
  const std::int64_t size = size_of(view.dtype);
  // Hashed block by block at fixed places of the row-major order, so that a strided view needs one block of memory.
  const std::int64_t block = kBlockBytes / size;
  if (is_contiguous(view)) {
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t length = std::min(block, count - begin);
      const void* at = static_cast<const std::byte*>(view.data) + begin * size;
      hash = hash_bytes(at, static_cast<std::size_t>(length * size), hash);
    }
    return hash;
  }
  std::vector<std::byte> gathered(static_cast<std::size_t>(std::min(block, count) * size));
  std::int64_t filled = 0;
  const Walk walk = coalesce(view.shape, view.strides);
  for_each_row(walk, [&](std::int64_t offset) {
    for (std::int64_t i = 0; i < walk.row_length(); ++i) {
      std::memcpy(gathered.data() + filled * size,
                  static_cast<const std::byte*>(view.data) + (offset + i * walk.row_stride()) * size,
                  static_cast<std::size_t>(size));
      if (++filled == block) {
        hash = hash_bytes(gathered.data(), gathered.size(), hash);
        filled = 0;
      }
    }
  });
  return filled == 0 ? hash : hash_bytes(gathered.data(), static_cast<std::size_t>(filled * size), hash);
}

namespace {

bool has_axis(std::uint32_t axes, int axis) { return (axes >> axis & 1U) != 0; }

std::uint32_t repeated_axes(const ConstTensorView& view) {
  std::uint32_t axes = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.shape[axis] > 1 && view.strides[axis] == 0) axes |= 1U << axis;
  }
  return axes;
}

/// The view at index 0 along these axes.
ConstTensorView first_along(ConstTensorView view, std::uint32_t axes) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (has_axis(axes, axis)) view.shape[axis] = std::min<std::int64_t>(view.shape[axis], 1);
  }
  return view;
}

/// Whether every index along the axis holds the bytes of its first index.
bool repeats(const ConstTensorView& view, int axis) {
  const ConstTensorView first = first_along(view, 1U << axis);
  const Walk walk = coalesce(first.shape, first.strides);
  const std::int64_t size = size_of(view.dtype);
  bool same = true;
  for (std::int64_t i = 1; i < view.shape[axis] && same; ++i) {
    for_each_row(walk, [&](std::int64_t offset) {
      for (std::int64_t column = 0; column < walk.row_length() && same; ++column) {
        const std::byte* at = static_cast<const std::byte*>(view.data) + (offset + column * walk.row_stride()) * size;
        same = std::memcmp(at, at + i * view.strides[axis] * size, static_cast<std::size_t>(size)) == 0;
      }
    });
  }
  return same;
}

}  // namespace

Content content_of(const ConstTensorView& view) {
  const std::uint32_t axes = repeated_axes(view);
  return {view.shape, axes, hash_view(first_along(view, axes))};
}

bool holds(const ConstTensorView& view, const Content& content) {
  if (!(view.shape == content.shape)) return false;
  // Along an axis that repeats in both, the first index says all: the others are not looked at.
  const std::uint32_t here = repeated_axes(view);
  ConstTensorView rest = first_along(view, here & content.repeated_axes);
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (!has_axis(content.repeated_axes & ~here, axis)) continue;
    if (!repeats(first_along(rest, here), axis)) return false;
    rest = first_along(rest, 1U << axis);
  }
  return hash_view(first_along(view, content.repeated_axes)) == content.hash;
}

}  // namespace heddle::base
