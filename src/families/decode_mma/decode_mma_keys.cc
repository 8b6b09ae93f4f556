#include "families/decode_mma/decode_mma_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
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

/// Keys that each sequence shares with others near it, as kernels find them (prefixes.cuh), whose tiles are counted.
std::vector<std::int64_t> shared_keys(const AttentionProblem& problem, const shared::ForwardMmaConfig& config,
                                      const std::vector<KeyRuns>& runs, DecodeKeys& keys) {
  std::vector<std::int64_t> shared(runs.size(), 0);
  if (!config.prefixed() || problem.prefix_group.empty()) return shared;
  const std::int64_t step = config.prefix_step();
  const auto units_in = [&](std::int64_t of_keys) { return (of_keys + config.kv_block - 1) / config.kv_block; };
  const auto near = static_cast<std::size_t>(config.prefix_sequences);
  std::map<std::int64_t, std::int64_t> read;  // by group
  for (std::size_t begin = 0; begin < runs.size(); begin += near) {
    std::map<std::int64_t, std::vector<std::size_t>> groups;
    for (std::size_t b = begin; b < std::min(begin + near, runs.size()); ++b) {
      const std::int64_t leading = runs[b].first.begin == 0 ? runs[b].first.end : 0;
      shared[b] = std::min(problem.prefix_len[b], leading) / step * step;
      if (problem.prefix_group[b] >= 0 && shared[b] > 0) groups[problem.prefix_group[b]].push_back(b);
    }
    std::vector<std::int64_t> own(shared.begin() + static_cast<std::ptrdiff_t>(begin), shared.end());
    std::fill(shared.begin() + static_cast<std::ptrdiff_t>(begin), shared.end(), 0);
    for (const auto& [group, members] : groups) {
      if (members.size() < 2) continue;
      std::int64_t least = own[members.front() - begin];
      for (const std::size_t b : members) least = std::min(least, own[b - begin]);
      for (const std::size_t b : members) shared[b] = least;
      keys.shared_units += units_in(least);
      keys.again += units_in(std::min(read[group], least));
      read[group] = std::max(read[group], least);
    }
  }
  return shared;
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
  const std::vector<KeyRuns> all = decode_mma_runs(problem, mods, bindings);
  const std::vector<std::int64_t> shared = shared_keys(problem, config, all, keys);
  for (std::size_t b = 0; b < all.size(); ++b) {
    std::int64_t units = 0, before = shared[b];
    for (const KeyRun& run : {all[b].first, all[b].second}) {
      if (run.empty()) continue;
      keys.read += run.end - run.begin;
      units += (run.end - run.begin - before + config.kv_block - 1) / config.kv_block;
      before = 0;
    }
    keys.units += std::max<std::int64_t>(units, 1);
  }
  keys.units += keys.shared_units;
  return keys;
}

int decode_mma_tested_heads(const KernelMods& mods, const shared::ForwardMmaConfig& config) {
  if (!config.masked || !config.device_lengths || config.chunked()) return 0;
  if (config.prefixed() || (config.wide() && config.by_warpgroups())) return 0;
  if (!expr::leaves_holes(mods.mask)) return 0;
  return mods.mask.node()->uses.has(Leaf::h) ? config.packed_heads : 1;
}

std::string decode_mma_mask_form(const KernelMods& mods, const shared::ForwardMmaConfig& config) {
  if (mods.mask.empty()) return "";
  const expr::KeyBounds bounds(mods.mask);
  const std::string left = config.tested_heads > 0
                               ? fmt::format("blocks of {} keys are read of which it leaves {}", config.block_keys(),
                                             config.tested_heads > 1 ? "some head a pair" : "a pair")
                               : "";
  if (!bounds.bounds()) {
    return fmt::format("computed for each pair; it bounds no keys, so {}", left.empty() ? "all are read" : left);
  }
  return fmt::format("computed for each pair; keys are read where {}{}{}", bounds.text(), left.empty() ? "" : "; ",
                     left);
}

}  // namespace heddle::plan
