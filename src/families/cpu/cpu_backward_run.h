// A run of the CPU's backward as its parts see it: the plan's state, the tensors, the workspace.
#pragma once

#include <cstddef>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "base/kept.h"
#include "families/cpu/cpu_backward_plans.h"
#include "families/cpu/cpu_backward_programs.h"
#include "families/cpu/cpu_backward_queries.h"
#include "families/cpu/cpu_backward_schedule.h"
#include "families/cpu/cpu_backward_step.h"

namespace heddle::cpu {

/// Some rows of a unit's queries.
struct QueryBlock {
  const QueryUnit* unit;
  std::int64_t first;
};

template <class T>
using ReadsOfWorkers = std::vector<std::vector<StepRead<T>>>;

/// Memory that a run leaves for the next one of its plan.
struct BackwardRunMemory {
  std::vector<BackwardWorkerMods> mods;  // of each worker
  std::tuple<ReadsOfWorkers<float>, ReadsOfWorkers<double>> reads;
  std::vector<QueryBlock> blocks;  // of a wave
  std::vector<double> sinks;       // their gradients, one for each query head
};

/// State that all runs of a plan share. Not copied: the schedule points into it.
struct CpuBackward {
  problem::AttentionProblem problem;
  plan::Plan plan;
  const plan::CpuBackwardSplit& split = plan.part<plan::CpuBackwardSplit>();
  BackwardPrograms programs;
  plan::CpuBackwardScratch scratch;
  std::int64_t sum_bytes, wave_bytes;  // of the workspace, in this order; the workers' scratch follows
  BackwardSchedule schedule;
  std::vector<BackwardWave> waves;
  std::vector<plan::CpuBackwardQueries> queries;  // of each sequence
  mutable base::Kept<BackwardRunMemory> memory;

  explicit CpuBackward(const backend::PrepareArguments& arguments)
      : problem(arguments.problem),
        plan(arguments.plan),
        programs(problem, split),
        scratch(plan::cpu_backward_scratch(problem, split)),
        sum_bytes(split.lanes * plan::cpu_backward_lane_bytes(split) + plan::cpu_backward_owned_bytes(problem, split)),
        wave_bytes(plan::cpu_backward_wave_bytes(problem, split)),
        schedule(problem, split, arguments.block_mask) {
    for (std::int64_t i = 0; i < schedule.waves(); ++i) waves.push_back(schedule.wave(i));
    for (const Sequence& own : problem.sequences) {
      queries.push_back(plan::cpu_backward_queries(problem, split, own.q_len));
    }
  }
  CpuBackward(const CpuBackward&) = delete;
  CpuBackward& operator=(const CpuBackward&) = delete;
};

struct BackwardRun {
  const CpuBackward& backward;
  const problem::AttentionProblem& problem;
  const plan::CpuBackwardSplit& split;
  const BackwardTensors& tensors;
  const AttentionOptions& options;
  std::byte *sums, *waves, *workers;  // parts of the workspace
  const base::Kept<BackwardRunMemory>::Lease lease;
  BackwardRunMemory& memory;

  BackwardRun(const CpuBackward& plan, const backend::RunArguments& arguments)
      : backward(plan),
        problem(plan.problem),
        split(plan.split),
        tensors(*arguments.backward),
        options(*arguments.options),
        sums(static_cast<std::byte*>(arguments.workspace)),
        waves(sums + plan.sum_bytes),
        workers(waves + plan.wave_bytes),
        lease(plan.memory.take()),
        memory(*lease) {}

  const Sequence& sequence(std::int64_t index) const { return problem.sequences[static_cast<std::size_t>(index)]; }
  std::int64_t batch_entry(std::int64_t index) const { return problem.packed ? 0 : index; }
  /// The factor of dq and dk as they are stored. With bricks, dS is rounded to bf16 before the scale comes to
  /// it, as plain's is: both then round the same numbers, also in tensors of few elements.
  double stored_factor() const { return split.bricks() ? problem.scale : 1; }
  /// A worker's scratch memory.
  template <class T>
  T* scratch(int worker, std::int64_t offset) const {
    return reinterpret_cast<T*>(workers + worker * backward.scratch.bytes + offset);
  }
  /// shift: bytes from the unit's place in the wave to where a worker has its queries.
  QueryMemory memory_of(const QueryUnit& unit, std::int64_t shift = 0) const {
    return {waves + unit.offset + shift, &backward.queries[static_cast<std::size_t>(unit.sequence)]};
  }
};

}  // namespace heddle::cpu
