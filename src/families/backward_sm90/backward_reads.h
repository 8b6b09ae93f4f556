// How backward_sm90 sums the gradients of captures and params (families/backward_sm90/shared/backward_reads_params.h).
#pragma once

#include <string>
#include <vector>

#include "families/backward_sm90/shared/backward_reads_params.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/capture_sums.h"
#include "plan/mods/kv_start.h"
#include "problem/problem.h"

namespace heddle::plan {

struct BackwardRead : SummedRead {
  shared::ReadKind kind{};
};

struct BackwardReads {
  std::vector<CaptureSum> sums;
  std::vector<BackwardRead> reads;
  // The pass is launched once for each sequence, or each head of keys, one launch after the other, so that tiles add to
  // an element in order.
  bool round_a_sequence = false, round_a_head = false;
  bool apart = true;  // shared::BackwardReadsParams

  bool any() const { return !sums.empty(); }
  /// Some read needs the pass over all pairs.
  bool visits_pairs() const;
  bool of_weights() const;
  bool has(shared::ReadKind kind) const;
  /// The sum is stored by the pass itself.
  bool stores(std::size_t sum) const;
  bool has_partials(std::size_t sum) const;
  /// For a layout of their captures and params.
  std::vector<Expr> all() const { return expressions_of(reads); }
};
/// Empty without gradients of captures and params.
BackwardReads backward_reads(const problem::AttentionProblem& problem, const Bindings& bindings, const KvStart& start);

/// Empty where the family takes them; else a sentence.
std::string refuses_reads(const problem::AttentionProblem& problem, const BackwardReads& reads);

/// A sentence for each sum.
std::vector<std::string> describe_reads(const BackwardReads& reads);

/// Offsets in bytes from the place of all of it in the workspace. Each run begins with zeros there.
struct BackwardReadsMemory {
  std::vector<std::int64_t> partials;                // of each read; below 0: none
  std::vector<std::int64_t> fixed, floats, largest;  // of each sum; below 0: none
  std::int64_t bytes = 0;
};
BackwardReadsMemory backward_reads_memory(const problem::AttentionProblem& problem, const BackwardReads& reads);
/// Groups of 64 keys in the longest sequence.
int key_groups(const problem::AttentionProblem& problem);

/// The pass's kernel: the main one's, without gradients of rows.
shared::BackwardSm90Config reads_config(shared::BackwardSm90Config config, const BackwardReads& reads);

}  // namespace heddle::plan
