// The CPU backend's backward: packs queries, then runs tasks of tiles of keys on all threads, then adds up dq; or each
// task does all three for its own queries.
#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "backend/backends.h"
#include "base/parallel.h"
#include "base/store.h"
#include "families/cpu/capture_scatter.h"
#include "families/cpu/cpu_backward_bricks.h"
#include "families/cpu/cpu_backward_run.h"
#include "families/cpu/cpu_backward_step.h"
#include "families/cpu/cpu_backward_unread.h"
#include "families/cpu/cpu_backward_wave.h"
#include "families/cpu/cpu_choices.h"
#include "families/cpu/cpu_facts.h"
#include "families/cpu/gradient_sums.h"
#include "families/cpu/progress.h"
#include "families/cpu/tensor_rows.h"

namespace heddle::cpu {
namespace {

/// A launch of fewer multiply-adds is over before a second thread would have begun.
constexpr std::int64_t kSerialWork = std::int64_t{1} << 20, kBrickSerialWork = std::int64_t{1} << 22;

int workers_for(const CpuBackward& backward, const BackwardWave& wave) {
  std::int64_t scores = 0;
  for (const std::vector<KeyTask>& lane : wave.lanes) {
    for (const KeyTask& task : lane) scores += task.cost;
  }
  const std::int64_t work = scores * (backward.problem.qk_dim + backward.problem.v_dim);
  return work < (backward.split.bricks() ? kBrickSerialWork : kSerialWork) ? 1 : backward.plan.threads;
}

/// The workers that run tasks of keys, and so need registers: others pack queries.
std::int64_t workers_in_tasks(int workers, const BackwardWave& wave) {
  return std::min<std::int64_t>(workers, std::max<std::int64_t>(std::ssize(wave.lanes), 1));
}

/// One launch: what the workers share.
template <class T>
class BackwardLaunch {
 public:
  BackwardLaunch(const CpuBackward& backward, const backend::RunArguments& arguments)
      : run_(backward, arguments), bindings_(*arguments.bindings), queries_(run_), sums_(run_.split, run_.sums) {
    for (BackwardWorkerMods& mods : run_.memory.mods) mods.bind(bindings_);
  }

  void run() {
    sums_.clear();
    clear_unread(run_.problem, run_.tensors);
    for (std::size_t i = 0; i < run_.backward.waves.size(); ++i) {
      run(run_.backward.waves[i], static_cast<std::int64_t>(i));
    }
    if (run_.tensors.d_sinks) base::store_row_major(queries_.sinks().data(), *run_.tensors.d_sinks);
    sums_.store(run_.tensors);
  }

 private:
  void run(const BackwardWave& wave, std::int64_t index) {
    const int workers = workers_for(run_.backward, wave);
    const std::int64_t in_tasks = workers_in_tasks(workers, wave);
    while (std::ssize(run_.memory.mods) < in_tasks) {
      run_.memory.mods.emplace_back(run_.backward.programs).bind(bindings_);
    }
    if (std::ssize(reads()) < in_tasks) reads().resize(static_cast<std::size_t>(in_tasks));
    const bool by_tasks = queries_.by_tasks(wave, workers);
    if (!by_tasks) queries_.prepare(wave, workers);
    std::int64_t tiles = 0;
    for (const std::vector<KeyTask>& lane : wave.lanes) {
      for (const KeyTask& task : lane)
        tiles += (task.end_tile - task.first_tile) * std::ssize(wave.units[static_cast<std::size_t>(task.unit)]);
    }
    Progress progress(run_.options.progress, tiles, index, run_.backward.schedule.waves());
    base::parallel_tasks(workers, std::ssize(wave.lanes), [&](int worker, std::int64_t lane) {
      for (const KeyTask& task : wave.lanes[static_cast<std::size_t>(lane)]) {
        const TaskQueries queries{wave, by_tasks ? queries_.shift_of(wave, task, workers, worker) : 0};
        if (by_tasks) queries_.prepare(queries, task);
        run_task(queries, task, lane, worker, progress);
        if (by_tasks && run_.tensors.dq) queries_.store(queries, task, worker);
      }
    });
    if (run_.tensors.dq && !by_tasks) queries_.store(wave, workers);
  }

