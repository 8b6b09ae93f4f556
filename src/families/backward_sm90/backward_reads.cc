#include "families/backward_sm90/backward_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "expr/node.h"
#include "expr/simplify.h"
#include "plan/tiles/backward_schedule.h"

namespace heddle::plan {
namespace {

using expr::Leaf;
using expr::LeafSet;
using problem::AttentionProblem;
using shared::ReadKind;

constexpr LeafSet kOfKeys = {Leaf::kv_idx, Leaf::kv_token, Leaf::score};
constexpr LeafSet kOfQueries = {Leaf::q_idx, Leaf::q_token, Leaf::score};
/// Bytes of partials, each of 64 keys, that a plan keeps apart even where the caller did not ask for `deterministic`.
constexpr std::int64_t kMostApart = std::int64_t{512} << 20;

bool uses(const Expr& e, LeafSet leaves) { return e.node()->uses.intersects(leaves); }

bool has_axis(const ReadGradient& read, LeafSet leaves) {
  return std::ranges::any_of(read.indices, [&](const Expr& index) {
    return index.node()->op == expr::Op::leaf && leaves.has(index.node()->leaf());
  });
}

/// All pairs of one sequence and head have places of their own.
bool is_of_pairs(const AttentionProblem& problem, const ReadGradient& read) {
  return !problem.reads_leave && has_axis(read, {Leaf::q_idx, Leaf::q_token}) &&
         has_axis(read, {Leaf::kv_idx, Leaf::kv_token});
}

/// Starts that only the device knows count as 0: whatever they are, they move all keys of a sequence, or all queries,
/// alike.
bool is_of_distance(const AttentionProblem& problem, const ReadGradient& read) {
  AttentionProblem from_zero = problem;
  from_zero.device_starts = from_zero.device_kv_starts = false;
  const expr::LeafRanges leaves = problem::leaf_ranges(from_zero);
  return std::ranges::all_of(read.indices, [&](const Expr& index) {
    const Expr simple = expr::simplify(index, problem.precision);
    return !(uses(simple, kOfKeys) || uses(simple, kOfQueries)) || expr::term_of_distance(simple, leaves).has_value();
  });
}

ReadKind kind_of(const AttentionProblem& problem, const CaptureSum& sum, const ReadGradient& read) {
  const bool of_rows = read.dependence == ReadDependence::one || read.dependence == ReadDependence::queries;
  const bool additive = !read.of_weight && problem.normalizer == Normalizer::softmax && !uses(read.slope, kOfKeys);
  // A row's d_lse and sink are of all its keys.
  if (of_rows && additive && !problem.partial_keys) return ReadKind::closed;
  if (read.dependence == ReadDependence::queries) return ReadKind::rows;
  if (read.dependence == ReadDependence::one || read.dependence == ReadDependence::keys) return ReadKind::columns;
  if (is_of_pairs(problem, read) && sum.reads.size() == 1) {
    const bool apart = (sum.of_sequence && (problem.q_heads <= 1 || has_axis(read, {Leaf::h})));
    if (apart) return ReadKind::stored;
    if (problem.deterministic) return ReadKind::owned;
  }
  if (problem::has_elements(problem) && is_of_distance(problem, read)) return ReadKind::diagonals;
  return ReadKind::added;
}

// A switch and not a table, so that a new kind does not compile without words.
std::string_view how(ReadKind kind) {
  switch (kind) {
    case ReadKind::columns:
      return "a sum of each key";
    case ReadKind::rows:
      return "a sum of each query";
    case ReadKind::closed:
      return "what each row's d_lse and sink say, without a pass over its keys";
    case ReadKind::diagonals:
      return "a sum of each distance";
    case ReadKind::stored:
      return "each element is stored by the pair of a query and a key that reads it";
    case ReadKind::owned:
      return "each element is added by one thread, tile after tile";
    case ReadKind::added:
      break;
  }
  return "elements are added in f32";
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + 127) / 128 * 128; }

std::int64_t longest(const AttentionProblem& problem, std::int64_t Sequence::*length) {
  std::int64_t most = 0;
  for (const Sequence& sequence : problem.sequences) most = std::max(most, sequence.*length);
  return most;
}

std::int64_t partial_floats(const AttentionProblem& problem, ReadKind kind, bool apart) {
  const int heads = static_cast<int>(problem.q_heads), groups = key_groups(problem);
  const std::int64_t blocks = count_row_blocks(problem);
  switch (kind) {
    case ReadKind::columns:
      return (problem.packed ? problem.kv_rows : problem.batch * problem.kv_rows) * heads;
    case ReadKind::rows:
      return shared::row_slots(blocks, heads, groups, apart) * shared::kBlockRows;
    case ReadKind::diagonals:
      return shared::diagonal_slots(blocks, static_cast<int>(problem.batch), heads, groups, apart) * shared::kBlockRows;
    default:
      return 0;
  }
}

}  // namespace

bool BackwardReads::visits_pairs() const {
  return std::ranges::any_of(reads, [](const BackwardRead& read) { return shared::visits_pairs(read.kind); });
}
bool BackwardReads::of_weights() const { return std::ranges::any_of(reads, &BackwardRead::of_weight); }
bool BackwardReads::has(ReadKind kind) const {
  return std::ranges::any_of(reads, [&](const BackwardRead& read) { return read.kind == kind; });
}
bool BackwardReads::stores(std::size_t sum) const {
  return std::ranges::any_of(reads, [&](const BackwardRead& read) {
    return read.sum == static_cast<int>(sum) && read.kind == ReadKind::stored;
  });
}
bool BackwardReads::has_partials(std::size_t sum) const {
  return std::ranges::any_of(reads, [&](const BackwardRead& read) {
    return read.sum == static_cast<int>(sum) && shared::has_partials(read.kind);
  });
}

