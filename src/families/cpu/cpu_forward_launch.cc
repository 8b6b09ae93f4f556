// The CPU's forward pass: packs keys and values, then attends tile by tile, on all threads.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "base/element.h"
#include "base/parallel.h"
#include "families/cpu/cpu_choices.h"
#include "families/cpu/cpu_facts.h"
#include "families/cpu/cpu_forward_run.h"
#include "families/cpu/progress.h"
#include "families/cpu/target_data.h"
#include "families/cpu/tensor_rows.h"

namespace heddle::cpu {
namespace {

/// A number a query head: of a vector [heads], or of a row of a matrix [batch, heads]. Extents of one serve all.
template <class T>
PerHead<T> per_head(const std::optional<ConstTensorView>& view, std::int64_t batch, std::int64_t head) {
  if (!view) return {};
  const int last = view->rank() - 1;
  const std::int64_t stride = view->shape[last] == 1 ? 0 : view->strides[last];
  const std::int64_t entry = last == 0 || view->shape[0] == 1 ? 0 : batch * view->strides[0];
  return {static_cast<const T*>(view->data) + entry + head * stride, stride};
}

/// One launch: what the workers share.
template <class T>
class Launch {
 public:
  Launch(const CpuForward& forward, const backend::RunArguments& run)
      : forward_(forward),
        problem_(forward.problem),
        run_(run),
        scratch_(forward.scratch),
        pair_bytes_(forward.pair_bytes),
        schedule_(forward.schedule),
        workspace_(static_cast<std::byte*>(run.workspace)),
        lease_(forward.memory.take()),
        memory_(*lease_) {
    for (WorkerMods& mods : memory_.mods) mods.bind(*run.bindings);
  }

  void run() {
    fill_padding();
    for (std::size_t i = 0; i < forward_.waves.size(); ++i) {
      run(forward_.waves[i], forward_.orders[i], static_cast<std::int64_t>(i));
    }
  }

 private:
  void run(const Wave& wave, const WaveOrder& order, std::int64_t index) {
    const int workers = forward_.workers_for(wave);
    while (std::ssize(memory_.mods) < workers) {
      memory_.mods.emplace_back(forward_.programs).bind(*run_.bindings);
    }
    Progress progress(run_.options->progress, std::ssize(wave.tiles), index, schedule_.waves());
    memory_.merged.clear(wave.merges.size());
    memory_.left.begin(wave, order);
    base::parallel_tasks(workers, std::ssize(order.steps), [&](int worker, std::int64_t index_of_step) {
      const Step& step = order.steps[static_cast<std::size_t>(index_of_step)];
      const StepsLeft::Turn turn(memory_.left, step);
      if (step.kind != Step::Kind::tile) return pack_step(wave, order, step, worker);
      attend_step(wave, order, step, worker);
      for (std::int32_t i = 0; i < step.tiles; ++i) progress.add_one();
    });
  }

  const Sequence& sequence(std::int64_t index) const { return problem_.sequences[static_cast<std::size_t>(index)]; }
  std::int64_t batch_entry(std::int64_t index) const { return problem_.packed ? 0 : index; }

  /// The buffers of a step's tile `index`.
  TileBuffers<T> buffers(int worker, std::int64_t index = 0) const {
    std::byte* base = workspace_ + pair_bytes_ + worker * scratch_.bytes;
    std::byte* state = index == 0 ? base : base + scratch_.more_states + (index - 1) * scratch_.state_bytes;
    const auto at = [&](std::int64_t offset) { return reinterpret_cast<T*>(base + offset); };
    const auto kept = [&](std::int64_t offset) { return reinterpret_cast<T*>(state + offset); };
    return {.queries = kept(scratch_.queries),
            .scores = at(scratch_.scores),
            .weights = at(scratch_.weights),
            .accumulators = kept(scratch_.accumulators),
            .row_sums = kept(scratch_.row_sums),
            .row_maxima = kept(scratch_.row_maxima),
            .row_scales = kept(scratch_.row_scales),
            .row_factors = kept(scratch_.row_factors),
            .attending = reinterpret_cast<std::uint64_t*>(base + scratch_.attending),
            .infinite = reinterpret_cast<std::uint64_t*>(base + scratch_.infinite),
            .staging = at(scratch_.staging),
            .chunk_keys = at(scratch_.chunk_keys),
            .chunk_values = at(scratch_.chunk_values),
            .quad_queries = at(scratch_.quad_queries),
            .brick_sums = kept(scratch_.brick_sums),
            .q_stride = scratch_.q_stride,
            .o_stride = scratch_.o_stride};
  }

