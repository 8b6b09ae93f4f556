#include "families/cpu/cpu_backward_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "expr/node.h"
#include "families/cpu/cpu_forward_costs.h"
#include "families/cpu/target_data.h"

namespace heddle::plan {
namespace {

using cpu::kBrickColumns, cpu::kBrickDepth;
using problem::AttentionProblem;

constexpr std::int64_t kWaveBudget = std::int64_t{512} << 20;
constexpr std::int64_t kLaneBudget = std::int64_t{256} << 20;  // of all lanes' copies
constexpr std::int64_t kCopyLimit = std::int64_t{64} << 20;    // of one gradient's copies, if tasks can own it instead
constexpr std::int64_t kTasksPerCore = 4;                      // so that the longest do not decide
constexpr std::int64_t kTileRows = 96, kOtherTileRows[] = {48, 192};
// With bricks a sum over the tile's queries is loaded and stored once. Masks want smaller blocks.
constexpr std::int64_t kBrickTileRows = 256, kMaskedBrickTileRows = 128, kSmallBrickTileRows = 64;
constexpr std::int64_t kWideTilesFrom = 1024;  // keys of a sequence

std::int64_t element_bytes(const AttentionProblem& problem) {
  return problem.precision == expr::Precision::f64 ? 8 : 4;
}

std::int64_t longest_keys(const AttentionProblem& problem) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.kv_len);
  return longest;
}

std::int64_t key_tiles(const AttentionProblem& problem, std::int64_t tile_keys) {
  return std::max<std::int64_t>(1, round_up(longest_keys(problem), tile_keys) / tile_keys);
}

std::int64_t unit_count(const AttentionProblem& problem, const CpuBackwardSplit& split) {
  return std::max<std::int64_t>(
             1, problem.batch / std::max<std::int64_t>(1, cpu_backward_unit_sequences(problem, split))) *
         std::max<std::int64_t>(1,
                                problem.kv_heads / std::max<std::int64_t>(1, cpu_backward_unit_heads(problem, split)));
}

/// Wide tiles of keys load and store dQ half as often. Of few keys it stays in L2 anyway.
std::int64_t tile_keys_of(const AttentionProblem& problem, const CpuBackwardSplit& split, int cores) {
  if (!split.bricks() || longest_keys(problem) < kWideTilesFrom) return kBackwardKeys;
  const std::int64_t tasks = unit_count(problem, split) * key_tiles(problem, kWideBackwardKeys);
  return cores == 1 || tasks >= kTasksPerCore * cores ? kWideBackwardKeys : kBackwardKeys;
}

/// The number of pieces that gives each core its share, and keeps their sums inside the budget.
std::int64_t pieces_of(const AttentionProblem& problem, const CpuBackwardSplit& split, int cores) {
  const std::int64_t wanted = kTasksPerCore * cores, units = unit_count(problem, split);
  if (cores == 1 || units >= wanted) return 1;
  std::int64_t pieces = std::min(key_tiles(problem, split.tile_keys), round_up(wanted, units) / units);
  CpuBackwardSplit trial = split;
  for (; pieces > 1; --pieces) {
    trial.pieces = pieces;
    if (cpu_backward_wave_bytes(problem, trial) <= kWaveBudget) break;
  }
  return pieces;
}

/// A gradient belongs to tasks if its indices tell their work apart. If they do once tasks take all sequences or heads,
/// only a large one does, since there are fewer tasks then; small ones have copies.
SumOwner owner_of(const CaptureSum& sum, const CpuBackwardSplit& split, std::int64_t tasks) {
  if (!sum.of_key) return SumOwner::lane;
  const bool apart = (sum.of_sequence || split.kv_broadcasts) && sum.of_head;
  const bool large = sum.count * 8 * tasks > kCopyLimit;
  return apart || large ? SumOwner::task : SumOwner::lane;
}

std::string sentence(const CaptureSum& sum, SumOwner owner, const CpuBackwardSplit& split, std::int64_t lanes) {
  const std::string name = fmt::format("{}['{}']", sum.param ? "d_params" : "d_captures", sum.name);
  if (sum.reads.empty()) return fmt::format("{}: 0, since no mod depends on it smoothly", name);
  if (owner == SumOwner::task) {
    return fmt::format("{}: each element is added by one task{}{}; the same bits in each run", name,
                       split.all_sequences ? ", which takes all sequences" : "",
                       split.all_heads ? " and all heads" : "");
  }
  return fmt::format(
      "{}: added in f64, a copy for each of {} lanes of tasks, copies in order; the same bits in each run", name,
      lanes);
}

