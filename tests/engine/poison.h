// NaN (or another poison) in chosen rows of a case, and the rows of its outputs that must not feel it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "base/element.h"
#include "engine/attention_case.h"

namespace heddle::test {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Chooses = std::function<bool(std::int64_t b, std::int64_t h, std::int64_t row)>;

inline void poison_rows(const GuardedTensor& tensor, const Chooses& chosen, double poison = kNaN) {
  tensor.for_each_element([&](const Dims& at, std::int64_t offset) {
    if (chosen(at[0], at[1], at[2])) base::store_element(tensor.view().data, tensor.view().dtype, offset, poison);
  });
}

// Values of o and lse as bits, row by row; rows that `ignored` chooses are left out.
inline std::vector<std::vector<double>> rows_of(const AttentionCase& c, const Chooses& ignored) {
  std::vector<std::vector<double>> rows;
  const TensorView o = c.tensors().o;
  for (std::int64_t b = 0; b < o.shape[0]; ++b) {
    for (std::int64_t h = 0; h < o.shape[1]; ++h) {
      for (std::int64_t i = 0; i < o.shape[2]; ++i) {
        if (ignored(b, h, i)) continue;
        std::vector<double> row;
        for (std::int64_t d = 0; d < o.shape[3]; ++d) row.push_back(get_element(o, {b, h, i, d}));
        if (c.tensors().lse) row.push_back(get_element(*c.tensors().lse, {b, h, i}));
        rows.push_back(row);
      }
    }
  }
  return rows;
}

inline const Chooses kNone = [](auto...) { return false; };

}  // namespace heddle::test
