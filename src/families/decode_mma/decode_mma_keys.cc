#include "families/decode_mma/decode_mma_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "expr/key_bounds.h"

namespace heddle::plan {
namespace {

using expr::Leaf;
using problem::AttentionProblem;
using shared::KeyRun;
using shared::KeyRuns;

/// The mask's bounds with the values of its params; none where it has none.
std::optional<expr::KeyBounds> bounds_of(const AttentionProblem& problem, const KernelMods& mods,
                                         const Bindings& bindings) {
  if (mods.mask.empty()) return std::nullopt;
  Bindings values;
  values.params = bindings.params;
  if (mods.kv_start.form == KvStart::Form::param && !problem.sequences.empty()) {
    values.params.insert_or_assign(kKvStartName, static_cast<std::int32_t>(problem.sequences.front().kv_start));
  }
  expr::KeyBounds bounds(expr::bind_params(mods.mask, values));
  if (!bounds.bounds()) return std::nullopt;
  return bounds;
}

/// The keys that the rows of a sequence are left.
KeyRuns runs_of(const expr::KeyBounds& bounds, const AttentionProblem& problem, expr::LeafRanges leaves,
                std::size_t number) {
  const Sequence& sequence = problem.sequences[number];
  if (sequence.q_len == 0 || sequence.kv_len == 0) return shared::no_keys();
  const std::int64_t start = problem.device_starts ? sequence.kv_len - sequence.q_len : sequence.q_start;
  const auto range = [](std::int64_t lo, std::int64_t hi) {
    return expr::Range{static_cast<double>(lo), static_cast<double>(hi)};
  };
  if (!problem.device_lengths) leaves[Leaf::b] = range(static_cast<int>(number), static_cast<int>(number));
  leaves[Leaf::q_idx] = range(start, start + sequence.q_len - 1);
  leaves[Leaf::q_start] = range(start, start);
  leaves[Leaf::q_len] = range(sequence.q_len, sequence.q_len);
  leaves[Leaf::kv_len] = range(sequence.kv_len, sequence.kv_len);
  leaves[Leaf::kv_idx] = range(0, sequence.kv_len - 1);
  return bounds(leaves);
}

}  // namespace

std::vector<KeyRuns> decode_mma_runs(const AttentionProblem& problem, const KernelMods& mods,
                                     const Bindings& bindings) {
  const std::optional<expr::KeyBounds> bounds = bounds_of(problem, mods, bindings);
  const expr::LeafRanges leaves = problem::leaf_ranges(problem);
  std::vector<KeyRuns> all;
  for (std::size_t i = 0; i < problem.sequences.size(); ++i) {
    all.push_back(bounds ? runs_of(*bounds, problem, leaves, i)
                         : shared::all_keys({0, problem.sequences[i].kv_len - 1}));
  }
  return all;
}

DecodeKeys decode_mma_keys(const AttentionProblem& problem, const KernelMods& mods, const Bindings& bindings,
                           const shared::ForwardMmaConfig& config) {
  DecodeKeys keys{};
  for (const Sequence& sequence : problem.sequences) keys.all += sequence.kv_len;
  for (const KeyRuns& runs : decode_mma_runs(problem, mods, bindings)) {
    std::int64_t units = 0;
    for (const KeyRun& run : {runs.first, runs.second}) {
      if (run.empty()) continue;
      keys.read += run.end - run.begin;
      units += (run.end - run.begin + config.kv_block - 1) / config.kv_block;
    }
    keys.units += std::max<std::int64_t>(units, 1);
  }
  return keys;
}

std::string decode_mma_mask_form(const KernelMods& mods) {
  if (mods.mask.empty()) return "";
  const expr::KeyBounds bounds(mods.mask);
  return bounds.bounds() ? fmt::format("computed for each pair; keys are read where {}", bounds.text())
                         : "computed for each pair; it bounds no keys, so all are read";
}

}  // namespace heddle::plan