  // Tasks.

  struct KeyMemory {
    T *k_columns, *v_columns, *k_rows, *dk, *dv, *staging;
    BrickOperands bricks;
    std::uint8_t k_flags[plan::kWideBackwardKeys / plan::kPanel];
  };
  KeyMemory key_memory(int worker) const {
    return {run_.scratch<T>(worker, run_.backward.scratch.k_columns),
            run_.scratch<T>(worker, run_.backward.scratch.v_columns),
            run_.scratch<T>(worker, run_.backward.scratch.k_rows),
            run_.scratch<T>(worker, run_.backward.scratch.dk),
            run_.scratch<T>(worker, run_.backward.scratch.dv),
            run_.scratch<T>(worker, run_.backward.scratch.staging),
            brick_keys(run_, worker),
            {}};
  }

  void run_task(const TaskQueries& queries, const KeyTask& task, std::int64_t lane, int worker, Progress& progress) {
    for (const KeyGroup& group : queries.wave.units[static_cast<std::size_t>(task.unit)]) {
      for (std::int64_t tile = task.first_tile; tile < task.end_tile; ++tile) {
        const std::int64_t first = tile * run_.split.tile_keys;
        if (first < group.keys) run_key_tile(queries, group, task.piece, first, lane, worker);
        progress.add_one();  // a task may be all keys of a head: seconds without a Ctrl-C
      }
    }
  }

  /// dk and dv of the tile of keys at `first`. What broadcasts over the batch is packed and stored once.
  void run_key_tile(const TaskQueries& queries, const KeyGroup& group, std::int64_t piece, std::int64_t first,
                    std::int64_t lane, int worker) {
    KeyMemory memory = key_memory(worker);
    const bool several = group.sequences.size() > 1;
    const bool k_shared = several && run_.tensors.k.shape[0] == 1, v_shared = several && run_.tensors.v.shape[0] == 1;
    const std::int64_t longest = std::min(run_.split.tile_keys, group.keys - first);
    bool begun = false;
    for (const std::int64_t index : group.sequences) {
      const std::int64_t keys = std::min(run_.split.tile_keys, run_.sequence(index).kv_len - first);
      if (keys <= 0) continue;
      if (!begun || !k_shared) pack_keys(index, group.kv_head, first, k_shared ? longest : keys, memory);
      if (!begun || !v_shared) pack_values(index, group.kv_head, first, v_shared ? longest : keys, memory);
      begun = true;
      for (std::int64_t g = 0; g < run_.problem.group(); ++g) {
        run_head(queries, index, group.kv_head * run_.problem.group() + g, piece, first, keys, lane, worker, memory);
      }
      if (!k_shared)
        store_keys(run_.tensors.dk, memory.dk, run_.problem.qk_dim, index, group.kv_head, first, keys, memory);
      if (!v_shared)
        store_keys(run_.tensors.dv, memory.dv, run_.problem.v_dim, index, group.kv_head, first, keys, memory);
    }
    const std::int64_t any = group.sequences.front();
    if (k_shared)
      store_keys(run_.tensors.dk, memory.dk, run_.problem.qk_dim, any, group.kv_head, first, longest, memory);
    if (v_shared)
      store_keys(run_.tensors.dv, memory.dv, run_.problem.v_dim, any, group.kv_head, first, longest, memory);
  }

