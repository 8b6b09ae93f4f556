#include "tune/problem_class.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <variant>

#include "heddle/devices.h"

namespace heddle::tune {
namespace {

using problem::AttentionProblem;

std::string machine_text(const plan::Request& request) {
  const AttentionProblem& problem = request.problem;
  if (problem.device.kind == DeviceKind::cpu) {
    const device::Caps& caps = request.machine.cpu;
    const std::string_view unit = caps.matrix_unit == device::MatrixUnit::none ? "" : ", AMX";
    return fmt::format("{}, {}{}, {} cores, L2 {}, L3 {}", caps.name, caps.simd_target, unit, caps.cores, caps.l2_bytes,
                       caps.l3_bytes);
  }
  if (problem.device.kind == DeviceKind::rocm) {
    const auto caps = std::ranges::find(request.machine.amd, problem.device.index, &device::AmdCaps::index);
    if (caps == request.machine.amd.end()) return problem::name(problem.device);  // planning refuses it
    return fmt::format("{}, {}, {} compute units", caps->name, caps->architecture, caps->compute_units);
  }
  const auto caps = std::ranges::find(request.machine.cuda, problem.device.index, &device::CudaCaps::index);
  if (caps == request.machine.cuda.end()) return problem::name(problem.device);  // planning refuses it
  return fmt::format("{}, {}.{}, {} multiprocessors", caps->name, caps->major, caps->minor, caps->multiprocessors);
}

std::uint64_t rounded(std::int64_t extent) {
  return std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, extent)));
}

std::string size_text(const AttentionProblem& problem) {
  std::int64_t q_len = 0, kv_len = 0;
  for (const Sequence& sequence : problem.sequences) {
    q_len = std::max(q_len, sequence.q_len);
    kv_len = std::max(kv_len, sequence.kv_len);
  }
  return fmt::format("{} heads of keys, {} queries, {} keys", rounded(problem.batch * problem.kv_heads), rounded(q_len),
                     rounded(kv_len));
}

std::string storage_text(const AttentionProblem& problem) {
  std::string text =
      fmt::format("{} {} {} -> {}, head dims {} and {}, group {}", name(problem.q_dtype), name(problem.k_dtype),
                  name(problem.v_dtype), name(problem.o_dtype), problem.qk_dim, problem.v_dim, problem.group());
  const auto add = [&](bool there, std::string_view what) {
    if (there) text += fmt::format(", {}", what);
  };
  add(problem.with_lse, "lse");
  add(problem.with_max_scores, "max_scores");
  add(problem.with_lse_rest, "lse_rest");
  add(problem.with_sinks, "sinks");
  add(problem.batch_invariant, "batch-invariant");
  add(problem.allow_tf32, "tf32 products");
  add(problem.packed, "packed");
  add(problem::sequences_differ(problem), "sequences differ");
  add(problem.shared_kv, "one k and v for all sequences");
  add(problem.device_lengths, "lengths on the device");
  add(problem.device_starts || problem.device_kv_starts, "starts on the device");
  add(problem.fresh_tokens > 0, "fresh tokens");
  add(problem.with_prefixes, "prefixes");
  add(problem.q_rest_dim > 0, fmt::format("{} columns of q apart", problem.q_rest_dim));
  add(problem.k_rest_dim > 0, fmt::format("{} columns of k apart", problem.k_rest_dim));
  if (problem.page_rows > 0)
    text += fmt::format(", {}pages of {}", problem.listed_pages ? "listed " : "", problem.page_rows);
  return text;
}

/// With the mask's params: a window of 128 wants another tile than one of 4096.
std::string mods_text(const plan::Request& request) {
  const AttentionProblem& problem = request.problem;
  std::string text;
  for (const auto& [role, mod] : {std::pair<std::string_view, const Expr*>{"score", &problem.score_mod},
                                  {"mask", &problem.mask_mod},
                                  {"weight", &problem.weight_mod}}) {
    if (!mod->empty()) text += fmt::format("\n{}: {}", role, print(*mod));
  }
  if (problem.mask_mod.empty()) return text;
  for (const auto& [param, declared] : symbols_of(problem.mask_mod).params) {
    std::visit([&](auto value) { text += fmt::format("\n{} = {}", param, value); },
               request.options.bindings.params.at(param));
  }
  return text;
}

std::string gradients_text(const AttentionProblem& problem) {
  const problem::WantedGradients& wanted = problem.wanted;
  return fmt::format("\ngradients: q {}, k {}, v {}, sinks {}, {}, {}{}", wanted.q, wanted.k, wanted.v, wanted.sinks,
                     fmt::join(wanted.captures, " "), fmt::join(wanted.params, " "),
                     problem::describe_backward_flags(problem));
}

}  // namespace

std::string problem_class(const plan::Request& request) {
  const AttentionProblem& problem = request.problem;
  std::string text =
      fmt::format("heddle {} on {}\n{} {}, {}\n{}{}", version(), machine_text(request), problem::name(problem.pass),
                  problem::name(problem.normalizer), storage_text(problem), size_text(problem), mods_text(request));
  if (problem.pass == problem::Pass::backward) text += gradients_text(problem);
  return text;
}

}  // namespace heddle::tune
