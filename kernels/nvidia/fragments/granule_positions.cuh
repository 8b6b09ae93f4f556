// Positions by granules (generated: queryplace_..., keyplace_...): where a row's query, or a key, stands in the sequence
// of which the tensors hold granules.
#pragma once

#include "shared/mod_values.h"

namespace heddle {

__device__ __forceinline__ int position_of_query(const shared::ModValues& mod, int batch, int head, int row) {
  const QueryplaceUniform uniform = queryplace_uniform(mod, batch, head);
  return queryplace_element(mod, uniform, queryplace_row(mod, uniform, batch, head, row), QueryplaceColumn(), batch,
                            head, row, 0);
}
__device__ __forceinline__ int position_of_key(const shared::ModValues& mod, int batch, int head, int key) {
  const KeyplaceUniform uniform = keyplace_uniform(mod, batch, head);
  return keyplace_element(mod, uniform, KeyplaceRow(), keyplace_column(mod, uniform, batch, head, key), batch, head, 0,
                          key);
}

}  // namespace heddle