  void pack_keys(std::int64_t index, std::int64_t kv_head, std::int64_t first, std::int64_t keys,
                 KeyMemory& memory) const {
    const ConstRows from =
        rows_of<ConstRows>(run_.tensors.k, run_.batch_entry(index), kv_head, run_.sequence(index).kv_begin + first);
    if (run_.split.bricks()) return pack_brick_keys(run_, from, keys, memory.bricks, memory.k_flags);
    pack(PackKeys<T>{.from = from,
                     .begin = 0,
                     .end = keys,
                     .dim = run_.problem.qk_dim,
                     .panels = memory.k_columns,
                     .staging = memory.staging});
    pack(PackValues<T>{.from = from,
                       .begin = 0,
                       .end = keys,
                       .dim = run_.problem.qk_dim,
                       .keys = run_.split.tile_keys,
                       .panels = memory.k_rows,
                       .flags = memory.k_flags});
    const std::int64_t multiplied = plan::round_up(keys, kColumnUnit);
    clear_rows(memory.k_rows, run_.problem.qk_dim, keys, multiplied);
    clear_rows(memory.dk, run_.problem.qk_dim, 0, multiplied);
  }

  void pack_values(std::int64_t index, std::int64_t kv_head, std::int64_t first, std::int64_t keys,
                   KeyMemory& memory) const {
    const ConstRows from =
        rows_of<ConstRows>(run_.tensors.v, run_.batch_entry(index), kv_head, run_.sequence(index).kv_begin + first);
    if (run_.split.bricks()) return pack_brick_values(run_, from, keys, memory.bricks);
    pack(PackKeys<T>{.from = from,
                     .begin = 0,
                     .end = keys,
                     .dim = run_.problem.v_dim,
                     .panels = memory.v_columns,
                     .staging = memory.staging});
    clear_rows(memory.dv, run_.problem.v_dim, 0, plan::round_up(keys, kColumnUnit));
  }

  /// Rows [first, end) of a tile's panels become 0. A step multiplies whole groups of kColumnUnit keys, and no more:
  /// with few keys a whole tile would be most of the call's memory.
  void clear_rows(T* panels, std::int64_t dim, std::int64_t first, std::int64_t end) const {
    for (std::int64_t d = 0; d < dim; d += plan::kPanel) {
      T* panel = panels + d * run_.split.tile_keys;
      std::fill(panel + first * plan::kPanel, panel + end * plan::kPanel, T(0));
    }
  }

  void store_keys(const std::optional<TensorView>& to, T* from, std::int64_t dim, std::int64_t index,
                  std::int64_t kv_head, std::int64_t first, std::int64_t keys, const KeyMemory& memory) const {
    if (!to) return;
    if constexpr (std::is_same_v<T, float>) {
      if (run_.split.bricks()) {
        const float* transposed = from == memory.dk ? memory.bricks.dk : memory.bricks.dv;
        transpose({.from = transposed, .dim = dim, .keys = keys, .tile_keys = run_.split.tile_keys}, from);
      }
    }
    store_panels(StorePanels<T>{
        .from = from,
        .parts = 1,
        .part_stride = 0,
        .panel_rows = run_.split.tile_keys,
        .first = 0,
        .rows = keys,
        .dim = dim,
        .factor = static_cast<T>(from == memory.dk ? run_.stored_factor() : 1.0),
        .to = rows_of<Rows>(*to, run_.batch_entry(index), kv_head, run_.sequence(index).kv_begin + first),
        .staging = memory.staging});
  }

