// How backward_mma sums the gradients of captures and params (kernels/portable/backward_mma/read_sums.cuh).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "families/backward_mma/shared/backward_mma_params.h"
#include "plan/capture_sums.h"
#include "plan/mods/backward_mods.h"
#include "problem/problem.h"

namespace heddle::plan {

struct MmaRead : SummedRead {
  shared::ReadRows rows{};  // that its place depends on
  double parts = 0;         // the most that one element is the sum of
};

struct MmaReads {
  std::vector<CaptureSum> sums;
  std::vector<MmaRead> reads;
  bool ordered = false;  // the same bits in each run: parts are added as integers

  bool any() const { return !sums.empty(); }
  /// Elements of all sums.
  std::int64_t elements() const;
  /// An element of that sum has less than 2^bits() parts.
  int bits(std::size_t sum) const;
  /// For a layout of their captures and params.
  std::vector<Expr> all() const { return expressions_of(reads); }
};
/// Empty without gradients of captures and params. Bindings: the captures' shapes. `mods`: of the problem, whose places
/// and kv_start reads have, too.
MmaReads mma_reads(const problem::AttentionProblem& problem, const Bindings& bindings, const BackwardMods& mods);

/// Empty where the family takes them; else a sentence.
std::string refuses_mma_reads(const MmaReads& reads);

/// A sentence for each sum.
std::vector<std::string> describe_mma_reads(const MmaReads& reads);

/// Which reads the passes sum: bits of their numbers. `d_k`, `d_q`: that gradient is asked for. A pass of queries is
/// made for sums of reads alone, too.
struct ReadsOfPasses {
  int keys = 0, queries = 0;
};
ReadsOfPasses reads_of_passes(const MmaReads& reads, bool d_k, bool d_q);

}  // namespace heddle::plan
