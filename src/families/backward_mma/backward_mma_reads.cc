#include "families/backward_mma/backward_mma_reads.h"

#include <fmt/format.h>

#include <string_view>

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

}  // namespace

std::int64_t MmaReads::elements() const {
  std::int64_t elements = 0;
  for (const CaptureSum& sum : sums) elements += sum.count;
  return elements;
}

MmaReads mma_reads(const AttentionProblem& problem, const Bindings& bindings, const KvStart& start) {
  MmaReads reads;
  if (problem.wanted.captures.empty() && problem.wanted.params.empty()) return reads;
  reads.sums = capture_sums(problem, bindings);
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    if (reads.sums[i].count == 0) continue;  // what reads it takes its fill
    for (const ReadGradient& read : reads.sums[i].reads) {
      reads.reads.push_back({summed_read(static_cast<int>(i), read, problem, start), rows_of(read.dependence)});
    }
  }
  return reads;
}

std::string refuses_mma_reads(const AttentionProblem& problem, const MmaReads& reads) {
  if (std::ssize(reads.sums) > shared::kMostMmaSums) {
    return fmt::format("gradients of {} captures and params are asked for; up to {} are accepted", reads.sums.size(),
                       shared::kMostMmaSums);
  }
  if (std::ssize(reads.reads) > shared::kMostMmaReads) {
    return fmt::format("mods read what has a gradient in {} places; up to {} are accepted", reads.reads.size(),
                       shared::kMostMmaReads);
  }
  if (!problem.deterministic || reads.reads.empty()) return {};
  return fmt::format(
      "deterministic is asked for, and the gradient of '{}', which CTAs add up in any order; gradients of q, k, v and "
      "sinks are accepted",
      reads.sums[static_cast<std::size_t>(reads.reads.front().sum)].name);
}

std::vector<std::string> describe_mma_reads(const MmaReads& reads) {
  std::vector<std::string> sentences;
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    std::string ways;
    for (const MmaRead& read : reads.reads) {
      if (read.sum != static_cast<int>(i) || ways.find(how(read.rows)) != std::string::npos) continue;
      ways += fmt::format("{}{}", ways.empty() ? "" : "; ", how(read.rows));
    }
    sentences.push_back(ways.empty()
                            ? fmt::format("{}: 0, since no mod depends on it smoothly", named(reads.sums[i]))
                            : fmt::format("{}: {}; added in any order, so that bits may differ from run to run",
                                          named(reads.sums[i]), ways));
  }
  return sentences;
}

ReadsOfPasses reads_of_passes(const MmaReads& reads, bool d_k, bool d_q) {
  ReadsOfPasses found;
  for (std::size_t i = 0; i < reads.reads.size(); ++i) {
    const bool of_keys = reads.reads[i].rows == ReadRows::keys ? d_k : d_k && !d_q;
    (of_keys ? found.keys : found.queries) |= 1 << i;
  }
  return found;
}

}  // namespace heddle::plan