  void pack_step(const Wave& wave, const WaveOrder& order, const Step& step, int worker) const {
    const bool values = step.kind == Step::Kind::pack_values;
    const PackedUnit& unit = (values ? wave.v_units : wave.k_units)[static_cast<std::size_t>(step.index)];
    const std::int64_t offset = (values ? order.v_offsets : order.k_offsets)[static_cast<std::size_t>(step.index)];
    const std::int64_t first = step.first_key, end = std::min(unit.keys, first + kPackKeys);
    if (forward_.part.bricks()) {
      return pack(PackBricks{.from = keys_of(values ? run_.tensors.v : run_.tensors.k, unit.sequence, unit.kv_head),
                             .begin = first,
                             .end = end,
                             .dim = values ? problem_.v_dim : problem_.qk_dim,
                             .bricks = workspace_ + offset,
                             .flags = values ? v_flags(unit, offset) : nullptr,
                             .rest = values ? RestOfRows{} : rest_of_keys(unit.sequence, unit.kv_head)});
    }
    T* panels = reinterpret_cast<T*>(workspace_ + offset);
    if (values) {
      pack(PackValues<T>{.from = keys_of(run_.tensors.v, unit.sequence, unit.kv_head),
                         .begin = first,
                         .end = end,
                         .dim = problem_.v_dim,
                         .keys = unit.keys,
                         .panels = panels,
                         .flags = v_flags(unit, offset)});
    } else {
      pack(PackKeys<T>{.from = keys_of(run_.tensors.k, unit.sequence, unit.kv_head),
                       .begin = first,
                       .end = end,
                       .dim = problem_.qk_dim,
                       .panels = panels,
                       .staging = buffers(worker).staging,
                       .rest = rest_of_keys(unit.sequence, unit.kv_head)});
    }
  }

  /// Keys or values of a sequence.
  ConstRows keys_of(const ConstTensorView& view, std::int64_t index, std::int64_t kv_head) const {
    if (problem_.page_rows == 0) {
      return rows_of<ConstRows>(view, batch_entry(index), kv_head, sequence(index).kv_begin);
    }
    ConstRows rows = rows_of<ConstRows>(view, 0, kv_head, 0);
    const ConstTensorView& table = *run_.options->page_table;
    const std::int64_t first = problem_.listed_pages ? problem_.page_starts[static_cast<std::size_t>(index)] : index;
    rows.pages = {.table = static_cast<const std::int32_t*>(table.data) + first * table.strides[0],
                  .table_stride = table.strides[table.rank() - 1],
                  .rows = problem_.page_rows,
                  .page_stride = view.strides[0],
                  .last = static_cast<std::int32_t>(view.shape[0] - 1)};
    return rows;
  }

  RestOfRows rest_of_keys(std::int64_t index, std::int64_t kv_head) const {
    if (problem_.k_rest_dim == 0) return {};
    return {keys_of(*run_.options->k_rest, index, kv_head), problem_.k_rest_dim};
  }

  std::uint8_t* v_flags(const PackedUnit& unit, std::int64_t offset) const {
    return reinterpret_cast<std::uint8_t*>(
        workspace_ + offset + plan::cpu_forward_v_flags_offset(problem_, unit.keys, forward_.part.bricks()));
  }

  /// The worker that ends a tile's last piece merges them all, in the pieces' order.
  void attend_step(const Wave& wave, const WaveOrder& order, const Step& step, int worker) {
    const auto task_of = [&](std::int64_t i) -> const TileTask& {
      return wave.tiles[static_cast<std::size_t>(order.tile_order[static_cast<std::size_t>(step.index + i)])];
    };
    if (step.tiles > 1) {
      Tile<T> tiles[plan::kMostBundle];
      TileBuffers<T> own[plan::kMostBundle];
      for (std::int64_t i = 0; i < step.tiles; ++i) {
        tiles[i] = tile_of(wave, order, task_of(i), worker);
        own[i] = buffers(worker, i);
      }
      const auto count = static_cast<std::size_t>(step.tiles);
      return attend_tiles({{tiles, count}, {own, count}, forward_.part.bundles.keys});
    }
    const TileTask& task = task_of(0);
    const Tile<T> tile = tile_of(wave, order, task, worker);
    const TileBuffers<T> own = buffers(worker);
    attend_tiles({{&tile, 1}, {&own, 1}, 0});
    if (task.merge < 0) return;
    const auto merge = static_cast<std::size_t>(task.merge);
    if (memory_.merged[merge].fetch_add(1, std::memory_order_acq_rel) + 1 == task.pieces) {
      merge_pieces(tile_of(wave, order, wave.merges[merge], worker), buffers(worker));
    }
  }