  /// All steps of a head's queries against the tile of keys.
  void run_head(const TaskQueries& unit, std::int64_t index, std::int64_t head, std::int64_t piece, std::int64_t first,
                std::int64_t keys, std::int64_t lane, int worker, const KeyMemory& memory) {
    const QueryMemory queries = run_.memory_of(run_.backward.schedule.query_unit(unit.wave, index, head), unit.shift);
    BackwardWorkerMods& mods = run_.memory.mods[static_cast<std::size_t>(worker)];
    BackwardStep<T> step = head_step(index, head, first, memory);
    set_reads(mods, worker, step);
    step.slope = mods.slope();
    step.weight = mods.mods().weight();
    const StepBuffers<T> buffers = step_buffers(worker);
    const std::int64_t block = run_.backward.schedule.block_keys();
    for (const QueryTile& tile : run_.backward.schedule.tiles(index)) {
      const RowRuns runs =
          run_.backward.schedule.runs(index, head, tile.q_block).from(static_cast<std::int32_t>(first / block));
      auto run = runs.begin();
      bool there = false;
      for (; run != runs.end() && run->begin * block < first + keys; ++run) {
        if (!std::exchange(there, true)) set_queries(step, queries, index, piece, tile);
        step.begin = std::max(run->begin * block - first, std::int64_t{0});
        step.end = std::min(run->end * block - first, keys);
        step.mod = run->kind == RunKind::full ? mods.mods().full() : mods.mods().partial();
        run_step(step, queries, piece, memory, buffers, worker);
        add_reads(step, mods, lane, worker);
      }
    }
  }

  void run_step(const BackwardStep<T>& step, const QueryMemory& queries, std::int64_t piece, const KeyMemory& memory,
                const StepBuffers<T>& buffers, int worker) const {
    if constexpr (std::is_same_v<T, float>) {
      if (run_.split.bricks()) return run_brick_step(run_, step, queries, piece, memory.bricks, buffers, worker);
    }
    cpu::step(step, buffers);
  }

  BackwardStep<T> head_step(std::int64_t index, std::int64_t head, std::int64_t first, const KeyMemory& memory) const {
    const std::int64_t kv_head = head / run_.problem.group();
    BackwardStep<T> step{};
    step.at = {.b = static_cast<std::int32_t>(index),
               .h = static_cast<std::int32_t>(head),
               .sequence = run_.sequence(index),
               .kv_first = first};
    step.qk_dim = run_.problem.qk_dim;
    step.v_dim = run_.problem.v_dim;
    step.normalizer = run_.problem.normalizer;
    step.keys = {.k_columns = memory.k_columns,
                 .v_columns = memory.v_columns,
                 .k_rows = memory.k_rows,
                 .dk = run_.tensors.dk ? memory.dk : nullptr,
                 .dv = run_.tensors.dv ? memory.dv : nullptr,
                 .tile_keys = run_.split.tile_keys,
                 .non_finite = std::ranges::any_of(memory.k_flags, [](std::uint8_t f) { return f != 0; })};
    const double descales =
        element_or_one(run_.options.q_descale, index, head) * element_or_one(run_.options.k_descale, index, kv_head);
    step.score_factor = static_cast<T>(run_.problem.scale * descales);
    step.gradient_factor = run_.split.bricks() ? static_cast<T>(descales) : step.score_factor;
    step.value_factor = static_cast<T>(element_or_one(run_.options.v_descale, index, kv_head));
    if (run_.split.bricks()) step.column_unit = kBrickDepth;
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
    const bool softmax = run_.problem.normalizer == Normalizer::softmax;
    step.queries = {
        .q = memory.get<T>(memory.at->q) + row,
        .d_o = memory.get<T>(memory.at->d_o) + row,
        .dq = run_.tensors.dq ? memory.get<T>(memory.at->dq + piece * memory.at->part_bytes) + row : nullptr,
        .panel_rows = run_.sequence(index).q_len,
        .lse = softmax ? memory.get<T>(memory.at->lse) + tile.q_first : nullptr,
        .lse_rest = run_.problem.with_lse_rest ? memory.get<T>(memory.at->lse_rest) + tile.q_first : nullptr,
        .delta = softmax ? memory.get<T>(memory.at->delta) + tile.q_first : nullptr,
        .q_non_finite = flagged(memory.at->q_flags),
        .d_o_non_finite = flagged(memory.at->d_o_flags)};
  }

