// The CPU backend's backward: packs queries, then runs tasks of tiles of keys on all threads, then adds up dq.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "backend/backends.h"
#include "backend/cpu/caps.h"
#include "base/parallel.h"
#include "base/store.h"
#include "families/cpu/capture_scatter.h"
#include "families/cpu/cpu_backward_programs.h"
#include "families/cpu/cpu_backward_queries.h"
#include "families/cpu/cpu_backward_schedule.h"
#include "families/cpu/cpu_backward_step.h"
#include "families/cpu/cpu_choices.h"
#include "families/cpu/gradient_sums.h"
#include "families/cpu/progress.h"
#include "families/cpu/rows_of.h"

namespace heddle::cpu {
namespace {

/// Rows of queries that one task packs, or stores the dq of.
constexpr std::int64_t kRowsAtATime = 8 * plan::kPanel;
/// A launch of fewer multiply-adds is over before a second thread would have begun.
constexpr std::int64_t kSerialWork = std::int64_t{1} << 20;

/// State that all runs of a plan share. Not copied: the schedule points into it.
struct CpuBackward {
  problem::AttentionProblem problem;
  plan::Plan plan;
  const plan::CpuBackwardSplit& split = plan.part<plan::CpuBackwardSplit>();
  BackwardPrograms programs;
  plan::CpuBackwardScratch scratch;
  std::int64_t sum_bytes, wave_bytes;  // of the workspace, in this order; the workers' scratch follows
  BackwardSchedule schedule;
  std::optional<BackwardWave> only_wave;  // where there is one

  explicit CpuBackward(const backend::PrepareArguments& arguments)
      : problem(arguments.problem),
        plan(arguments.plan),
        programs(problem, split),
        scratch(plan::cpu_backward_scratch(problem, split)),
        sum_bytes(split.lanes * plan::cpu_backward_lane_bytes(split) + plan::cpu_backward_owned_bytes(problem, split)),
        wave_bytes(plan::cpu_backward_wave_bytes(problem, split)),
        schedule(problem, split, arguments.block_mask) {
    if (schedule.waves() == 1) only_wave = schedule.wave(0);
  }
  CpuBackward(const CpuBackward&) = delete;
  CpuBackward& operator=(const CpuBackward&) = delete;
};

/// sum += row `row` of panels of `rows` rows.
template <class T>
void add_panel_row(const T* panels, std::int64_t rows, std::int64_t row, std::vector<double>& sum) {
  for (std::int64_t d = 0; d < std::ssize(sum); ++d) {
    const std::int64_t panel = d / plan::kPanel * plan::kPanel;
    sum[static_cast<std::size_t>(d)] += static_cast<double>(panels[panel * rows + row * plan::kPanel + (d - panel)]);
  }
}

void clear_rows(const TensorView& to, std::int64_t entry, std::int64_t begin, std::int64_t end) {
  const std::size_t bytes = static_cast<std::size_t>(to.shape[3] * size_of(to.dtype));
  for (std::int64_t head = 0; head < to.shape[1]; ++head) {
    for (std::int64_t row = begin; row < end; ++row) std::memset(rows_of<Rows>(to, entry, head, row).data, 0, bytes);
  }
}

/// Zeros the rows of a gradient outside of all sequences; if one entry serves all sequences, the rows past the longest.
void clear_padding(const std::optional<TensorView>& gradient, const problem::AttentionProblem& problem,
                   std::int64_t Sequence::*length) {
  if (!gradient) return;
  const TensorView& to = *gradient;
  for (std::int64_t entry = 0; entry < to.shape[0]; ++entry) {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < problem.batch; ++i) {
      const Sequence& sequence = problem.sequences[static_cast<std::size_t>(i)];
      if (to.shape[0] == 1 || i == entry) longest = std::max(longest, sequence.*length);
    }
    clear_rows(to, entry, longest, to.shape[2]);
  }
}

/// Rows of packed keys that do not count: those behind a sequence's kv_len.
void clear_gaps(const std::optional<TensorView>& gradient, const problem::AttentionProblem& problem) {
  if (!gradient) return;
  std::int64_t end = gradient->shape[2];
  for (auto sequence = problem.sequences.rbegin(); sequence != problem.sequences.rend(); ++sequence) {
    clear_rows(*gradient, 0, sequence->kv_begin + sequence->kv_len, end);
    end = sequence->kv_begin;
  }
}

void clear_unread(const problem::AttentionProblem& problem, const BackwardTensors& tensors) {
  if (problem.packed) {
    clear_gaps(tensors.dk, problem);
    clear_gaps(tensors.dv, problem);
    return;
  }
  clear_padding(tensors.dq, problem, &Sequence::q_len);
  clear_padding(tensors.dk, problem, &Sequence::kv_len);
  clear_padding(tensors.dv, problem, &Sequence::kv_len);
}

/// One launch: what the workers share.
template <class T>
class BackwardLaunch {
 public:
  BackwardLaunch(const CpuBackward& backward, const backend::RunArguments& run)
      : backward_(backward),
        problem_(backward.problem),
        split_(backward.split),
        tensors_(*run.backward),
        options_(*run.options),
        bindings_(*run.bindings),
        scratch_(backward.scratch),
        sums_(split_, static_cast<std::byte*>(run.workspace)),
        waves_(static_cast<std::byte*>(run.workspace) + backward.sum_bytes),
        workers_(waves_ + backward.wave_bytes),
        sinks_(static_cast<std::size_t>(problem_.wanted.sinks ? problem_.q_heads : 0)) {
    for (const Sequence& sequence : problem_.sequences) {
      memory_.push_back(plan::cpu_backward_queries(problem_, split_, sequence.q_len));
    }
  }

