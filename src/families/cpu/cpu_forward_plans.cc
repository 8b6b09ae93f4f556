#include "families/cpu/cpu_forward_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace heddle::plan {
namespace {

constexpr std::int64_t kPairBudget = std::int64_t{512} << 20;
constexpr std::int64_t kMostRows = 96, kLeastRows = 12;  // of a tile; each is half the one before
constexpr std::int64_t kRowStrip = 16;                   // rows whose statistics are updated together
constexpr std::int64_t kPieceTasks = 32;                 // pieces of a sequence's kv heads that are worth having
/// A load waits for stores before it whose addresses differ by a multiple of this. Accumulators and scores stand half
/// of it apart.
constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kVectorBytes = 64;  // the widest vector of any target; row sums are kept by lane

std::int64_t element_bytes(const problem::AttentionProblem& problem) {
  return problem.precision == expr::Precision::f64 ? 8 : 4;
}

// Memory that a tile touches again and again: its queries, scores and accumulators, and the keys and values of one
// chunk.
std::int64_t working_set_bytes(const problem::AttentionProblem& problem, std::int64_t rows) {
  const std::int64_t per_row = problem.qk_dim + problem.v_dim + kChunk;
  const std::int64_t chunk = kChunk * (problem.qk_dim + problem.v_dim);
  return (rows * per_row + chunk) * element_bytes(problem);
}

/// Bundles, if some sequence's packed keys and values do not stay in L2. A tile of three quarters of it or less goes as
/// fast alone. A bundle's keys and values take a quarter, what its tiles keep at most three eighths. By AMX, weight
/// mods take longer than reading from L3.
CpuBundles bundles_of(const problem::AttentionProblem& problem, const device::Caps& caps, std::int64_t rows,
                      bool bricks) {
  const std::int64_t panel_bytes =
      cpu_forward_packed_k_bytes(problem, kPanel, bricks) + cpu_forward_v_flags_offset(problem, kPanel, bricks);
  if (panel_bytes == 0 || (bricks && !problem.weight_mod.empty())) return {};
  const std::int64_t row_bytes = (problem.qk_dim + problem.v_dim) * element_bytes(problem);
  const std::int64_t keys = caps.l2_bytes / 4 / panel_bytes * kPanel / kChunk * kChunk;
  const CpuBundles bundles = {.tiles = std::min(caps.l2_bytes * 3 / 8 / (rows * row_bytes), kMostBundle),
                              .keys = std::max(keys, kChunk),
                              .least_keys = caps.l2_bytes * 3 / 4 / panel_bytes * kPanel};
  const bool any = std::ranges::any_of(problem.sequences, [&](const Sequence& sequence) {
    return sequence.kv_len >= bundles.least_keys && !cpu_forward_in_place(problem, sequence, rows, bricks);
  });
  return any && bundles.tiles > 1 ? bundles : CpuBundles{};
}

Plan plan_of(const problem::AttentionProblem& problem, int threads, const device::Caps& caps, std::int64_t rows,
             device::MatrixUnit unit = device::MatrixUnit::none) {
  const CpuForwardPart part = {unit, bundles_of(problem, caps, rows, unit != device::MatrixUnit::none)};
  Plan plan;
  plan.family_part = part;
  plan.threads = threads > 0 ? threads : caps.cores;
  plan.tile = {rows, kPanel};
  plan.workspace_bytes = cpu_forward_pair_bytes(problem, rows, part.bricks()) +
                         plan.threads * cpu_forward_scratch(problem, rows, part.bricks(), part.bundles.tiles).bytes;
  return plan;
}

/// The unit that may multiply what such a problem packs.
device::MatrixUnit unit_of(const problem::AttentionProblem& problem, const device::Caps& caps) {
  const bool all_bf16 =
      problem.q_dtype == DType::bf16 && problem.k_dtype == DType::bf16 && problem.v_dtype == DType::bf16;
  return all_bf16 && problem.precision == expr::Precision::f32 ? caps.matrix_unit : device::MatrixUnit::none;
}

bool all_in_place(const problem::AttentionProblem& problem, std::int64_t rows, bool bricks) {
  return std::ranges::all_of(problem.sequences, [&](const Sequence& sequence) {
    return cpu_forward_in_place(problem, sequence, rows, bricks);
  });
}

/// Whether AMX would compute a tile of such a problem, all of whose tiles read in place.
bool some_rows_for_unit(const problem::AttentionProblem& problem) {
  return std::ranges::any_of(
      problem.sequences, [&](const Sequence& sequence) { return sequence.q_len * problem.group() >= kLeastUnitRows; });
}

std::int64_t tile_count(const problem::AttentionProblem& problem, std::int64_t rows) {
  std::int64_t tiles = 0;
  for (const Sequence& sequence : problem.sequences) tiles += (sequence.q_len + rows - 1) / rows;
  return tiles * problem.q_heads;
}

}  // namespace

