#include "problem/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "expr/node.h"

namespace heddle {

std::string_view name(BackendChoice backend) {
  switch (backend) {
    case BackendChoice::automatic:
      return "automatic";
    case BackendChoice::cpu:
      return "cpu";
    case BackendChoice::reference:
      return "reference";
    case BackendChoice::cuda:
      return "cuda";
    case BackendChoice::amd:
      break;
  }
  return "amd";
}

}  // namespace heddle

namespace heddle::problem {
namespace {

std::string describe_sequences(const AttentionProblem& problem) {
  const std::string pages =
      problem.page_rows > 0
          ? fmt::format(", {}pages of {} rows", problem.listed_pages ? "listed " : "", problem.page_rows)
          : "";
  if (problem.device_lengths) {
    const Sequence longest = problem.sequences.empty() ? Sequence{} : problem.sequences.front();
    return fmt::format("{} {}sequences, lengths on {} of up to {} queries and {} keys{}{}", problem.batch,
                       problem.packed ? "packed " : "", name(problem.device), longest.q_len, longest.kv_len,
                       problem.device_starts && problem.device_kv_starts ? ", q_start and kv_start there"
                       : problem.device_starts                           ? ", q_start there"
                       : problem.device_kv_starts                        ? ", kv_start there"
                                                                         : "",
                       (problem.with_prefixes ? ", prefixes there" : "") + pages);
  }
  const auto has_length = [&](const Sequence& s) { return s.q_len == problem.q_rows && s.kv_len == problem.kv_rows; };
  std::string text = problem.packed ? fmt::format("{} packed sequences", problem.batch)
                     : std::ranges::all_of(problem.sequences, has_length) ? "full lengths"
                                                                          : "lengths by sequence";
  const auto is_zero = [](std::int64_t start) { return start == 0; };
  if (!std::ranges::all_of(problem.sequences, is_zero, &Sequence::q_start)) text += ", q_start";
  if (!std::ranges::all_of(problem.sequences, is_zero, &Sequence::kv_start)) text += ", kv_start";
  if (problem.with_prefixes) text += ", prefixes";
  return text + pages;
}

expr::Range span(double lo, double hi) { return {.lo = lo, .hi = hi}; }

// "dq, dv, d 'slopes'"
std::string describe_wanted(const WantedGradients& wanted) {
  std::vector<std::string> names;
  if (wanted.q) names.push_back("dq");
  if (wanted.k) names.push_back("dk");
  if (wanted.v) names.push_back("dv");
  if (wanted.sinks) names.push_back("d_sinks");
  for (const auto* list : {&wanted.captures, &wanted.params}) {
    for (const std::string& name : *list) names.push_back(fmt::format("d '{}'", name));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// "; reads clamped"
std::string describe_flags(const AttentionProblem& problem) {
  std::string text;
#define HEDDLE_FLAG_OPTION(name, shown, help) \
  if (problem.name) text += "; " shown;
#include "heddle/options.def"
  return text;
}

// "576", or "512 + 64" of two tensors.
std::string describe_dim(std::int64_t all, std::int64_t rest) {
  return rest == 0 ? fmt::format("{}", all) : fmt::format("{} + {}", all - rest, rest);
}

// Results in a problem's description: a forward's "-> bf16 o, lse", or a backward's gradients.
std::string describe_results(const AttentionProblem& problem) {
  if (problem.pass == Pass::forward) {
    return fmt::format("{} o{}{}{}", heddle::name(problem.o_dtype), problem.with_lse ? ", lse" : "",
                       problem.with_lse_rest ? ", lse_rest" : "", problem.with_max_scores ? ", max_scores" : "");
  }
  return fmt::format("{} from {} o and d_o{}{}{}", describe_wanted(problem.wanted), heddle::name(problem.o_dtype),
                     problem.with_lse_rest ? " and lse_rest" : "", problem.with_d_lse ? " and d_lse" : "",
                     describe_backward_flags(problem));
}

}  // namespace

std::string_view name(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

std::string_view name(Normalizer normalizer) {
  switch (normalizer) {
    case Normalizer::softmax:
      return "softmax";
    case Normalizer::none:
      return "none";
    case Normalizer::sigmoid:
      break;
  }
  return "sigmoid";
}

std::string name(const Device& device) {
  if (device.kind == DeviceKind::cpu) return device.index == 0 ? "the CPU" : fmt::format("cpu:{}", device.index);
  return fmt::format("{}:{}", device.kind == DeviceKind::cuda ? "cuda" : "rocm", device.index);
}

std::string describe_backward_flags(const AttentionProblem& problem) {
  std::string text;
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) \
  if (problem.name) text += "; " shown;
#include "heddle/options.def"
  return text;
}

std::string to_string(const AttentionProblem& problem) {
  const std::int64_t tensor_batch = problem.packed ? 1 : problem.batch;
  return fmt::format("{} {} {} q[{}, {}, {}, {}] {} k[.., {}, {}, {}] {} v[.., {}, {}, {}] -> {}; scale {}; {}{}{}",
                     name(problem.pass), name(problem.normalizer), heddle::name(problem.q_dtype), tensor_batch,
                     problem.q_heads, problem.q_rows, describe_dim(problem.qk_dim, problem.q_rest_dim),
                     heddle::name(problem.k_dtype), problem.kv_heads, problem.kv_rows,
                     describe_dim(problem.qk_dim, problem.k_rest_dim), heddle::name(problem.v_dtype), problem.kv_heads,
                     problem.kv_rows, problem.v_dim, describe_results(problem), problem.scale,
                     describe_sequences(problem), problem.with_sinks ? "; sinks" : "", describe_flags(problem));
}

bool sequences_differ(const AttentionProblem& problem) {
  return problem.device_lengths || std::ranges::any_of(problem.sequences, [&](const Sequence& sequence) {
           const Sequence whole = {.q_len = problem.q_rows,
                                   .kv_len = problem.kv_rows,
                                   .q_start = problem.sequences.front().q_start,
                                   .kv_start = sequence.kv_start};
           return sequence != whole;
         });
}

bool reads_device_lengths(const AttentionProblem& problem, const Expr& mod) {
  using expr::Leaf;
  if (!problem.device_lengths || mod.empty()) return false;
  expr::LeafSet unknown = {Leaf::q_len, Leaf::kv_len};
  if (problem.packed) unknown = unknown | expr::LeafSet{Leaf::q_token};
  // With keys in pages, kv_token counts from each sequence's own beginning.
  if (problem.packed && problem.page_rows == 0) unknown = unknown | expr::LeafSet{Leaf::kv_token};
  if (problem.device_starts) unknown = unknown | expr::LeafSet{Leaf::q_start, Leaf::q_idx};
  if (problem.device_kv_starts) unknown = unknown | expr::LeafSet{Leaf::kv_start, Leaf::kv_idx};
  return mod.node()->uses.intersects(unknown);
}

bool has_elements(const AttentionProblem& problem) {
  return problem.q_heads > 0 && std::ranges::any_of(problem.sequences, [](const Sequence& sequence) {
           return sequence.q_len > 0 && sequence.kv_len > 0;
         });
}

expr::LeafRanges leaf_ranges(const AttentionProblem& problem) {
  using expr::Leaf;
  std::int64_t q_idx_first = INT64_MAX, q_idx_last = INT64_MIN, kv_idx_first = INT64_MAX, kv_idx_last = INT64_MIN;
  Sequence least{INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}, most{};
  most.q_start = most.kv_start = INT64_MIN;
  for (const Sequence& sequence : problem.sequences) {
    if (sequence.q_len == 0 || sequence.kv_len == 0) continue;
    q_idx_first = std::min(q_idx_first, sequence.q_start);
    q_idx_last = std::max(q_idx_last, sequence.q_start + sequence.q_len - 1);
    kv_idx_first = std::min(kv_idx_first, sequence.kv_start);
    kv_idx_last = std::max(kv_idx_last, sequence.kv_start + sequence.kv_len - 1);
    for (auto field : {&Sequence::q_len, &Sequence::kv_len, &Sequence::q_start, &Sequence::kv_start}) {
      least.*field = std::min(least.*field, sequence.*field);
      most.*field = std::max(most.*field, sequence.*field);
    }
  }
  const auto range = [](std::int64_t lo, std::int64_t hi) {
    return span(static_cast<double>(lo), static_cast<double>(hi));
  };
  // A mod is evaluated where there is a query and a key.
  if (problem.device_lengths) least.q_len = least.kv_len = 1;
  if (problem.device_starts) {
    q_idx_first = least.q_start = INT32_MIN;
    q_idx_last = most.q_start = INT32_MAX;
  }
  if (problem.device_kv_starts) {
    kv_idx_first = least.kv_start = INT32_MIN;
    kv_idx_last = most.kv_start = INT32_MAX;
  }
  expr::LeafRanges leaves;
  leaves[Leaf::score] = expr::Range::any(ExprType::f32);
  leaves[Leaf::b] = range(0, problem.batch - 1);
  leaves[Leaf::h] = range(0, problem.q_heads - 1);
  leaves[Leaf::q_idx] = range(q_idx_first, q_idx_last);
  leaves[Leaf::kv_idx] = range(kv_idx_first, kv_idx_last);
  leaves[Leaf::q_token] = range(0, problem.q_rows - 1);
  leaves[Leaf::kv_token] = range(0, problem.kv_rows - 1);
  leaves[Leaf::q_len] = range(least.q_len, most.q_len);
  leaves[Leaf::kv_len] = range(least.kv_len, most.kv_len);
  leaves[Leaf::q_start] = range(least.q_start, most.q_start);
  leaves[Leaf::kv_start] = range(least.kv_start, most.kv_start);
  return leaves;
}

expr::LeafRanges form_ranges(const AttentionProblem& problem) {
  expr::LeafRanges leaves = leaf_ranges(problem);
  if (!problem.batch_invariant) return leaves;
  using expr::Leaf;
  for (const Leaf leaf : {Leaf::q_idx, Leaf::kv_idx, Leaf::q_start, Leaf::kv_start})
    leaves[leaf] = span(INT32_MIN, INT32_MAX);
  for (const Leaf leaf : {Leaf::b, Leaf::q_token, Leaf::kv_token}) leaves[leaf] = span(0, INT32_MAX);
  for (const Leaf leaf : {Leaf::q_len, Leaf::kv_len}) leaves[leaf] = span(1, INT32_MAX);
  return leaves;
}

}  // namespace heddle::problem