  void run() {
    sums_.clear();
    clear_unread(problem_, tensors_);
    if (backward_.only_wave) {
      run(*backward_.only_wave, 0);
    } else {
      for (std::int64_t i = 0; i < backward_.schedule.waves(); ++i) run(backward_.schedule.wave(i), i);
    }
    if (tensors_.d_sinks) base::store_row_major(sinks_.data(), *tensors_.d_sinks);
    sums_.store(tensors_);
  }

 private:
  void run(const BackwardWave& wave, std::int64_t index) {
    const int workers = workers_for(wave);
    while (std::ssize(mods_) < workers) mods_.emplace_back(backward_.programs, bindings_);
    prepare_wave(wave, workers);
    Progress progress(options_.progress, std::ssize(wave.lanes), index, backward_.schedule.waves());
    base::parallel_tasks(workers, std::ssize(wave.lanes), [&](int worker, std::int64_t lane) {
      for (const KeyTask& task : wave.lanes[static_cast<std::size_t>(lane)]) run_task(wave, task, lane, worker);
      progress.add_one();
    });
    if (tensors_.dq) store_queries(wave, workers);
  }

  int workers_for(const BackwardWave& wave) const {
    std::int64_t scores = 0;
    for (const std::vector<KeyTask>& lane : wave.lanes) {
      for (const KeyTask& task : lane) scores += task.cost;
    }
    if (scores * (problem_.qk_dim + problem_.v_dim) < kSerialWork) return 1;
    return backward_.plan.threads;
  }

  const Sequence& sequence(std::int64_t index) const { return problem_.sequences[static_cast<std::size_t>(index)]; }
  std::int64_t batch_entry(std::int64_t index) const { return problem_.packed ? 0 : index; }
  std::byte* scratch(int worker) const { return workers_ + worker * scratch_.bytes; }
  template <class U>
  U* scratch(int worker, std::int64_t offset) const {
    return reinterpret_cast<U*>(scratch(worker) + offset);
  }
  QueryMemory memory_of(const QueryUnit& unit) const {
    return {waves_ + unit.offset, &memory_[static_cast<std::size_t>(unit.sequence)]};
  }

