#include "families/cpu/cpu_forward_costs.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "expr/simplify.h"
#include "families/cpu/cpu_forward_plans.h"
#include "tile_evaluator/tile_evaluator.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;

/// The part of the keys [0, kv_len) that a run holds.
std::pair<std::int64_t, std::int64_t> keys_of(const Run& run, const BlockMask& rows, std::int64_t kv_len) {
  const std::int64_t block = rows.block().kv;
  return {std::min(run.begin * block, kv_len), std::min(run.end * block, kv_len)};
}

/// Pairs of a query and a key in the runs of one head.
std::int64_t elements_of(const Sequence& sequence, const BlockMask& rows, std::int64_t index, std::int64_t head) {
  const std::int64_t block = rows.block().q;
  std::int64_t elements = 0;
  for (std::int64_t first = 0; first < sequence.q_len; first += block) {
    std::int64_t keys = 0;
    for (const Run& run : rows.row(index, head, first / block)) {
      const auto [begin, end] = keys_of(run, rows, sequence.kv_len);
      keys += end - begin;
    }
    elements += std::min(block, sequence.q_len - first) * keys;
  }
  return elements;
}

/// Pairs that are multiplied for one sequence, of all heads.
double elements_of(const AttentionProblem& problem, const BlockMask* rows, std::int64_t index) {
  const Sequence& sequence = problem.sequences[static_cast<std::size_t>(index)];
  if (rows == nullptr) {
    return static_cast<double>(problem.q_heads * sequence.q_len) * static_cast<double>(sequence.kv_len);
  }
  // One head stands for all that share its rows; there may be none.
  const std::int64_t alike = rows->shared_by_heads() ? problem.q_heads : 1;
  double elements = 0;
  for (std::int64_t head = 0; head < problem.q_heads; head += alike) {
    elements += static_cast<double>(alike * elements_of(sequence, *rows, index, head));
  }
  return elements;
}

/// Keys that some query of a kv head's group sees: what a tile reads in place.
std::int64_t seen_keys(const AttentionProblem& problem, const BlockMask& rows, std::int64_t index,
                       std::int64_t kv_head) {
  const Sequence& sequence = problem.sequences[static_cast<std::size_t>(index)];
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (std::int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head) {
    for (std::int64_t row = 0; row < rows.q_blocks(index); ++row) {
      for (const Run& run : rows.row(index, head, row)) spans.push_back(keys_of(run, rows, sequence.kv_len));
    }
  }
  std::ranges::sort(spans);
  std::int64_t keys = 0, end = 0;
  for (const auto& [first, last] : spans) {
    keys += std::max<std::int64_t>(0, last - std::max(first, end));
    end = std::max(end, last);
  }
  return keys;
}

/// Keys that are read, of all kv heads; those of them that are read in place, in no panel; the pairs with the latter;
/// and the tasks that there are for the cores.
struct Share {
  std::int64_t keys = 0, in_place = 0, tasks = 0;
  double in_place_elements = 0;
};

Share share_of(const AttentionProblem& problem, const Plan& plan, const BlockMask* rows) {
  Share share;
  std::int64_t longest = 0;  // of the sequences that share packed keys
  for (std::int64_t index = 0; index < std::ssize(problem.sequences); ++index) {
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(index)];
    if (sequence.q_len == 0) continue;
    if (!cpu_forward_in_place(problem, sequence, plan.tile.q, plan.part<CpuForwardPart>().bricks())) {
      share.tasks += problem.q_heads * round_up(sequence.q_len, plan.tile.q) / plan.tile.q;
      share.keys += problem.shared_kv ? 0 : problem.kv_heads * sequence.kv_len;
      longest = std::max(longest, sequence.kv_len);
      continue;
    }
    share.tasks += problem.kv_heads * cpu_forward_partials(problem, sequence).pieces;
    share.in_place_elements += elements_of(problem, rows, index);
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      const std::int64_t seen = rows != nullptr ? seen_keys(problem, *rows, index, head) : sequence.kv_len;
      share.keys += seen;
      share.in_place += seen;
    }
  }
  if (problem.shared_kv) share.keys += problem.kv_heads * longest;
  return share;
}

/// Each query and each of `keys` read once, o and the numbers of rows written once, rows past a sequence's end too.
double moved_bytes(const AttentionProblem& problem, std::int64_t keys) {
  std::int64_t queries = 0;
  for (const Sequence& sequence : problem.sequences) queries += sequence.q_len;
  const std::int64_t outputs = problem.packed ? problem.q_rows : problem.batch * problem.q_rows;
  const std::int64_t numbers =  // of a row
      (problem.with_lse ? 1 : 0) + (problem.with_lse_rest ? 1 : 0) + (problem.with_max_scores ? 1 : 0);
  const std::int64_t number_bytes = problem.precision == expr::Precision::f64 ? 8 : 4;
  return static_cast<double>(queries * problem.q_heads * problem.qk_dim * size_of(problem.q_dtype)) +
         static_cast<double>(outputs * problem.q_heads *
                             (problem.v_dim * size_of(problem.o_dtype) + numbers * number_bytes)) +
         static_cast<double>(keys *
                             (problem.qk_dim * size_of(problem.k_dtype) + problem.v_dim * size_of(problem.v_dtype)));
}