CpuForwardScratch cpu_forward_scratch(const problem::AttentionProblem& problem, std::int64_t tile_rows, bool bricks,
                                      std::int64_t bundle_tiles) {
  const std::int64_t element = element_bytes(problem);
  CpuForwardScratch scratch{};
  scratch.rows = round_up(std::max<std::int64_t>(tile_rows, 1), kRowGroup);
  scratch.q_stride = round_up(problem.qk_dim, 2 * kAlignment / element);  // pairs of vectors
  scratch.padded_rows = round_up(scratch.rows, kRowStrip);
  scratch.o_stride = round_up(problem.v_dim, kPanel);
  const auto place = [&](std::int64_t count) {
    const std::int64_t offset = scratch.bytes;
    scratch.bytes += round_up(count * element, kAlignment);
    return offset;
  };
  const auto start_page = [&] { scratch.bytes = round_up(scratch.bytes, kPageBytes); };
  scratch.queries = place(scratch.rows * scratch.q_stride);
  start_page();
  scratch.accumulators = place(scratch.rows * scratch.o_stride);
  scratch.row_sums = place(scratch.rows * (kVectorBytes / element));
  scratch.row_maxima = place(round_up(scratch.rows, kRowStrip));
  scratch.row_scales = place(round_up(scratch.rows, kRowStrip));
  scratch.row_factors = place(scratch.padded_rows);
  scratch.brick_sums = place(bricks ? 4 * scratch.rows * (kVectorBytes / element) : 0);
  start_page();
  scratch.state_bytes = scratch.bytes;
  scratch.bytes += kPageBytes / 2;  // from accumulators
  scratch.scores = place(scratch.padded_rows * kChunk);
  scratch.weights = place(problem.weight_mod.empty() ? 0 : scratch.rows * kChunk);
  scratch.attending = place(scratch.rows * kChunk / 8 / element);
  scratch.infinite = place(scratch.rows * kChunk / 8 / element);
  scratch.staging = place(std::max({kChunk * kPanel, scratch.q_stride, scratch.o_stride}));
  // A tile of bricks whose sums overflow is computed once more in place.
  const bool in_place = bricks || std::ranges::any_of(problem.sequences, [&](const Sequence& sequence) {
                          return cpu_forward_in_place(problem, sequence, tile_rows);
                        });
  scratch.chunk_keys = place(in_place ? kChunk * scratch.q_stride : 0);
  scratch.chunk_values = place(in_place ? kChunk * (scratch.o_stride + kStagedGap) : 0);
  scratch.quad_queries = place(in_place ? scratch.q_stride * scratch.padded_rows : 0);
  start_page();
  scratch.more_states = scratch.bytes;
  scratch.bytes += (bundle_tiles - 1) * scratch.state_bytes;
  return scratch;
}

std::int64_t cpu_forward_packed_k_bytes(const problem::AttentionProblem& problem, std::int64_t keys, bool bricks) {
  if (bricks) return round_up(keys, kPanel) * round_up(problem.qk_dim, 32) * 2;
  return round_up(keys, kPanel) * problem.qk_dim * element_bytes(problem);
}

std::int64_t cpu_forward_v_flags_offset(const problem::AttentionProblem& problem, std::int64_t keys, bool bricks) {
  if (bricks) return round_up(keys, kPanel) * round_up(problem.v_dim, 16) * 2;
  return keys * round_up(problem.v_dim, kPanel) * element_bytes(problem);
}

std::int64_t cpu_forward_packed_v_bytes(const problem::AttentionProblem& problem, std::int64_t keys, bool bricks) {
  return cpu_forward_v_flags_offset(problem, keys, bricks) + round_up(round_up(keys, kPanel) / kPanel, kAlignment);
}

bool cpu_forward_in_place(const problem::AttentionProblem& problem, const Sequence& sequence, std::int64_t tile_rows,
                          bool bricks) {
  const std::int64_t sharing = problem.shared_kv && !problem.batch_invariant ? problem.batch : 1;
  const std::int64_t rows = sequence.q_len * problem.group() * sharing;
  if (rows > tile_rows || bricks || rows < kPackedRows) return rows <= tile_rows;
  // About where both ways take as long, by measurement (docs/notes/cpu_forward.md).
  return sequence.kv_len > rows * rows / (problem.mask_mod.empty() ? kPackedShare : kPackedShareOfMask);
}