  // Queries.

  QueryRows<T> rows_of_queries(const QueryUnit& unit) const {
    const Sequence& own = sequence(unit.sequence);
    const std::int64_t entry = batch_entry(unit.sequence);
    const auto rows = [&](const ConstTensorView& view) {
      return rows_of<ConstRows>(view, entry, unit.head, own.q_begin);
    };
    const auto numbers = [&](const ConstTensorView& view) {
      const std::int64_t first = entry * view.strides[0] + unit.head * view.strides[1] + own.q_begin * view.strides[2];
      return static_cast<const T*>(view.data) + first;
    };
    QueryRows<T> all{.q = rows(tensors_.q),
                     .d_o = rows(tensors_.d_o),
                     .o = rows(tensors_.o),
                     .qk_dim = problem_.qk_dim,
                     .v_dim = problem_.v_dim,
                     .q_len = own.q_len};
    if (tensors_.lse) all.lse = numbers(*tensors_.lse);
    if (tensors_.lse_rest) all.lse_rest = numbers(*tensors_.lse_rest);
    if (tensors_.d_lse) all.d_lse = numbers(*tensors_.d_lse);
    if (options_.sinks) {
      all.sink = static_cast<const T*>(options_.sinks->data) + unit.head * options_.sinks->strides[0];
    }
    return all;
  }

  void prepare_wave(const BackwardWave& wave, int workers) {
    for_blocks_of_rows(wave, workers, [&](const QueryUnit& unit, std::int64_t first, std::int64_t end, int worker) {
      const QueryMemory memory = memory_of(unit);
      prepare_queries(rows_of_queries(unit), memory, first, end, scratch<double>(worker, scratch_.staging));
      const std::int64_t columns = plan::round_up(problem_.qk_dim, plan::kPanel);
      for (std::int64_t piece = 0; tensors_.dq && piece < split_.pieces; ++piece) {
        T* dq = memory.get<T>(memory.at->dq + piece * memory.at->part_bytes);
        for (std::int64_t d = 0; d < columns; d += plan::kPanel) {
          std::fill_n(dq + d * sequence(unit.sequence).q_len + first * plan::kPanel, (end - first) * plan::kPanel,
                      T(0));
        }
      }
    });
    if (!tensors_.d_sinks) return;
    for (const QueryUnit& unit : wave.queries) {
      sinks_[static_cast<std::size_t>(unit.head)] += sink_gradient(rows_of_queries(unit), memory_of(unit));
    }
  }

  template <class F>
  void for_blocks_of_rows(const BackwardWave& wave, int workers, F&& f) {
    struct Block {
      const QueryUnit* unit;
      std::int64_t first;
    };
    std::vector<Block> blocks;
    for (const QueryUnit& unit : wave.queries) {
      for (std::int64_t first = 0; first < sequence(unit.sequence).q_len; first += kRowsAtATime) {
        blocks.push_back({&unit, first});
      }
    }
    base::parallel_tasks(workers, std::ssize(blocks), [&](int worker, std::int64_t index) {
      const auto [unit, first] = blocks[static_cast<std::size_t>(index)];
      f(*unit, first, std::min(sequence(unit->sequence).q_len, first + kRowsAtATime), worker);
    });
  }

  // Tasks.

  struct KeyMemory {
    T *k_columns, *v_columns, *k_rows, *dk, *dv, *staging;
    std::uint8_t k_flags[plan::kBackwardKeys / plan::kPanel], v_flags[plan::kBackwardKeys / plan::kPanel];
  };
  KeyMemory key_memory(int worker) const {
    return {scratch<T>(worker, scratch_.k_columns),
            scratch<T>(worker, scratch_.v_columns),
            scratch<T>(worker, scratch_.k_rows),
            scratch<T>(worker, scratch_.dk),
            scratch<T>(worker, scratch_.dv),
            scratch<T>(worker, scratch_.staging),
            {},
            {}};
  }

