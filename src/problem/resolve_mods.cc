#include "problem/resolve_mods.h"

#include <algorithm>
#include <array>

#include "expr/names.h"
#include "expr/verify.h"
#include "problem/capture_bounds.h"
#include "problem/one_device.h"
#include "problem/refuse.h"

namespace heddle::problem {
namespace {

std::array<const Expr*, 3> mods_of(const AttentionProblem& problem) {
  return {&problem.score_mod, &problem.mask_mod, &problem.weight_mod};
}

bool computes_with_reals(const Expr& e) {
  return std::ranges::any_of(expr::post_order(e), [](const expr::Node* node) { return node->type == ExprType::f32; });
}

void check_block_mask_shape(const AttentionProblem& problem, const BlockMask& mask) {
  const MaskShape& shape = mask.shape();
  if (std::ssize(shape.sequences) != problem.batch) {
    refuse("block_mask covers {} sequences; the batch's {} are accepted", shape.sequences.size(), problem.batch);
  }
  if (shape.heads != problem.q_heads && !(shape.heads == 1 && mask.shared_by_heads())) {
    refuse("block_mask covers {} head{}{}; q's {} are accepted, or 1 where the mask does not read h", shape.heads,
           shape.heads == 1 ? "" : "s", shape.heads == 1 ? ", and its mask reads h" : "", problem.q_heads);
  }
  for (std::size_t i = 0; i < shape.sequences.size(); ++i) {
    const Sequence& given = shape.sequences[i];
    const Sequence& own = problem.sequences[i];
    if (given == own) continue;
    refuse(
        "block_mask was made for sequence {} with q_begin {}, q_len {}, kv_begin {}, kv_len {}, q_start {}, kv_start "
        "{}; "
        "this attention's {}, {}, {}, {}, {}, {} are accepted",
        i, given.q_begin, given.q_len, given.kv_begin, given.kv_len, given.q_start, given.kv_start, own.q_begin,
        own.q_len, own.kv_begin, own.kv_len, own.q_start, own.kv_start);
  }
}

// The mask of the attention: mask_mod, or the one that the block mask was made from.
Expr resolve_mask(const AttentionProblem& problem, const AttentionOptions& options) {
  if (options.block_mask == nullptr) return options.mask_mod;
  const BlockMask& given = *options.block_mask;
  if (given.is_transposed()) refuse("block_mask is a transposed one; the rows of queries are accepted");
  check_block_mask_shape(problem, given);
  const Expr& mask = given.mask();
  if (!given.is_from_lists() && reads_device_lengths(problem, mask)) {
    refuse("block_mask was made from {}, which reads what only {} knows: the lengths; no block_mask is accepted",
           print(mask), name(problem.device));
  }
  if (!options.mask_mod.empty() && !same(options.mask_mod, mask)) {
    refuse("block_mask was made from {}, but mask_mod is {}; the same mask is accepted, or no mask_mod",
           mask.empty() ? "lists without a mask" : print(mask), print(options.mask_mod));
  }
  const DType reals = problem.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
  if (!mask.empty() && !given.is_from_lists() && given.reals() != reals && computes_with_reals(mask)) {
    refuse("block_mask was made with {} reals; {} is accepted for {} inputs", name(given.reals()), name(reals),
           name(problem.q_dtype));
  }
  return mask;
}

bool reads(const Expr& mod, const std::string& capture) {
  return !mod.empty() && symbols_of(mod).captures.contains(capture);
}

// Captures must be on q's device. Those that only the mask reads may be on the CPU too, where block masks are built.
void check_captures(const AttentionProblem& problem, const Bindings& bindings) {
  for (const std::string& name : problem.captures) {
    const std::string argument = fmt::format("capture '{}'", name);
    const ConstTensorView& view = bindings.captures.at(name);
    check_view(argument, view);
    const bool of_a_run = reads(problem.score_mod, name) || reads(problem.weight_mod, name);
    if (of_a_run || view.device.kind != DeviceKind::cpu) check_beside(argument, view, problem.device);
    check_memory(argument, view);
  }
}

// Some read is not inside its tensor for all values of params and captures.
bool may_leave(const AttentionProblem& problem, const Bindings& bindings) {
  if (!has_elements(problem)) return false;
  const expr::LeafRanges leaves = leaf_ranges(problem);
  return std::ranges::any_of(mods_of(problem), [&](const Expr* mod) {
    return !mod->empty() && !expr::reads_stay_inside(*mod, leaves, bindings, problem.precision);
  });
}

// Sorted, each once.
void make_set(std::vector<std::string>& names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace

void validate_bindings(const AttentionProblem& problem, const Bindings& bindings) {
  expr::require_names(bindings);
  for (const Expr* mod : mods_of(problem)) {
    if (!mod->empty()) expr::check_bound(*mod, bindings);
  }
  check_captures(problem, bindings);
  if (problem.clamp_reads || !has_elements(problem)) return;
  const expr::LeafRanges leaves = leaf_ranges(problem);
  const WholeCaptureBounds bounds(bindings);
  for (const Expr* mod : mods_of(problem)) {
    if (!mod->empty()) {
      expr::check_reads_inside(expr::bind_params(*mod, bindings), leaves, bounds, problem.precision);
    }
  }
}

void refuse_unread(const AttentionProblem& problem, const Bindings& bindings) {
  const auto refuse_other = [&](std::string_view kind, const std::string& name, const std::vector<std::string>& read) {
    if (std::ranges::binary_search(read, name)) return;
    const auto names = [](const std::vector<std::string>& list) {
      return list.empty() ? std::string("none") : fmt::format("'{}'", fmt::join(list, "', '"));
    };
    refuse("{} '{}' is given, but no mod reads it; params {} and captures {} are accepted", kind, name,
           names(problem.params), names(problem.captures));
  };
  for (const auto& [name, value] : bindings.params) refuse_other("param", name, problem.params);
  for (const auto& [name, view] : bindings.captures) refuse_other("capture", name, problem.captures);
}

bool reads_depend_on_values(const AttentionProblem& problem, const Bindings& bindings) {
  return !problem.clamp_reads && may_leave(problem, bindings);
}

void resolve_mods(AttentionProblem& problem, const AttentionOptions& options) {
  const Expr mask = resolve_mask(problem, options);
  if (!options.score_mod.empty()) problem.score_mod = expr::as_role(options.score_mod, expr::Role::score);
  if (!mask.empty()) problem.mask_mod = expr::as_role(mask, expr::Role::mask);
  if (!options.weight_mod.empty()) problem.weight_mod = expr::as_role(options.weight_mod, expr::Role::weight);
  for (const Expr* mod : mods_of(problem)) {
    if (mod->empty()) continue;
    const Symbols symbols = symbols_of(*mod);
    for (const auto& [name, declaration] : symbols.captures) problem.captures.push_back(name);
    for (const auto& [name, type] : symbols.params) problem.params.push_back(name);
  }
  make_set(problem.captures);
  make_set(problem.params);
  validate_bindings(problem, options.bindings);
  problem.reads_leave = problem.clamp_reads && may_leave(problem, options.bindings);
}

}  // namespace heddle::problem