  void attend_tiles(const Bundle<T>& bundle) const {
    if constexpr (std::is_same_v<T, float>) {
      const Tile<T>& tile = bundle.tiles.front();
      const bool in_place = tile.rows() >= plan::kLeastUnitRows;
      if (forward_.part.bricks() && (tile.bricks.k != nullptr || in_place)) {
        return attend_bricks(bundle, forward_.part.unit);
      }
    }
    attend(bundle);
  }

  Tile<T> tile_of(const Wave& wave, const WaveOrder& order, const TileTask& task, int worker) {
    const Sequence& own = sequence(task.sequence);
    const std::int64_t entry = batch_entry(task.sequence), kv_head = task.head / problem_.group();
    const std::int64_t row = own.q_begin + task.q_first;
    const AttentionOptions& options = *run_.options;
    WorkerMods& mods = memory_.mods[static_cast<std::size_t>(worker)];

    Tile<T> tile{};
    tile.at = {.b = static_cast<std::int32_t>(task.sequence),
               .h = static_cast<std::int32_t>(task.head),
               .sequence = own,
               .q_first = task.q_first,
               .rows = static_cast<int>(task.rows)};
    tile.heads = task.heads;
    tile.qk_dim = problem_.qk_dim;
    tile.v_dim = problem_.v_dim;
    tile.normalizer = problem_.normalizer;
    tile.q = rows_of<ConstRows>(run_.tensors.q, entry, task.head, row);
    tile.q_head_stride = run_.tensors.q.strides[1];
    if (options.q_rest) {
      tile.q_rest = {rows_of<ConstRows>(*options.q_rest, entry, task.head, row), problem_.q_rest_dim};
      tile.q_rest_head_stride = options.q_rest->strides[1];
    }
    tile.q_scale = problem_.scale * element_or_one(options.k_descale, task.sequence, kv_head);
    tile.q_descale = per_head<float>(options.q_descale, task.sequence, task.head);
    tile.k = keys_of(run_.tensors.k, task.sequence, kv_head);
    tile.k_rest = rest_of_keys(task.sequence, kv_head);
    tile.v = keys_of(run_.tensors.v, task.sequence, kv_head);
    if (task.k_unit >= 0 && forward_.part.bricks()) tile.bricks = brick_head(wave, order, task);
    if (task.k_unit >= 0 && !forward_.part.bricks()) tile.head = packed_head(wave, order, task);
    tile.runs = schedule_.runs(task);
    tile.block_keys = schedule_.block_keys();
    tile.key_begin = task.key_begin;
    tile.key_end = task.key_end;
    tile.full = mods.full();
    tile.partial = mods.partial();
    tile.weight = mods.weight();
    tile.sinks = per_head<T>(options.sinks, 0, task.head);
    tile.v_scale = element_or_one(options.v_descale, task.sequence, kv_head);
    tile.o = rows_of<Rows>(run_.tensors.o, entry, task.head, row);
    tile.o_head_stride = run_.tensors.o.strides[1];
    if (run_.tensors.lse) {
      tile.lse = numbers_of_rows(*run_.tensors.lse, entry, task.head, row);
      tile.lse_head_stride = run_.tensors.lse->strides[1];
    }
    if (run_.tensors.max_scores) {
      tile.max_scores = numbers_of_rows(*run_.tensors.max_scores, entry, task.head, row);
      tile.max_scores_head_stride = run_.tensors.max_scores->strides[1];
    }
    if (run_.tensors.lse_rest) {
      tile.lse_rest = numbers_of_rows(*run_.tensors.lse_rest, entry, task.head, row);
      tile.lse_rest_head_stride = run_.tensors.lse_rest->strides[1];
    }
    if (task.partials >= 0) tile.partials = partials(wave, task);
    tile.piece = task.piece;
    tile.partial_row = task.partial_row;
    return tile;
  }

  PackedHead<T> packed_head(const Wave& wave, const WaveOrder& order, const TileTask& task) const {
    const BrickHead head = brick_head(wave, order, task);
    return {.k = reinterpret_cast<const T*>(head.k),
            .v = reinterpret_cast<const T*>(head.v),
            .v_flags = head.v_flags,
            .v_keys = wave.v_units[static_cast<std::size_t>(task.v_unit)].keys};
  }