  void run_task(const BackwardWave& wave, const KeyTask& task, std::int64_t lane, int worker) {
    for (const KeyGroup& group : wave.units[static_cast<std::size_t>(task.unit)]) {
      for (std::int64_t tile = task.first_tile; tile < task.end_tile; ++tile) {
        const std::int64_t first = tile * plan::kBackwardKeys;
        if (first < group.keys) run_key_tile(wave, group, task.piece, first, lane, worker);
      }
    }
  }

  /// dk and dv of the tile of keys at `first`. What broadcasts over the batch is packed and stored once.
  void run_key_tile(const BackwardWave& wave, const KeyGroup& group, std::int64_t piece, std::int64_t first,
                    std::int64_t lane, int worker) {
    KeyMemory memory = key_memory(worker);
    const bool several = group.sequences.size() > 1;
    const bool k_shared = several && tensors_.k.shape[0] == 1, v_shared = several && tensors_.v.shape[0] == 1;
    const std::int64_t longest = std::min(plan::kBackwardKeys, group.keys - first);
    bool begun = false;
    for (const std::int64_t index : group.sequences) {
      const std::int64_t keys = std::min(plan::kBackwardKeys, sequence(index).kv_len - first);
      if (keys <= 0) continue;
      if (!begun || !k_shared) pack_keys(index, group.kv_head, first, k_shared ? longest : keys, memory);
      if (!begun || !v_shared) pack_values(index, group.kv_head, first, v_shared ? longest : keys, memory);
      begun = true;
      for (std::int64_t g = 0; g < problem_.group(); ++g) {
        run_head(wave, index, group.kv_head * problem_.group() + g, piece, first, keys, lane, worker, memory);
      }
      if (!k_shared) store_keys(tensors_.dk, memory.dk, problem_.qk_dim, index, group.kv_head, first, keys, memory);
      if (!v_shared) store_keys(tensors_.dv, memory.dv, problem_.v_dim, index, group.kv_head, first, keys, memory);
    }
    const std::int64_t any = group.sequences.front();
    if (k_shared) store_keys(tensors_.dk, memory.dk, problem_.qk_dim, any, group.kv_head, first, longest, memory);
    if (v_shared) store_keys(tensors_.dv, memory.dv, problem_.v_dim, any, group.kv_head, first, longest, memory);
  }

  void pack_keys(std::int64_t index, std::int64_t kv_head, std::int64_t first, std::int64_t keys,
                 KeyMemory& memory) const {
    const ConstRows from =
        rows_of<ConstRows>(tensors_.k, batch_entry(index), kv_head, sequence(index).kv_begin + first);
    pack(PackKeys<T>{.from = from,
                     .begin = 0,
                     .end = keys,
                     .dim = problem_.qk_dim,
                     .panels = memory.k_columns,
                     .staging = memory.staging});
    pack(PackValues<T>{.from = from,
                       .begin = 0,
                       .end = keys,
                       .dim = problem_.qk_dim,
                       .keys = plan::kBackwardKeys,
                       .panels = memory.k_rows,
                       .flags = memory.k_flags});
    const std::int64_t columns = plan::round_up(problem_.qk_dim, plan::kPanel);
    clear_rows_behind(memory.k_rows, columns, keys);
    std::fill_n(memory.dk, plan::kBackwardKeys * columns, T(0));
  }

  void pack_values(std::int64_t index, std::int64_t kv_head, std::int64_t first, std::int64_t keys,
                   KeyMemory& memory) const {
    pack(PackKeys<T>{
        .from = rows_of<ConstRows>(tensors_.v, batch_entry(index), kv_head, sequence(index).kv_begin + first),
        .begin = 0,
        .end = keys,
        .dim = problem_.v_dim,
        .panels = memory.v_columns,
        .staging = memory.staging});
    std::fill_n(memory.dv, plan::kBackwardKeys * plan::round_up(problem_.v_dim, plan::kPanel), T(0));
  }