  StepBuffers<T> step_buffers(int worker) const {
    const auto at = [&](std::int64_t offset) { return run_.scratch<T>(worker, offset); };
    const bool by_score = std::ranges::any_of(run_.backward.programs.reads, &ReadProgram::by_score);
    return {.scores = at(run_.backward.scratch.scores),
            .slopes = at(run_.backward.scratch.slopes),
            .weights = at(run_.backward.scratch.weights),
            .d_p = at(run_.backward.scratch.d_p),
            .factors = at(run_.backward.scratch.factors),
            .attending = run_.scratch<std::uint8_t>(worker, run_.backward.scratch.attending),
            .finite = at(run_.backward.scratch.finite),
            .special = run_.scratch<std::uint8_t>(worker, run_.backward.scratch.special),
            .score_copy = by_score ? at(run_.backward.scratch.score_copy) : nullptr};
  }

  // Reads.

  ReadsOfWorkers<T>& reads() const { return std::get<ReadsOfWorkers<T>>(run_.memory.reads); }
  void set_reads(BackwardWorkerMods& mods, int worker, BackwardStep<T>& step) const {
    std::vector<StepRead<T>>& reads = this->reads()[static_cast<std::size_t>(worker)];
    const std::size_t count = run_.backward.programs.reads.size();
    reads.resize(3 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t offset =
          run_.backward.scratch.reads + static_cast<std::int64_t>(i) * run_.backward.scratch.read_bytes;
      reads[i] = {mods.read_slope(i), run_.backward.programs.reads[i].of_weight, run_.scratch<T>(worker, offset)};
    }
    const std::span<StepRead<T>> all = reads;
    step.reads = all.first(count);
    step.part_reads = all.last(2 * count);
  }

  void add_reads(const BackwardStep<T>& step, BackwardWorkerMods& mods, std::int64_t lane, int worker) const {
    const std::int64_t first = step.begin / step.column_unit * step.column_unit;
    for (std::int64_t column = 0; column < step.end - first; column += plan::kBackwardKeys) {
      TilePosition at = step.at;
      at.kv_first += first + column;
      at.columns = static_cast<int>(std::min(plan::kBackwardKeys, step.end - first - column));
      add_reads(step, mods, at, plan::step_element(step.at.rows, 0, column), lane, worker);
    }
  }
  /// Columns of a step whose first element is `element`.
  void add_reads(const BackwardStep<T>& step, BackwardWorkerMods& mods, const TilePosition& at, std::int64_t element,
                 std::int64_t lane, int worker) const {
    const OffsetBuffers offsets = {run_.scratch<std::int32_t>(worker, run_.backward.scratch.indices),
                                   run_.scratch<std::int64_t>(worker, run_.backward.scratch.offsets)};
    for (std::size_t i = 0; i < step.reads.size(); ++i) {
      const ReadProgram& read = run_.backward.programs.reads[i];
      const T* scores = read.by_score ? run_.scratch<T>(worker, run_.backward.scratch.score_copy) + element : nullptr;
      scatter(read, mods.read_indices(i),
              ReadTile<T>{at, step.reads[i].gradients + element, scores, plan::kScoreStride},
              sums_.view(read.sum, lane), offsets);
    }
  }

  const BackwardRun run_;
  const Bindings& bindings_;
  WaveQueries<T> queries_;
  GradientSums<T> sums_;
};

/// The forward's kernel differs in what it runs and explains alone, but a common class would hold only two lines.
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

  /// Registers stay for the next run.
  std::int64_t held_bytes() const override {
    std::int64_t most = 0;
    for (const BackwardWave& wave : backward_.waves) {
      most = std::max(most, workers_in_tasks(workers_for(backward_, wave), wave));
    }
    return most * static_cast<std::int64_t>(backward_.programs.register_bytes());
  }

  base::JsonTree facts() const override {
    base::JsonTree facts =
        cpu_facts("cpu_backward", backward_.split.bricks(), backward_.problem.precision, backward_.plan.threads);
    facts["recomputed"] = "scores, mods and dP, once for each pair of a query and a key; from the stored lse and o";
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