BackwardReads backward_reads(const AttentionProblem& problem, const Bindings& bindings, const KvStart& start) {
  BackwardReads reads;
  if (problem.wanted.captures.empty() && problem.wanted.params.empty()) return reads;
  reads.sums = capture_sums(problem, bindings);
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    const CaptureSum& sum = reads.sums[i];
    if (sum.count == 0) continue;  // what reads it takes its fill
    for (const ReadGradient& read : sum.reads) {
      const ReadKind kind = kind_of(problem, sum, read);
      reads.reads.push_back({summed_read(static_cast<int>(i), read, problem, start), kind});
      if (kind != ReadKind::owned) continue;
      reads.round_a_sequence = reads.round_a_sequence || !sum.of_sequence;
      reads.round_a_head = reads.round_a_head || !sum.of_head;
    }
  }
  std::int64_t apart = 0;
  for (const BackwardRead& read : reads.reads) {
    if (read.kind != ReadKind::columns) apart += 4 * partial_floats(problem, read.kind, true);
  }
  reads.apart = problem.deterministic || apart <= kMostApart;
  return reads;
}

std::string refuses_reads(const AttentionProblem& problem, const BackwardReads& reads) {
  if (std::ssize(reads.sums) > shared::kMostSums) {
    return fmt::format("gradients of {} captures and params are asked for; up to {} are accepted", reads.sums.size(),
                       shared::kMostSums);
  }
  if (std::ssize(reads.reads) > shared::kMostReads) {
    return fmt::format("mods read what has a gradient in {} places; up to {} are accepted", reads.reads.size(),
                       shared::kMostReads);
  }
  if (!problem.deterministic) return {};
  for (const BackwardRead& read : reads.reads) {
    if (read.kind != ReadKind::added) continue;
    const CaptureSum& sum = reads.sums[static_cast<std::size_t>(read.sum)];
    std::string indices;
    for (const Expr& index : read.indices) indices += (indices.empty() ? "" : ", ") + print(index);
    return fmt::format(
        "deterministic is asked for, and {} is read at [{}], where pairs of a query and a key meet in any order; "
        "indices of the key alone, of the query alone, of kv_idx - q_idx, or q_idx and kv_idx themselves are accepted",
        named(sum), indices);
  }
  return {};
}

std::vector<std::string> describe_reads(const BackwardReads& reads) {
  std::vector<std::string> sentences;
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    std::string ways;
    bool ordered = true;
    for (const BackwardRead& read : reads.reads) {
      if (read.sum != static_cast<int>(i)) continue;
      const std::string way(how(read.kind));
      if (ways.find(way) == std::string::npos) ways += (ways.empty() ? "" : "; ") + way;
      const bool mixed = !reads.apart && (read.kind == ReadKind::rows || read.kind == ReadKind::diagonals);
      ordered = ordered && read.kind != ReadKind::added && !mixed;
    }
    if (ways.empty()) {
      sentences.push_back(fmt::format("{}: 0, since no mod depends on it smoothly", named(reads.sums[i])));
      continue;
    }
    sentences.push_back(fmt::format(
        "{}: {}; {}", named(reads.sums[i]), ways,
        ordered ? "the same bits in each run" : "added in any order, so that bits may differ from run to run"));
  }
  if (reads.visits_pairs()) {
    sentences.push_back("gradients of captures: a pass of its own recomputes S, P and dP");
  }
  return sentences;
}

int key_groups(const AttentionProblem& problem) {
  const std::int64_t keys = longest(problem, &Sequence::kv_len);
  return static_cast<int>((keys + shared::kBlockRows - 1) / shared::kBlockRows);
}

BackwardReadsMemory backward_reads_memory(const AttentionProblem& problem, const BackwardReads& reads) {
  BackwardReadsMemory memory;
  const auto reserve = [&](std::int64_t bytes) {
    const std::int64_t offset = memory.bytes;
    memory.bytes += aligned(bytes);
    return offset;
  };
  for (const BackwardRead& read : reads.reads) {
    const std::int64_t floats = partial_floats(problem, read.kind, reads.apart);
    memory.partials.push_back(floats > 0 ? reserve(4 * floats) : -1);
  }
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    const bool partials = reads.has_partials(i);
    memory.fixed.push_back(partials ? reserve(8 * reads.sums[i].count) : -1);
    memory.floats.push_back(reads.stores(i) ? -1 : reserve(4 * reads.sums[i].count));
    memory.largest.push_back(partials ? reserve(4) : -1);
  }
  return memory;
}

shared::BackwardSm90Config reads_config(shared::BackwardSm90Config config, const BackwardReads& reads) {
  config.reads = true;
  if (config.d_q_apart) config.q_stages = config.d_o_stages = 3;
  config.d_q_apart = config.held = false;
  config.d_q = config.ordered = config.ring = false;
  config.early_numbers = false;
  config.diagonals = reads.has(ReadKind::diagonals);
  config.row_sums = reads.has(ReadKind::rows);
  // Only gradients of rows need these.
  config.sinks = config.vectorised_rows = config.odd_gradients = config.vectorised_gradients = config.vectorised_d_q =
      false;
  config.o_type = config.d_q_type = config.d_k_type = config.d_v_type = shared::StorageType::same;
  config.d_sinks_type = shared::StorageType::f32;
  return config;
}

}  // namespace heddle::plan