void choose_owners(const AttentionProblem& problem, int cores, CpuBackwardSplit& split) {
  const std::int64_t tasks = std::max(unit_count(problem, split), kTasksPerCore * cores);
  for (const CaptureSum& sum : split.sums) split.owners.push_back(owner_of(sum, split, tasks));
  for (std::size_t i = 0; i < split.sums.size(); ++i) {
    if (split.owners[i] != SumOwner::task) continue;
    split.all_sequences = split.all_sequences || !split.sums[i].of_sequence;
    split.all_heads = split.all_heads || !split.sums[i].of_head;
  }
}

}  // namespace

std::int64_t cpu_backward_unit_sequences(const AttentionProblem& problem, const CpuBackwardSplit& split) {
  return split.kv_broadcasts || split.all_sequences ? problem.batch : 1;
}

std::int64_t cpu_backward_unit_heads(const AttentionProblem& problem, const CpuBackwardSplit& split) {
  return split.all_heads ? problem.kv_heads : 1;
}

CpuBackwardScratch cpu_backward_scratch(const AttentionProblem& problem, const CpuBackwardSplit& split) {
  const std::int64_t element = element_bytes(problem), rows = split.tile_rows, keys = split.tile_keys;
  const std::int64_t qk_panels = round_up(problem.qk_dim, kPanel), v_panels = round_up(problem.v_dim, kPanel);
  std::int64_t reads = 0;
  bool by_score = false;
  for (const CaptureSum& sum : split.sums) {
    reads += std::ssize(sum.reads);
    for (const ReadGradient& read : sum.reads) {
      by_score = by_score || std::ranges::any_of(read.indices, [](const Expr& index) {
                   return index.node()->uses.has(expr::Leaf::score);
                 });
    }
  }
  CpuBackwardScratch scratch{};
  const auto reserve_bytes = [&](std::int64_t bytes) {
    const std::int64_t offset = scratch.bytes;
    scratch.bytes += round_up(bytes, kAlignment);
    return offset;
  };
  const auto reserve = [&](std::int64_t count) { return reserve_bytes(count * element); };
  const std::int64_t step_rows = split.bricks() ? kUnitRows : rows;
  scratch.k_columns = reserve(split.bricks() ? 0 : kBackwardKeys * problem.qk_dim);
  scratch.v_columns = reserve(split.bricks() ? 0 : kBackwardKeys * problem.v_dim);
  scratch.k_rows = reserve(keys * qk_panels);
  scratch.dk = reserve(keys * qk_panels);
  scratch.dv = reserve(keys * v_panels);
  scratch.scores = reserve(step_rows * kScoreStride);
  scratch.slopes = reserve(problem.score_mod.empty() ? 0 : step_rows * kScoreStride);
  scratch.weights = reserve(problem.weight_mod.empty() ? 0 : step_rows * kScoreStride);
  scratch.d_p = reserve(step_rows * kScoreStride);
  scratch.factors = reserve(rows);
  const std::int64_t elements = rows * kScoreStride * (keys / kBackwardKeys);  // of a step
  scratch.attending = reserve_bytes(elements);
  const std::int64_t longest = std::max(rows, keys);
  scratch.finite = reserve(longest * std::max(qk_panels, v_panels));
  scratch.special = reserve_bytes(longest);
  scratch.score_copy = reserve(by_score ? elements : 0);
  scratch.read_bytes = round_up(elements * element, kAlignment);
  scratch.reads = reserve_bytes(reads * scratch.read_bytes);
  scratch.indices = reserve_bytes(reads > 0 ? rows * kScoreStride * 4 : 0);
  scratch.offsets = reserve_bytes(reads > 0 ? rows * kBackwardKeys * 8 : 0);
  scratch.staging = reserve(std::max({kPanel * kPanel, qk_panels, v_panels}));
  if (!split.bricks()) return scratch;
  const std::int64_t qk_columns = round_up(problem.qk_dim, kBrickColumns);
  const std::int64_t v_columns = round_up(problem.v_dim, kBrickColumns);
  scratch.k_bricks = reserve_bytes(keys * round_up(problem.qk_dim, kBrickDepth) * 2);
  scratch.v_bricks = reserve_bytes(keys * round_up(problem.v_dim, kBrickDepth) * 2);
  scratch.k_row_bricks = reserve_bytes(keys * qk_columns * 2);
  scratch.dk_columns = reserve(qk_columns * gradient_stride(keys));
  scratch.dv_columns = reserve(v_columns * gradient_stride(keys));
  // Callers' masks may begin tiles inside a group of kUnitRows.
  const std::int64_t brick_rows = round_up(rows, kUnitRows) + kUnitRows;
  scratch.weight_bricks = reserve_bytes(brick_rows * keys * 2);
  scratch.d_s_bricks = reserve_bytes(brick_rows * keys * 2);
  scratch.d_s_rows = reserve_bytes(2 * kUnitRows * kDerivativeStride * 2);
  scratch.finite_bricks = reserve_bytes(std::max(brick_rows, keys) * std::max(qk_columns, v_columns) * 2);
  return scratch;
}

