// Positions by granules (plan/mods/places.h): rows of a wave, and of a step, lie in one granule, so they stand as far
// from their positions in the sequence as the first one does.
#pragma once

#include "shared/mod_values.h"

namespace heddle::portable {

/// A query's position minus its index. `Place`: the generated text's Queryplace.
template <class Place>
__device__ __forceinline__ int shift_of_query(const shared::ModValues& mod, int batch, int head, int row) {
  const auto uniform = Place::Mod::uniform(mod, batch, head);
  const auto of_row = Place::Mod::row(mod, uniform, batch, head, row);
  return Place::element(mod, uniform, of_row, typename Place::Mod::Column(), batch, head, row, 0) - row;
}
/// A key's position minus its index. `Place`: the generated text's Keyplace.
template <class Place>
__device__ __forceinline__ int shift_of_key(const shared::ModValues& mod, int batch, int head, int key) {
  const auto uniform = Place::Mod::uniform(mod, batch, head);
  const auto of_key = Place::Mod::column(mod, uniform, batch, head, key);
  return Place::element(mod, uniform, typename Place::Mod::Row(), of_key, batch, head, 0, key) - key;
}

/// A shift that a kernel keeps for its wave's rows, where they have one. (Others have no such member: it changes the
/// generated code.)
template <bool kPlaced>
struct RowShift {
  __device__ __forceinline__ int of_index(int index) const { return index; }
};
template <>
struct RowShift<true> {
  __device__ __forceinline__ int of_index(int index) const { return index + shift; }
  int shift = 0;
};

}  // namespace heddle::portable