  /// A step multiplies whole groups of 16 keys.
  static void clear_rows_behind(T* panels, std::int64_t columns, std::int64_t keys) {
    for (std::int64_t d = 0; d < columns; d += plan::kPanel) {
      T* panel = panels + d * plan::kBackwardKeys;
      std::fill(panel + keys * plan::kPanel, panel + plan::kBackwardKeys * plan::kPanel, T(0));
    }
  }

  void store_keys(const std::optional<TensorView>& to, const T* from, std::int64_t dim, std::int64_t index,
                  std::int64_t kv_head, std::int64_t first, std::int64_t keys, const KeyMemory& memory) const {
    if (!to) return;
    store_panels(StorePanels<T>{.from = from,
                                .parts = 1,
                                .part_stride = 0,
                                .panel_rows = plan::kBackwardKeys,
                                .first = 0,
                                .rows = keys,
                                .dim = dim,
                                .to = rows_of<Rows>(*to, batch_entry(index), kv_head, sequence(index).kv_begin + first),
                                .staging = memory.staging});
  }

  /// All steps of a head's queries against the tile of keys.
  void run_head(const BackwardWave& wave, std::int64_t index, std::int64_t head, std::int64_t piece, std::int64_t first,
                std::int64_t keys, std::int64_t lane, int worker, const KeyMemory& memory) {
    const QueryMemory queries = memory_of(backward_.schedule.query_unit(wave, index, head));
    BackwardWorkerMods& mods = mods_[static_cast<std::size_t>(worker)];
    std::vector<StepRead<T>> reads = step_reads(mods, worker);
    BackwardStep<T> step = head_step(index, head, first, memory);
    step.reads = reads;
    step.slope = mods.slope();
    step.weight = mods.mods().weight();
    const StepBuffers<T> buffers = step_buffers(worker);
    const std::int64_t block = backward_.schedule.block_keys();
    for (const QueryTile& tile : backward_.schedule.tiles(index)) {
      const std::span<const Run> runs = backward_.schedule.runs(index, head, tile.q_block);
      auto run = std::ranges::partition_point(runs, [&](const Run& r) { return r.end * block <= first; });
      bool there = false;
      for (; run != runs.end() && run->begin * block < first + keys; ++run) {
        if (!std::exchange(there, true)) set_queries(step, queries, index, piece, tile);
        step.begin = std::max(run->begin * block - first, std::int64_t{0});
        step.end = std::min(run->end * block - first, keys);
        step.mod = run->kind == RunKind::full ? mods.mods().full() : mods.mods().partial();
        cpu::step(step, buffers);
        add_reads(step, mods, lane, worker);
      }
    }
  }

  BackwardStep<T> head_step(std::int64_t index, std::int64_t head, std::int64_t first, const KeyMemory& memory) const {
    const std::int64_t kv_head = head / problem_.group();
    BackwardStep<T> step{};
    step.at = {.b = static_cast<std::int32_t>(index),
               .h = static_cast<std::int32_t>(head),
               .sequence = sequence(index),
               .kv_first = first};
    step.qk_dim = problem_.qk_dim;
    step.v_dim = problem_.v_dim;
    step.normalizer = problem_.normalizer;
    step.keys = {.k_columns = memory.k_columns,
                 .v_columns = memory.v_columns,
                 .k_rows = memory.k_rows,
                 .dk = tensors_.dk ? memory.dk : nullptr,
                 .dv = tensors_.dv ? memory.dv : nullptr,
                 .tile_keys = plan::kBackwardKeys,
                 .non_finite = memory.k_flags[0] != 0 || memory.k_flags[1] != 0};
    step.score_factor = static_cast<T>(problem_.scale * element_or_one(options_.q_descale, index, head) *
                                       element_or_one(options_.k_descale, index, kv_head));
    step.value_factor = static_cast<T>(element_or_one(options_.v_descale, index, kv_head));
    return step;
  }