std::int64_t cpu_forward_most_pieces(const problem::AttentionProblem& problem, std::int64_t keys) {
  const std::int64_t kv_heads = std::max<std::int64_t>(problem.kv_heads, 1);
  const std::int64_t wanted = (kPieceTasks + kv_heads - 1) / kv_heads;
  return std::max({std::int64_t{1}, round_up(keys, kSplitKeys) / kSplitKeys, std::min(wanted, keys / kLeastSplit)});
}

std::int64_t cpu_forward_piece_keys(const problem::AttentionProblem& problem, std::int64_t keys) {
  const std::int64_t pieces = cpu_forward_most_pieces(problem, keys);
  return round_up(std::max<std::int64_t>(keys, 1), pieces * kChunk) / pieces;
}

CpuForwardPartials cpu_forward_partials(const problem::AttentionProblem& problem, const Sequence& sequence) {
  const std::int64_t element = element_bytes(problem);
  CpuForwardPartials partials{};
  partials.pieces = cpu_forward_most_pieces(problem, sequence.kv_len);
  partials.rows = sequence.q_len * problem.group();
  if (partials.pieces == 1) return partials;
  const std::int64_t rows = partials.pieces * partials.rows;
  partials.maxima = rows * round_up(problem.v_dim, kPanel) * element;
  partials.sums = partials.maxima + round_up(rows * element, kAlignment);
  partials.bytes = partials.sums + round_up(rows * element, kAlignment);
  return partials;
}

std::int64_t cpu_forward_pair_bytes(const problem::AttentionProblem& problem, std::int64_t tile_rows, bool bricks) {
  std::int64_t all = 0, largest = 0;
  for (const Sequence& sequence : problem.sequences) {
    const std::int64_t pair = cpu_forward_in_place(problem, sequence, tile_rows, bricks)
                                  ? cpu_forward_partials(problem, sequence).bytes
                                  : cpu_forward_packed_k_bytes(problem, sequence.kv_len, bricks) +
                                        cpu_forward_packed_v_bytes(problem, sequence.kv_len, bricks);
    all += pair * problem.kv_heads;
    largest = std::max(largest, pair);
  }
  return std::min(all, std::max(kPairBudget, largest));
}

Plan cpu_forward(const problem::AttentionProblem& problem, int threads, const device::Caps& caps) {
  std::vector<std::string> rejected;
  // Each accepted tile is replaced by the next smaller one only for a reason, which is kept.
  std::int64_t rows = kMostRows;
  const device::MatrixUnit unit = unit_of(problem, caps);
  const bool decodes = !problem.batch_invariant && all_in_place(problem, kDecodeRows, unit != device::MatrixUnit::none);
  if (unit != device::MatrixUnit::none && (!decodes || some_rows_for_unit(problem))) {
    return plan_of(problem, threads, caps, decodes ? kDecodeRows : kUnitRows, unit);
  }
  for (; rows > kLeastRows; rows /= 2) {
    const std::int64_t bytes = working_set_bytes(problem, rows);
    // If the next smaller tile would pack keys that few queries read, the cores share pieces of the keys instead.
    if (decodes && !all_in_place(problem, rows / 2, false)) break;
    if (bytes > caps.l2_bytes * 3 / 4) {
      rejected.push_back(fmt::format("tile of {} queries: {} KiB do not stay in {} KiB of L2 cache", rows, bytes >> 10,
                                     caps.l2_bytes >> 10));
      continue;
    }
    const std::int64_t tiles = tile_count(problem, rows);
    // With batch_invariant the cache alone decides.
    if (!decodes && !problem.batch_invariant && caps.cores > 1 && tiles < std::int64_t{2} * caps.cores &&
        tiles < tile_count(problem, rows / 2)) {
      rejected.push_back(
          fmt::format("tile of {} queries: {} tasks do not fill {} cores evenly", rows, tiles, caps.cores));
      continue;
    }
    break;
  }
  for (const Sequence& sequence : problem.sequences) {
    if (sequence.q_len == 0 || cpu_forward_in_place(problem, sequence, rows)) continue;
    rejected.push_back(
        fmt::format("keys and values in place: {} queries of {} heads share {} keys, {}", sequence.q_len,
                    problem.group(), sequence.kv_len,
                    sequence.q_len * problem.group() > rows ? "more than a tile" : "which are few to read for each"));
    break;
  }
  Plan plan = plan_of(problem, threads, caps, rows);
  plan.rejected = std::move(rejected);
  return plan;
}

std::vector<Plan> cpu_forward_variants(const problem::AttentionProblem& problem, int threads,
                                       const device::Caps& caps) {
  const std::int64_t planned = cpu_forward(problem, threads, caps).tile.q;
  std::vector<Plan> plans;
  for (std::int64_t rows = kMostRows; rows >= kLeastRows; rows /= 2) {
    if (rows != planned) plans.push_back(plan_of(problem, threads, caps, rows));
  }
  return plans;
}

}  // namespace heddle::plan
