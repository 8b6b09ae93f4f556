// A backward's queries, prepared before its tasks, or by each task for itself: packed q and dO, lse, lse_rest, delta =
// dO.o - dlse, and the gradient of the sinks, which needs nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "families/cpu/cpu_backward_plans.h"
#include "families/cpu/target_data.h"

namespace heddle::cpu {

/// One sequence and query head of a run. Rows count from the sequence's first query.
template <class T>
struct QueryRows {
  ConstRows q, d_o, o;
  const T* lse = nullptr;       // [rows]; null unless the normalizer is softmax
  const T* lse_rest = nullptr;  // null: 0
  const T* d_lse = nullptr;     // null: 0
  const T* sink = nullptr;      // null: there is none
  std::int64_t qk_dim = 0, v_dim = 0, q_len = 0;
};

/// Where they are packed: the offsets from `base`.
struct QueryMemory {
  std::byte* base;
  const plan::CpuBackwardQueries* at;

  template <class T>
  T* get(std::int64_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
  // With bricks.
  TwoWayRows q_rows() const { return {get<std::uint16_t>(at->q), get<std::uint16_t>(at->q_columns)}; }
  TwoWayRows d_o_rows() const { return {get<std::uint16_t>(at->d_o), get<std::uint16_t>(at->d_o_columns)}; }
};

/// Rows [first, end), `first` a multiple of plan::kPanel.
template <class T>
void prepare_queries(const QueryRows<T>& rows, const QueryMemory& memory, std::int64_t first, std::int64_t end);

/// -sum_i exp((sink - lse_i) - lse_rest_i) delta_i over all rows, which are prepared.
template <class T>
double sink_gradient(const QueryRows<T>& rows, const QueryMemory& memory);

}  // namespace heddle::cpu
