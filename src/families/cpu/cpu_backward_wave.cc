#include "families/cpu/cpu_backward_wave.h"

#include <algorithm>

#include "base/parallel.h"
#include "base/store.h"
#include "families/cpu/cpu_backward_step.h"
#include "families/cpu/tensor_rows.h"

namespace heddle::cpu {
namespace {

/// Rows of queries that one task packs, or stores the dq of.
constexpr std::int64_t kRowsAtATime = 8 * plan::kPanel;

/// sum += row `row` of panels of `rows` rows.
template <class T>
void add_panel_row(const T* panels, std::int64_t rows, std::int64_t row, std::vector<double>& sum) {
  for (std::int64_t d = 0; d < std::ssize(sum); ++d) {
    const std::int64_t panel = d / plan::kPanel * plan::kPanel;
    sum[static_cast<std::size_t>(d)] += static_cast<double>(panels[panel * rows + row * plan::kPanel + (d - panel)]);
  }
}

/// Calls f(unit, first row, end, worker) for a few rows at a time of each unit, on all workers.
template <class F>
void for_blocks_of_rows(const BackwardRun& run, const BackwardWave& wave, int workers, F&& f) {
  std::vector<QueryBlock>& blocks = run.memory.blocks;
  blocks.clear();
  for (const QueryUnit& unit : wave.queries) {
    for (std::int64_t first = 0; first < run.sequence(unit.sequence).q_len; first += kRowsAtATime) {
      blocks.push_back({&unit, first});
    }
  }
  base::parallel_tasks(workers, std::ssize(blocks), [&](int worker, std::int64_t index) {
    const auto [unit, first] = blocks[static_cast<std::size_t>(index)];
    f(*unit, first, std::min(run.sequence(unit->sequence).q_len, first + kRowsAtATime), worker);
  });
}

/// Calls f for each query unit of the task.
template <class F>
void for_queries(const BackwardRun& run, const TaskQueries& queries, const KeyTask& task, F&& f) {
  for (const KeyGroup& group : queries.wave.units[static_cast<std::size_t>(task.unit)]) {
    for (const std::int64_t index : group.sequences) {
      for (std::int64_t g = 0; g < run.problem.group(); ++g) {
        f(run.backward.schedule.query_unit(queries.wave, index, group.kv_head * run.problem.group() + g));
      }
    }
  }
}

}  // namespace

template <class T>
QueryRows<T> WaveQueries<T>::rows_of_queries(const QueryUnit& unit) const {
  const Sequence& own = run_.sequence(unit.sequence);
  const std::int64_t entry = run_.batch_entry(unit.sequence);
  const auto rows = [&](const ConstTensorView& view) {
    return rows_of<ConstRows>(view, entry, unit.head, own.q_begin);
  };
  const auto numbers = [&](const ConstTensorView& view) {
    const std::int64_t first = entry * view.strides[0] + unit.head * view.strides[1] + own.q_begin * view.strides[2];
    return static_cast<const T*>(view.data) + first;
  };
  QueryRows<T> all{.q = rows(run_.tensors.q),
                   .d_o = rows(run_.tensors.d_o),
                   .o = rows(run_.tensors.o),
                   .qk_dim = run_.problem.qk_dim,
                   .v_dim = run_.problem.v_dim,
                   .q_len = own.q_len};
  if (run_.tensors.lse) all.lse = numbers(*run_.tensors.lse);
  if (run_.tensors.lse_rest) all.lse_rest = numbers(*run_.tensors.lse_rest);
  if (run_.tensors.d_lse) all.d_lse = numbers(*run_.tensors.d_lse);
  if (run_.options.sinks) {
    all.sink = static_cast<const T*>(run_.options.sinks->data) + unit.head * run_.options.sinks->strides[0];
  }
  return all;
}

template <class T>
bool WaveQueries<T>::by_tasks(const BackwardWave& wave, int workers) const {
  // Few units leave workers idle that can prepare rows.
  const bool enough = workers == 1 || std::ssize(wave.units) >= 2 * workers;
  return enough && run_.split.pieces == 1 && !run_.split.q_broadcasts && !run_.tensors.d_sinks;
}

template <class T>
void WaveQueries<T>::prepare(const QueryUnit& unit, const QueryMemory& memory, std::int64_t first,
                             std::int64_t end) const {
  prepare_queries(rows_of_queries(unit), memory, first, end);
  const std::int64_t columns = plan::round_up(run_.problem.qk_dim, plan::kPanel);
  const std::int64_t last = end == run_.sequence(unit.sequence).q_len ? memory.at->rows : end;
  for (std::int64_t piece = 0; run_.tensors.dq && piece < run_.split.pieces; ++piece) {
    T* dq = memory.get<T>(memory.at->dq + piece * memory.at->part_bytes);
    for (std::int64_t d = 0; d < columns; d += plan::kPanel) {
      std::fill_n(dq + d * memory.at->rows + first * plan::kPanel, (last - first) * plan::kPanel, T(0));
    }
  }
}

template <class T>
void WaveQueries<T>::store(const QueryUnit& unit, const QueryMemory& memory, std::int64_t first, std::int64_t end,
                           int worker) const {
  const Sequence& own = run_.sequence(unit.sequence);
  store_panels(StorePanels<T>{
      .from = memory.get<T>(memory.at->dq),
      .parts = run_.split.pieces,
      .part_stride = memory.at->part_bytes / static_cast<std::int64_t>(sizeof(T)),
      .panel_rows = memory.at->rows,
      .first = first,
      .rows = end - first,
      .dim = run_.problem.qk_dim,
      .factor = static_cast<T>(run_.stored_factor()),
      .to = rows_of<Rows>(*run_.tensors.dq, run_.batch_entry(unit.sequence), unit.head, own.q_begin + first),
      .staging = run_.scratch<T>(worker, run_.backward.scratch.staging)});
}

template <class T>
std::int64_t WaveQueries<T>::shift_of(const BackwardWave& wave, const KeyTask& task, int workers, int worker) const {
  if (workers * wave.largest_unit > run_.backward.wave_bytes) return 0;
  std::int64_t place = run_.backward.wave_bytes;
  for_queries(run_, {wave, 0}, task, [&](const QueryUnit& unit) { place = std::min(place, unit.offset); });
  return worker * wave.largest_unit - place;
}

template <class T>
void WaveQueries<T>::prepare(const TaskQueries& queries, const KeyTask& task) const {
  for_queries(run_, queries, task, [&](const QueryUnit& unit) {
    prepare(unit, run_.memory_of(unit, queries.shift), 0, run_.sequence(unit.sequence).q_len);
  });
}

template <class T>
void WaveQueries<T>::store(const TaskQueries& queries, const KeyTask& task, int worker) const {
  for_queries(run_, queries, task, [&](const QueryUnit& unit) {
    store(unit, run_.memory_of(unit, queries.shift), 0, run_.sequence(unit.sequence).q_len, worker);
  });
}

template <class T>
void WaveQueries<T>::prepare(const BackwardWave& wave, int workers) {
  for_blocks_of_rows(run_, wave, workers, [&](const QueryUnit& unit, std::int64_t first, std::int64_t end, int) {
    prepare(unit, run_.memory_of(unit), first, end);
  });
  if (!run_.tensors.d_sinks) return;
  for (const QueryUnit& unit : wave.queries) {
    sinks_[static_cast<std::size_t>(unit.head)] += sink_gradient(rows_of_queries(unit), run_.memory_of(unit));
  }
}

template <class T>
void WaveQueries<T>::store(const BackwardWave& wave, int workers) const {
  if (run_.split.q_broadcasts) return store_broadcast(wave, workers);
  for_blocks_of_rows(run_, wave, workers, [&](const QueryUnit& unit, std::int64_t first, std::int64_t end, int worker) {
    store(unit, run_.memory_of(unit), first, end, worker);
  });
}

template <class T>
void WaveQueries<T>::store_broadcast(const BackwardWave& wave, int workers) const {
  base::parallel_tasks(workers, run_.problem.q_heads * run_.problem.q_rows, [&](int, std::int64_t task) {
    const std::int64_t head = task / run_.problem.q_rows, row = task % run_.problem.q_rows;
    std::vector<double> sum(static_cast<std::size_t>(run_.problem.qk_dim));
    for (std::int64_t index = 0; index < run_.problem.batch; ++index) {
      const std::int64_t rows = run_.sequence(index).q_len;
      if (row >= rows) continue;
      const QueryMemory memory = run_.memory_of(run_.backward.schedule.query_unit(wave, index, head));
      for (std::int64_t piece = 0; piece < run_.split.pieces; ++piece) {
        add_panel_row(memory.get<const T>(memory.at->dq + piece * memory.at->part_bytes), memory.at->rows, row, sum);
      }
    }
    const Rows to = rows_of<Rows>(*run_.tensors.dq, 0, head, row);
    for (std::int64_t d = 0; d < run_.problem.qk_dim; ++d) {
      base::store_element(to.data, to.dtype, d, run_.stored_factor() * sum[static_cast<std::size_t>(d)]);
    }
  });
}

template class WaveQueries<float>;
template class WaveQueries<double>;

}  // namespace heddle::cpu