  void set_queries(BackwardStep<T>& step, const QueryMemory& memory, std::int64_t index, std::int64_t piece,
                   const QueryTile& tile) const {
    step.at.q_first = tile.q_first;
    step.at.rows = static_cast<int>(tile.rows);
    const std::int64_t row = tile.q_first * plan::kPanel;
    const auto flagged = [&](std::int64_t offset) {
      const auto* flags = memory.get<const std::uint8_t>(offset);
      const std::int64_t last = (tile.q_first + tile.rows - 1) / plan::kPanel;
      return std::any_of(flags + tile.q_first / plan::kPanel, flags + last + 1, [](std::uint8_t f) { return f != 0; });
    };
    const bool softmax = problem_.normalizer == Normalizer::softmax;
    step.queries = {.q = memory.get<T>(memory.at->q) + row,
                    .d_o = memory.get<T>(memory.at->d_o) + row,
                    .dq = tensors_.dq ? memory.get<T>(memory.at->dq + piece * memory.at->part_bytes) + row : nullptr,
                    .panel_rows = sequence(index).q_len,
                    .lse = softmax ? memory.get<T>(memory.at->lse) + tile.q_first : nullptr,
                    .lse_rest = problem_.with_lse_rest ? memory.get<T>(memory.at->lse_rest) + tile.q_first : nullptr,
                    .delta = softmax ? memory.get<T>(memory.at->delta) + tile.q_first : nullptr,
                    .q_non_finite = flagged(memory.at->q_flags),
                    .d_o_non_finite = flagged(memory.at->d_o_flags)};
  }

  StepBuffers<T> step_buffers(int worker) const {
    const auto at = [&](std::int64_t offset) { return scratch<T>(worker, offset); };
    const bool by_score = std::ranges::any_of(backward_.programs.reads, &ReadProgram::by_score);
    return {.scores = at(scratch_.scores),
            .slopes = at(scratch_.slopes),
            .weights = at(scratch_.weights),
            .d_p = at(scratch_.d_p),
            .factors = at(scratch_.factors),
            .attending = scratch<std::uint8_t>(worker, scratch_.attending),
            .finite = at(scratch_.finite),
            .special = scratch<std::uint8_t>(worker, scratch_.special),
            .score_copy = by_score ? at(scratch_.score_copy) : nullptr};
  }

  // Reads.

  std::vector<StepRead<T>> step_reads(BackwardWorkerMods& mods, int worker) const {
    std::vector<StepRead<T>> reads;
    for (std::size_t i = 0; i < backward_.programs.reads.size(); ++i) {
      const std::int64_t offset = scratch_.reads + static_cast<std::int64_t>(i) * scratch_.read_bytes;
      reads.push_back({mods.read_slope(i), backward_.programs.reads[i].of_weight, scratch<T>(worker, offset)});
    }
    return reads;
  }

  void add_reads(const BackwardStep<T>& step, BackwardWorkerMods& mods, std::int64_t lane, int worker) const {
    const std::int64_t first = step.begin / kColumnUnit * kColumnUnit;
    TilePosition at = step.at;
    at.kv_first += first;
    at.columns = static_cast<int>(step.end - first);
    const PlaceBuffers places = {scratch<std::int32_t>(worker, scratch_.indices),
                                 scratch<std::int64_t>(worker, scratch_.places)};
    for (std::size_t i = 0; i < step.reads.size(); ++i) {
      const ReadProgram& read = backward_.programs.reads[i];
      const T* scores = read.by_score ? scratch<T>(worker, scratch_.score_copy) : nullptr;
      scatter(read, mods.read_indices(i), ReadTile<T>{at, step.reads[i].gradients, scores, plan::kScoreStride},
              sums_.view(read.sum, lane), places);
    }
  }

  // dq.