CpuBackwardQueries cpu_backward_queries(const AttentionProblem& problem, const CpuBackwardSplit& split,
                                        std::int64_t q_len) {
  const std::int64_t element = element_bytes(problem);
  CpuBackwardQueries queries{};
  const auto reserve_bytes = [&](std::int64_t bytes) {
    const std::int64_t offset = queries.bytes;
    queries.bytes += round_up(bytes, kAlignment);
    return offset;
  };
  const std::int64_t qk_panels = round_up(problem.qk_dim, kPanel), v_panels = round_up(problem.v_dim, kPanel);
  queries.bricks = split.bricks();
  queries.rows = split.bricks() ? round_up(q_len, kUnitRows) : q_len;
  if (split.bricks()) {
    queries.q = reserve_bytes(queries.rows * round_up(problem.qk_dim, kBrickDepth) * 2);
    queries.d_o = reserve_bytes(queries.rows * round_up(problem.v_dim, kBrickDepth) * 2);
    queries.q_columns = reserve_bytes(queries.rows * round_up(problem.qk_dim, kBrickColumns) * 2);
    queries.d_o_columns = reserve_bytes(queries.rows * round_up(problem.v_dim, kBrickColumns) * 2);
  } else {
    queries.q = reserve_bytes(q_len * qk_panels * element);
    queries.d_o = reserve_bytes(q_len * v_panels * element);
  }
  queries.part_bytes = problem.wanted.q ? queries.rows * qk_panels * element : 0;
  queries.dq = reserve_bytes(split.pieces * queries.part_bytes);
  queries.lse = reserve_bytes(q_len * element);
  queries.delta = reserve_bytes(q_len * element);
  queries.lse_rest = reserve_bytes(problem.with_lse_rest ? q_len * element : 0);
  queries.q_flags = reserve_bytes(round_up(q_len, kPanel) / kPanel);
  queries.d_o_flags = reserve_bytes(round_up(q_len, kPanel) / kPanel);
  return queries;
}

std::int64_t cpu_backward_lane_bytes(const CpuBackwardSplit& split) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < split.sums.size(); ++i) {
    if (split.owners[i] == SumOwner::lane) bytes += round_up(split.sums[i].count * 8, kAlignment);
  }
  return bytes;
}

std::int64_t cpu_backward_owned_bytes(const AttentionProblem& problem, const CpuBackwardSplit& split) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < split.sums.size(); ++i) {
    if (split.owners[i] == SumOwner::task) bytes += round_up(split.sums[i].count * element_bytes(problem), kAlignment);
  }
  return bytes;
}

std::int64_t cpu_backward_wave_bytes(const AttentionProblem& problem, const CpuBackwardSplit& split) {
  std::int64_t all = 0, largest = 0;
  for (const Sequence& sequence : problem.sequences) {
    const std::int64_t pair = cpu_backward_queries(problem, split, sequence.q_len).bytes * problem.group();
    const std::int64_t unit = pair * cpu_backward_unit_heads(problem, split);
    all += pair * problem.kv_heads;
    largest = cpu_backward_unit_sequences(problem, split) > 1 ? largest + unit : std::max(largest, unit);
  }
  return split.q_broadcasts ? all : std::min(all, std::max(kWaveBudget, largest));
}

