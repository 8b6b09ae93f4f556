// The queries of a wave: prepared before its tasks, their dq stored after them. Or a task does both for its own unit,
// so that they stay in L2.
#pragma once

#include <vector>

#include "families/cpu/cpu_backward_run.h"

namespace heddle::cpu {

/// A wave, and how many bytes from their places there a task has its queries.
struct TaskQueries {
  const BackwardWave& wave;
  std::int64_t shift;
};

template <class T>
class WaveQueries {
 public:
  explicit WaveQueries(const BackwardRun& run) : run_(run), sinks_(run.memory.sinks) {
    sinks_.assign(static_cast<std::size_t>(run.problem.wanted.sinks ? run.problem.q_heads : 0), 0);
  }

  /// Whether the tasks of a wave prepare and store their queries: each unit is one task, and there are enough of them.
  bool by_tasks(const BackwardWave& wave, int workers) const;
  /// TaskQueries::shift: each worker uses the same memory for one task after the other, if there is room for that.
  std::int64_t shift_of(const BackwardWave& wave, const KeyTask& task, int workers, int worker) const;
  /// Packs the task's queries, zeros their dq.
  void prepare(const TaskQueries& queries, const KeyTask& task) const;
  void store(const TaskQueries& queries, const KeyTask& task, int worker) const;

  /// Packs them, zeros their dq, adds to the gradients of the sinks.
  void prepare(const BackwardWave& wave, int workers);
  /// Adds the pieces of each row of dq in order; where q broadcasts over the batch, those of all sequences in order.
  void store(const BackwardWave& wave, int workers) const;
  /// Gradients of the sinks, one for each query head, over the waves that were prepared.
  const std::vector<double>& sinks() const { return sinks_; }

 private:
  void prepare(const QueryUnit& unit, const QueryMemory& memory, std::int64_t first, std::int64_t end) const;
  void store(const QueryUnit& unit, const QueryMemory& memory, std::int64_t first, std::int64_t end, int worker) const;
  QueryRows<T> rows_of_queries(const QueryUnit& unit) const;
  void store_broadcast(const BackwardWave& wave, int workers) const;

  const BackwardRun& run_;
  std::vector<double>& sinks_;
};

}  // namespace heddle::cpu
