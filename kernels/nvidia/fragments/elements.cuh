// A mod, element by element, over the registers in which a warpgroup holds its scores: 64 rows x kKeys columns.
#pragma once

#include "shared/mod_values.h"

namespace heddle {

/// Where a warpgroup's block of scores lies.
struct BlockOrigin {
  int batch, head;
  int q_idx;     // of the thread's first row, q_start included; its other one is 8 further down
  int kv_first;  // the block's first key
};

/// The value of a mod of nothing but b and h.
template <class Mod, class Element>
__device__ __forceinline__ auto uniform_value(const shared::ModValues& mod, const BlockOrigin& at, Element&& element) {
  const typename Mod::Uniform uniform = Mod::uniform(mod, at.batch, at.head);
  return element(mod, uniform, typename Mod::Row(), typename Mod::Column(), at.batch, at.head, 0, 0);
}

/// Calls visit(i, uniform, row, column, q_idx, kv_idx) for each of the thread's scores; i is its register. All threads
/// of a warp call together.
template <class Mod, template <int> class Columns, int kKeys, class Visit>
__device__ __forceinline__ void for_elements(const shared::ModValues& mod, const BlockOrigin& at, Visit&& visit) {
  const typename Mod::Uniform uniform = Mod::uniform(mod, at.batch, at.head);
  const int q_idx[2] = {at.q_idx, at.q_idx + 8};
  const typename Mod::Row row[2] = {Mod::row(mod, uniform, at.batch, at.head, q_idx[0]),
                                    Mod::row(mod, uniform, at.batch, at.head, q_idx[1])};
  const Columns<kKeys> columns(mod, uniform, at.batch, at.head, at.kv_first);
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int kv_idx = at.kv_first + 2 * (threadIdx.x & 3) + 8 * j + e;
      const typename Mod::Column column = columns.at(j, e);
#pragma unroll
      for (int r = 0; r < 2; ++r) visit(4 * j + 2 * r + e, uniform, row[r], column, q_idx[r], kv_idx);
    }
  }
}

}  // namespace heddle