  /// The pieces of each row in order; where q broadcasts over the batch, of all sequences in order.
  void store_queries(const BackwardWave& wave, int workers) {
    if (split_.q_broadcasts) return store_broadcast_queries(wave, workers);
    for_blocks_of_rows(wave, workers, [&](const QueryUnit& unit, std::int64_t first, std::int64_t end, int worker) {
      const QueryMemory memory = memory_of(unit);
      const Sequence& own = sequence(unit.sequence);
      store_panels(
          StorePanels<T>{.from = memory.get<T>(memory.at->dq),
                         .parts = split_.pieces,
                         .part_stride = memory.at->part_bytes / static_cast<std::int64_t>(sizeof(T)),
                         .panel_rows = own.q_len,
                         .first = first,
                         .rows = end - first,
                         .dim = problem_.qk_dim,
                         .to = rows_of<Rows>(*tensors_.dq, batch_entry(unit.sequence), unit.head, own.q_begin + first),
                         .staging = scratch<T>(worker, scratch_.staging)});
    });
  }

  void store_broadcast_queries(const BackwardWave& wave, int workers) {
    base::parallel_tasks(workers, problem_.q_heads * problem_.q_rows, [&](int, std::int64_t task) {
      const std::int64_t head = task / problem_.q_rows, row = task % problem_.q_rows;
      std::vector<double> sum(static_cast<std::size_t>(problem_.qk_dim));
      for (std::int64_t index = 0; index < problem_.batch; ++index) {
        const std::int64_t rows = sequence(index).q_len;
        if (row >= rows) continue;
        const QueryMemory memory = memory_of(backward_.schedule.query_unit(wave, index, head));
        for (std::int64_t piece = 0; piece < split_.pieces; ++piece) {
          add_panel_row(memory.get<const T>(memory.at->dq + piece * memory.at->part_bytes), rows, row, sum);
        }
      }
      const Rows to = rows_of<Rows>(*tensors_.dq, 0, head, row);
      for (std::int64_t d = 0; d < problem_.qk_dim; ++d) {
        base::store_element(to.data, to.dtype, d, sum[static_cast<std::size_t>(d)]);
      }
    });
  }

  const CpuBackward& backward_;
  const problem::AttentionProblem& problem_;
  const plan::CpuBackwardSplit& split_;
  const BackwardTensors& tensors_;
  const AttentionOptions& options_;
  const Bindings& bindings_;
  const plan::CpuBackwardScratch& scratch_;
  GradientSums<T> sums_;
  std::byte *waves_, *workers_;
  std::vector<double> sinks_;
  std::vector<plan::CpuBackwardQueries> memory_;  // of each sequence
  std::vector<BackwardWorkerMods> mods_;
};

class CpuBackwardKernel final : public backend::Kernel {
 public:
  explicit CpuBackwardKernel(const backend::PrepareArguments& arguments) : backward_(arguments) {}

  void launch(const backend::RunArguments& arguments) const override {
    if (backward_.problem.precision == expr::Precision::f64) {
      BackwardLaunch<double>(backward_, arguments).run();
    } else {
      BackwardLaunch<float>(backward_, arguments).run();
    }
  }

  nlohmann::ordered_json facts() const override {
    const bool f64 = backward_.problem.precision == expr::Precision::f64;
    nlohmann::ordered_json facts = {
        {"summary",
         fmt::format("{} in {}, {} threads", backward_.plan.family, f64 ? "f64" : "f32", backward_.plan.threads)},
        {"simd", cpu_caps().simd_target},
        {"recomputed", "scores, mods and dP, once for each pair of a query and a key; from the stored lse and o"}};
    for (const auto& [title, lines] : backward_.programs.text()) facts[title] = lines;
    return facts;
  }

 private:
  CpuBackward backward_;
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare_backward(const backend::PrepareArguments& arguments) {
  return std::make_unique<CpuBackwardKernel>(arguments);
}

}  // namespace heddle::cpu