namespace {

/// AMX, or its stand-in, where all inputs of products are bf16.
device::MatrixUnit unit_of(const Request& request) {
  const AttentionProblem& problem = request.problem;
  const bool all_bf16 = problem.q_dtype == DType::bf16 && problem.k_dtype == DType::bf16 &&
                        problem.v_dtype == DType::bf16 && request.backward->d_o.dtype == DType::bf16;
  return all_bf16 && problem.precision == expr::Precision::f32 ? request.machine.cpu.matrix_unit
                                                               : device::MatrixUnit::none;
}

Plan plan_of(const Request& request, std::int64_t tile_rows) {
  const AttentionProblem& problem = request.problem;
  const device::Caps& caps = request.machine.cpu;
  const auto broadcasts = [&](const ConstTensorView& view) {
    return !problem.packed && problem.batch > 1 && view.shape[0] == 1;
  };
  CpuBackwardSplit split;
  split.tile_rows = tile_rows;
  split.unit = unit_of(request);
  split.kv_broadcasts = broadcasts(request.tensors.k) || broadcasts(request.tensors.v);
  split.q_broadcasts = broadcasts(request.tensors.q);
  split.sums = capture_sums(problem, request.options.bindings);
  choose_owners(problem, caps.cores, split);
  split.tile_keys = tile_keys_of(problem, split, caps.cores);
  split.pieces = pieces_of(problem, split, caps.cores);

  const std::int64_t lane_bytes = cpu_backward_lane_bytes(split);
  const std::int64_t tasks = unit_count(problem, split) * split.pieces;
  if (lane_bytes > 0) {
    split.lanes = std::clamp<std::int64_t>(kLaneBudget / lane_bytes, 1, std::min(tasks, kTasksPerCore * caps.cores));
  }
  Plan plan;
  plan.threads = request.options.threads > 0 ? request.options.threads : caps.cores;
  plan.tile = {split.tile_rows, kPanel};
  plan.workspace_bytes = cpu_backward_wave_bytes(problem, split) + split.lanes * lane_bytes +
                         cpu_backward_owned_bytes(problem, split) +
                         plan.threads * cpu_backward_scratch(problem, split).bytes;
  for (std::size_t i = 0; i < split.sums.size(); ++i) {
    plan.gradients.push_back(sentence(split.sums[i], split.owners[i], split, split.lanes));
  }
  if (problem.wanted.sinks) {
    plan.gradients.push_back("d_sinks: -sum p(sink) delta, in f64, rows in order; the same bits in each run");
  }
  plan.family_part = std::move(split);
  return plan;
}

}  // namespace

Plan cpu_backward(const Request& request) {
  if (unit_of(request) == device::MatrixUnit::none) return plan_of(request, kTileRows);
  return plan_of(request, request.problem.mask_mod.empty() ? kBrickTileRows : kMaskedBrickTileRows);
}

std::vector<Plan> cpu_backward_variants(const Request& request) {
  std::vector<Plan> plans;
  if (unit_of(request) == device::MatrixUnit::none) {
    for (const std::int64_t rows : kOtherTileRows) plans.push_back(plan_of(request, rows));
    return plans;
  }
  const bool masked = !request.problem.mask_mod.empty();
  plans.push_back(plan_of(request, masked ? kBrickTileRows : kMaskedBrickTileRows));
  plans.push_back(plan_of(request, kSmallBrickTileRows));
  return plans;
}

Prediction cpu_backward_prediction(const AttentionProblem& problem, const Plan& plan, const BlockMask* block_mask,
                                   const device::Caps& caps) {
  const double elements = cpu_elements(problem, block_mask);
  const double qk = static_cast<double>(problem.qk_dim), v = static_cast<double>(problem.v_dim);
  const double flops = 2 * (3 * qk + 2 * v) * elements;
  double rows = 0, keys = 0;
  for (const Sequence& sequence : problem.sequences) {
    rows += static_cast<double>(sequence.q_len * problem.q_heads);
    keys += static_cast<double>(sequence.kv_len * problem.kv_heads);
  }
  const double gradient = 2;  // each of q, k, v is read and its gradient written
  const double bytes = rows * (gradient * qk + 2 * v) * static_cast<double>(size_of(problem.q_dtype)) +
                       keys * gradient * (qk + v) * static_cast<double>(size_of(problem.k_dtype));
  const CpuBackwardSplit& split = plan.part<plan::CpuBackwardSplit>();
  const double cores = static_cast<double>(
      std::clamp<std::int64_t>(unit_count(problem, split) * split.pieces, 1, std::min(plan.threads, caps.cores)));
  const double rate =
      cpu_flops_per_second(problem.precision, (qk + v) / 2) * caps.vector_bytes / kCpuRates.vector_bytes;
  const double in_cache =
      split.bricks()
          ? cpu_unit_seconds(problem, kCpuBackwardByUnit) * (elements + kCpuBackwardByUnit.key_elements * keys)
          : 2 * (3 * qk + 2 * v) * (elements + kCpuRates.backward_key_elements * keys) / rate;
  const double from_memory = bytes > static_cast<double>(caps.l3_bytes) ? bytes : 0;
  return {.seconds = std::max(in_cache, from_memory / kCpuRates.memory_bytes_per_second) / cores,
          .flops = flops,
          .bytes = bytes};
}

}  // namespace heddle::plan
