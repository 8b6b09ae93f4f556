// Zone maps of captures, for mods/mask_ranges.cuh: the least and the largest of groups of 64 elements along one axis,
// then of groups of groups, to one that holds the whole axis.
#pragma once

#include "mods/mask_ranges.cuh"
#include "shared/mask_rows.h"

namespace heddle::mask_rows {

using shared::MaskZone;
using shared::ZoneCell;

/// The slice's first element, as an offset: its number counts the indices of all axes but the zone's.
__device__ __forceinline__ long long slice_offset(const MaskZone& zone, int slice) {
  long long offset = 0;
  for (int axis = zone.rank - 1; axis >= 0; --axis) {
    if (axis == zone.axis) continue;
    offset += slice % zone.tensor.extent[axis] * zone.tensor.stride[axis];
    slice /= zone.tensor.extent[axis];
  }
  return offset;
}

template <class Range>
__device__ __forceinline__ ZoneCell joined(Range like, ZoneCell x, ZoneCell y) {
  return ranges::to_cell(ranges::hull(ranges::of_cell(like, x), ranges::of_cell(like, y)));
}

/// One group, by the lanes of a warp.
template <class Storage>
__device__ __forceinline__ void zone_group(const MaskZone& zone, int slice, int group) {
  constexpr int kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int begin = group * shared::kZoneGroup, extent = zone.tensor.extent[zone.axis];
  const long long offset = slice_offset(zone, slice);
  const auto element = [&](int i) {  // past the end the last one, once more
    const int inside = i < extent ? i : extent - 1;
    return ranges::point(ops::load_if<Storage>(zone.tensor, true, offset + inside * zone.tensor.stride[zone.axis]));
  };
  const auto range = ranges::hull(element(begin + lane), element(begin + lane + kLanes));
  ZoneCell cell = ranges::to_cell(range);
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const ZoneCell other = {__shfl_xor_sync(~0U, cell.lo, distance), __shfl_xor_sync(~0U, cell.hi, distance)};
    cell = joined(range, cell, other);
  }
  if (lane == 0) zone.cells[static_cast<long long>(slice) * 2 * zone.groups + zone.groups + group] = cell;
}

/// The tree above the groups: in each round, the cells whose parts are there.
template <class Storage>
__device__ __forceinline__ void zone_tree(const MaskZone& zone, int slice) {
  ZoneCell* tree = zone.cells + static_cast<long long>(slice) * 2 * zone.groups;
  const auto like = ranges::point(Storage::value(0));
  for (int end = zone.groups; end > 1;) {
    const int begin = (end + 1) / 2;
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
      tree[i] = joined(like, tree[2 * i], tree[2 * i + 1]);
    }
    __syncthreads();
    end = begin;
  }
}

}  // namespace heddle::mask_rows
