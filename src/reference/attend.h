// Attention in float64, a row of queries at a time, as plain as its definition:
//
//   s = scale * q.k      t = score_mod(s), -inf where the mask is false      m = max(max t, sink)
//   p = exp(t - m)       l = sum p (+ exp(sink - m))      o = sum(p w v) / l      lse = m + ln l
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "reference/row_bounds.h"

namespace heddle::reference {

/// One row of the result, and the magnitudes by which its errors are judged (src/check).
struct RowResult {
  std::span<const double> o;          // [Dv]
  double top, log_sum;                // lse in two parts: m and ln l. -inf and 0 where nothing attends
  double max_score;                   // softmax only
  std::span<const double> magnitude;  // [Dv] sum |p w v| / l; p counts at least what the problem's reals flush to 0
  std::span<const double> floor;      // [Dv] as check.h says
  RowBounds bounds;                   // if `step` is not 0

  double lse() const { return top + log_sum; }
  /// The rest of lse beside the stored one.
  double lse_rest(double stored) const {
    return top == -std::numeric_limits<double>::infinity() ? 0 : (top - stored) + log_sum;
  }
};

/// Where a row stands in o [B, Hq, Sq, Dv] and lse.
struct RowIndex {
  std::int64_t batch, head, row;
};

/// any: rows are visited in no order. of_a_head: the rows of one sequence and kv head are visited by one thread, query
/// head by query head, first row first; so sums over them do not depend on the number of threads.
enum class RowOrder : std::uint8_t { any, of_a_head };

/// Calls visit for every row of o, from several threads. `inputs` is null past the end of a sequence, where o = 0,
/// top = -inf and max_score = -inf. arguments.tensors.o is not touched. Reports progress as the options ask. `step`:
/// the rounding error of one step of a sum, from which the floors follow; 0 if no caller reads them.
using VisitRow = std::function<void(const RowIndex& index, const RowInputs* inputs, const RowResult& result)>;
void attend(const problem::AttentionProblem& problem, const backend::RunArguments& arguments, double step,
            const VisitRow& visit, RowOrder order = RowOrder::any);

}  // namespace heddle::reference
