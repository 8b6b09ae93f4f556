#include "families/backward_mma/backward_mma_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "expr/node.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ReadRows;

ReadRows rows_of(ReadDependence dependence) {
  switch (dependence) {
    case ReadDependence::one:
      return ReadRows::none;
    case ReadDependence::keys:
      return ReadRows::keys;
    case ReadDependence::queries:
      return ReadRows::queries;
    default:
      return ReadRows::pairs;
  }
}

std::string_view how(ReadRows rows) {
  switch (rows) {
    case ReadRows::none:
      return "a sum of each row of a tile";
    case ReadRows::keys:
      return "a sum of each key and head";
    case ReadRows::queries:
      return "a sum of each query and head";
    case ReadRows::pairs:
      break;
  }
  return "pairs of a query and a key one by one";
}

/// Each pair of a sequence and a head has an element of its own. Two granules may have one position.
bool is_of_pairs(const AttentionProblem& problem, const ReadGradient& read, const Places& places) {
  if (places.any()) return false;
  const auto has_axis = [&](expr::Leaf index, expr::Leaf token) {
    return std::ranges::any_of(read.indices, [&](const Expr& e) {
      return e.node()->op == expr::Op::leaf && (e.node()->leaf() == index || e.node()->leaf() == token);
    });
  };
  return !problem.reads_leave && has_axis(expr::Leaf::q_idx, expr::Leaf::q_token) &&
         has_axis(expr::Leaf::kv_idx, expr::Leaf::kv_token);
}

/// A pass of keys sums a read of these rows; else a pass of queries.
bool is_of_keys(ReadRows rows, bool d_k, bool d_q) { return rows == ReadRows::keys ? d_k : d_k && !d_q; }

/// The most parts that one element gets, of all sequences and heads: a part a row where threads add up what belongs to
/// their rows, else a part a pair.
double parts_of(const AttentionProblem& problem, const ReadGradient& read, const Places& places) {
  const ReadRows rows = rows_of(read.dependence);
  const bool of_keys = is_of_keys(rows, problem.wanted.k, problem.wanted.q);
  const bool held = rows == ReadRows::none || rows == (of_keys ? ReadRows::keys : ReadRows::queries);
  double parts = 0;
  for (const Sequence& sequence : problem.sequences) {
    const auto queries = static_cast<double>(sequence.q_len), keys = static_cast<double>(sequence.kv_len);
    parts += is_of_pairs(problem, read, places) ? 1 : !held ? queries * keys : of_keys ? keys : queries;
  }
  return parts * static_cast<double>(problem.q_heads);
}

}  // namespace

int MmaReads::bits(std::size_t sum) const {
  constexpr int kMost = 60;
  double parts = 1;
  for (const MmaRead& read : reads) {
    if (read.sum == static_cast<int>(sum)) parts += read.parts;
  }
  return std::min(kMost, std::ilogb(parts) + 1);
}

std::int64_t MmaReads::elements() const {
  std::int64_t elements = 0;
  for (const CaptureSum& sum : sums) elements += sum.count;
  return elements;
}

MmaReads mma_reads(const AttentionProblem& problem, const Bindings& bindings, const BackwardMods& mods) {
  MmaReads reads;
  if (problem.wanted.captures.empty() && problem.wanted.params.empty()) return reads;
  reads.sums = capture_sums(problem, bindings, mods.places);
  reads.ordered = problem.deterministic;
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    if (reads.sums[i].count == 0) continue;  // what reads it takes its fill
    for (const ReadGradient& read : reads.sums[i].reads) {
      reads.reads.push_back({summed_read(static_cast<int>(i), read, problem, mods.kv_start), rows_of(read.dependence),
                             parts_of(problem, read, mods.places)});
    }
  }
  return reads;
}

std::string refuses_mma_reads(const MmaReads& reads) {
  if (std::ssize(reads.sums) > shared::kMostMmaSums) {
    return fmt::format("gradients of {} captures and params are asked for; up to {} are accepted", reads.sums.size(),
                       shared::kMostMmaSums);
  }
  if (std::ssize(reads.reads) > shared::kMostMmaReads) {
    return fmt::format("mods read what has a gradient in {} places; up to {} are accepted", reads.reads.size(),
                       shared::kMostMmaReads);
  }
  return {};
}

std::vector<std::string> describe_mma_reads(const MmaReads& reads) {
  std::vector<std::string> sentences;
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    std::string ways;
    for (const MmaRead& read : reads.reads) {
      if (read.sum != static_cast<int>(i) || ways.find(how(read.rows)) != std::string::npos) continue;
      ways += fmt::format("{}{}", ways.empty() ? "" : "; ", how(read.rows));
    }
    sentences.push_back(
        ways.empty() ? fmt::format("{}: 0, since no mod depends on it smoothly", named(reads.sums[i]))
                     : fmt::format("{}: {}; {}", named(reads.sums[i]), ways,
                                   reads.ordered ? "added as integers; the same bits in each run"
                                                 : "added in any order, so that bits may differ from run to run"));
  }
  if (reads.ordered && !reads.reads.empty()) {
    sentences.push_back("gradients of captures and params: passes before find the largest part of each sum");
  }
  return sentences;
}

ReadsOfPasses reads_of_passes(const MmaReads& reads, bool d_k, bool d_q) {
  ReadsOfPasses found;
  for (std::size_t i = 0; i < reads.reads.size(); ++i) {
    (is_of_keys(reads.reads[i].rows, d_k, d_q) ? found.keys : found.queries) |= 1 << i;
  }
  return found;
}

}  // namespace heddle::plan
