// The queries of a wave: prepared before its tasks, their dq stored after them.
#pragma once

#include <vector>

#include "families/cpu/cpu_backward_run.h"

namespace heddle::cpu {

template <class T>
class WaveQueries {
 public:
  explicit WaveQueries(const BackwardRun& run)
      : run_(run), sinks_(static_cast<std::size_t>(run.problem.wanted.sinks ? run.problem.q_heads : 0)) {}

  /// Packs them, zeros their dq, adds to the gradients of the sinks.
  void prepare(const BackwardWave& wave, int workers);
  /// Adds the pieces of each row of dq in order; where q broadcasts over the batch, those of all sequences in order.
  void store(const BackwardWave& wave, int workers) const;
  /// Gradients of the sinks, one for each query head, over the waves that were prepared.
  const std::vector<double>& sinks() const { return sinks_; }

 private:
  QueryRows<T> rows_of_queries(const QueryUnit& unit) const;
  void store_broadcast(const BackwardWave& wave, int workers) const;

  const BackwardRun& run_;
  std::vector<double> sinks_;
};

}  // namespace heddle::cpu
