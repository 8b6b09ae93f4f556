// Where the gradient of a pair of a query and a key belongs, by the indices of a read.
#pragma once

#include "mods/captures.cuh"
#include "families/backward_sm90/shared/backward_reads_params.h"

namespace heddle {

/// Where a pair's gradient belongs: row by row, and in the gradient's memory.
struct ReadTarget {
  long long number, offset;
  bool inside;  // before indices were clamped
};
template <class Read>
__device__ __forceinline__ ReadTarget target_of(const shared::ModValues& mod, const shared::ReadSum& sum, float score,
                                                int b, int h, int q_idx, int kv_idx) {
  int index[4] = {};
  Read::index(mod, score, b, h, q_idx, kv_idx, index);
  ReadTarget target = {0, 0, true};
#pragma unroll
  for (int axis = 0; axis < Read::kAxes; ++axis) {
    const int own = max(0, min(index[axis], sum.extent[axis] - 1));
    target.inside = target.inside && own == index[axis];
    target.number = target.number * sum.extent[axis] + own;
    target.offset += own * sum.stride[axis];
  }
  return target;
}

}  // namespace heddle