  BrickHead brick_head(const Wave& wave, const WaveOrder& order, const TileTask& task) const {
    const std::int64_t k = order.k_offsets[static_cast<std::size_t>(task.k_unit)];
    const std::int64_t v = order.v_offsets[static_cast<std::size_t>(task.v_unit)];
    return {.k = workspace_ + k,
            .v = workspace_ + v,
            .v_flags = v_flags(wave.v_units[static_cast<std::size_t>(task.v_unit)], v)};
  }

  Partials<T> partials(const Wave& wave, const TileTask& task) const {
    const PartialUnit& unit = wave.partials[static_cast<std::size_t>(task.partials)];
    const plan::CpuForwardPartials layout = plan::cpu_forward_partials(problem_, sequence(unit.sequence));
    std::byte* base = workspace_ + unit.offset;
    return {.o = reinterpret_cast<T*>(base),
            .maxima = reinterpret_cast<T*>(base + layout.maxima),
            .sums = reinterpret_cast<T*>(base + layout.sums),
            .pieces = task.pieces,
            .rows = layout.rows};
  }

  /// The view's rows from `row` on. It is lse, lse_rest or max_scores.
  static Rows numbers_of_rows(const TensorView& of, std::int64_t entry, std::int64_t head, std::int64_t row) {
    const std::int64_t offset = entry * of.strides[0] + head * of.strides[1] + row * of.strides[2];
    return {static_cast<std::byte*>(of.data) + offset * size_of(of.dtype), of.dtype, of.strides[2]};
  }

  /// Rows past a sequence's end, in a packed batch the last one's: o = 0, lse and max_scores -inf, lse_rest 0.
  void fill_padding() const {
    const std::size_t row_bytes = static_cast<std::size_t>(problem_.v_dim * size_of(problem_.o_dtype));
    for (std::int64_t i = problem_.packed ? std::max<std::int64_t>(problem_.batch - 1, 0) : 0; i < problem_.batch;
         ++i) {
      const std::int64_t first = sequence(i).q_begin + sequence(i).q_len, rows = problem_.q_rows - first;
      for (std::int64_t head = 0; rows > 0 && head < problem_.q_heads; ++head) {
        const Rows o = rows_of<Rows>(run_.tensors.o, batch_entry(i), head, first);
        for (std::int64_t r = 0; r < rows && row_bytes > 0; ++r) {
          std::memset(static_cast<std::byte*>(o.data) + r * o.stride * size_of(o.dtype), 0, row_bytes);
        }
        constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
        for (const auto& [of, value] : {std::pair{&run_.tensors.lse, kMinusInfinity},
                                        {&run_.tensors.max_scores, kMinusInfinity},
                                        {&run_.tensors.lse_rest, 0.0}}) {
          if (!*of) continue;
          const Rows numbers = numbers_of_rows(**of, batch_entry(i), head, first);
          for (std::int64_t r = 0; r < rows; ++r) {
            base::store_element(numbers.data, numbers.dtype, r * numbers.stride, value);
          }
        }
      }
    }
  }

  const CpuForward& forward_;
  const problem::AttentionProblem& problem_;
  const backend::RunArguments& run_;
  const plan::CpuForwardScratch& scratch_;
  std::int64_t pair_bytes_;
  const Schedule& schedule_;
  std::byte* workspace_;
  const base::Kept<RunMemory>::Lease lease_;
  RunMemory& memory_;
};

/// CpuBackwardKernel has the same frame: a common class would hold two lines.
class CpuForwardKernel final : public backend::Kernel {
 public:
  explicit CpuForwardKernel(const backend::PrepareArguments& arguments) : forward_(arguments) {}

  void launch(const backend::RunArguments& arguments) const override {
    if (forward_.problem.precision == expr::Precision::f64) {
      Launch<double>(forward_, arguments).run();
    } else {
      Launch<float>(forward_, arguments).run();
    }
  }

  /// Registers stay for the next run.
  std::int64_t held_bytes() const override {
    return forward_.most_workers() * static_cast<std::int64_t>(forward_.programs.register_bytes());
  }

  base::JsonTree facts() const override {
    base::JsonTree facts =
        cpu_facts("cpu_forward", forward_.part.bricks(), forward_.problem.precision, forward_.plan.threads);
    if (const std::string in_place = forward_.schedule.in_place_text(); !in_place.empty()) facts["in_place"] = in_place;
    if (const std::string bundles = forward_.bundles_text(); !bundles.empty()) facts["bundles"] = bundles;
    for (const auto& [title, lines] : forward_.programs.text()) facts[title] = lines;
    return facts;
  }

 private:
  CpuForward forward_;
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare_forward(const backend::PrepareArguments& arguments) {
  return std::make_unique<CpuForwardKernel>(arguments);
}

}  // namespace heddle::cpu