/// One core's seconds in cache, by AMX.
double unit_seconds(const AttentionProblem& problem, const Share& share, double elements) {
  const std::int64_t key_bytes = problem.qk_dim * size_of(problem.k_dtype) + problem.v_dim * size_of(problem.v_dtype);
  const double packed = elements - share.in_place_elements +
                        kCpuForwardByUnit.key_elements * static_cast<double>(share.keys - share.in_place);
  return elements * cpu_mod_seconds(problem, kCpuModsByUnit) + packed * cpu_unit_seconds(problem, kCpuForwardByUnit) +
         share.in_place_elements * kCpuForwardByUnit.score_seconds +
         static_cast<double>(share.in_place * key_bytes) / kUnitInPlaceBytesPerSecond;
}

}  // namespace

double cpu_unit_seconds(const AttentionProblem& problem, const CpuUnitCosts& costs) {
  // Products of keys sum over bricks of 32 dimensions, those of values make bricks of 16.
  const std::int64_t dims = round_up(problem.qk_dim, 32) + round_up(problem.v_dim, 16);
  return costs.score_seconds + costs.dim_seconds * static_cast<double>(dims) / 2;
}

double cpu_mod_seconds(const AttentionProblem& problem, const CpuModCosts& costs) {
  using Kind = cpu::TileForm::Kind;
  const auto program = [&](const Expr& mod) {
    const Expr simple = expr::simplify(mod, problem.precision);
    if (same(simple, leaf::score())) return 0.0;
    const cpu::TileProgram::Work work = cpu::TileProgram(simple, problem.precision).work();
    const bool in_pipeline = problem.weight_mod.empty() && problem.normalizer == Normalizer::softmax;
    if (in_pipeline && work.form == Kind::added) return costs.added + costs.added_step * (work.steps - 1);
    if (in_pipeline && work.form == Kind::capped) return costs.capped;
    return costs.program + costs.step * work.steps + costs.function * work.functions + costs.draw * work.draws;
  };
  return (problem.score_mod.empty() ? 0 : program(problem.score_mod)) +
         (problem.weight_mod.empty() ? 0 : costs.weights + program(problem.weight_mod));
}

double cpu_flops_per_second(expr::Precision precision, double head_dim) {
  CpuRate rate = kCpuForwardRates.front();
  for (const CpuRate& row : kCpuForwardRates) {
    if (row.head_dim <= head_dim) rate = row;
  }
  const double gflops = precision == expr::Precision::f64 ? rate.f64_gflops : rate.f32_gflops;
  return gflops * 1e9 * std::min(1.0, head_dim / kCpuForwardRates.front().head_dim);
}

double cpu_elements(const AttentionProblem& problem, const BlockMask* rows) {
  double elements = 0;
  for (std::int64_t index = 0; index < std::ssize(problem.sequences); ++index) {
    elements += elements_of(problem, rows, index);
  }
  return elements;
}

Prediction cpu_forward_prediction(const AttentionProblem& problem, const Plan& plan, const BlockMask* block_mask,
                                  const device::Caps& caps) {
  const double elements = cpu_elements(problem, block_mask);
  const Share share = share_of(problem, plan, block_mask);
  const double dims = static_cast<double>(problem.qk_dim + problem.v_dim);
  const double bytes = moved_bytes(problem, share.keys);

  const double cores =
      static_cast<double>(std::clamp<std::int64_t>(share.tasks, 1, std::min(plan.threads, caps.cores)));
  const bool by_unit = plan.part<CpuForwardPart>().bricks();
  const double rate =
      by_unit ? 2 * dims / cpu_unit_seconds(problem, kCpuForwardByUnit)
              : cpu_flops_per_second(problem.precision, dims / 2) * caps.vector_bytes / kCpuRates.vector_bytes;
  const double work = elements + kCpuRates.packed_key_elements * static_cast<double>(share.keys - share.in_place) +
                      kCpuRates.in_place_key_elements * static_cast<double>(share.in_place);
  const double in_cache = by_unit ? unit_seconds(problem, share, elements) : 2 * dims * work / rate;
  const double from_memory = bytes > static_cast<double>(caps.l3_bytes) ? bytes : 0;
  return {.seconds = std::max(in_cache, from_memory / kCpuRates.memory_bytes_per_second) / cores,
          .flops = 2 * dims * elements,
          .bytes = bytes,
          .flops_per_second = rate * cores,
          .bytes_per_second = kCpuRates.memory_bytes_per_second * cores};
}

}  // namespace heddle::plan
