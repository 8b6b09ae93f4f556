#include "plan/mods/kv_start.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "expr/node.h"

namespace heddle::plan {
namespace {

using expr::Leaf;

/// First bound: positions plus as many keys are exact in f32, which sums with an f32 slope need. Second bound: they are
/// far from wrapping, which comparisons of distances need (term_of_distance.cc).
constexpr std::array<std::int32_t, 2> kBounds = {1 << 23, 1 << 28};

std::int32_t bound_of(std::span<const Sequence> sequences) {
  for (const std::int32_t bound : kBounds) {
    if (std::ranges::all_of(sequences, [&](const Sequence& s) { return std::abs(s.kv_start) <= bound; })) return bound;
  }
  return 0;
}

Expr value_of(const KvStart& start) {
  if (start.form == KvStart::Form::zero) return 0;
  const Expr value = start.form == KvStart::Form::param
                         ? expr::make(expr::Op::param, ExprType::i32, {}, expr::ParamDecl{kKvStartName})
                         : expr::make(expr::Op::read, ExprType::i32, std::array{leaf::b()},
                                      expr::CaptureDecl{kKvStartName, start.dtype, 1});
  return start.bound == 0 ? value : clip(value, -start.bound, start.bound);
}

}  // namespace

KvStart kv_start_of(std::span<const Sequence> sequences) {
  using Form = KvStart::Form;
  const auto start_is = [&](std::int64_t x) {
    return std::ranges::all_of(sequences, [&](const Sequence& sequence) { return sequence.kv_start == x; });
  };
  if (start_is(0)) return {};
  return {.form = start_is(sequences.front().kv_start) ? Form::param : Form::capture, .bound = bound_of(sequences)};
}

KvStart kv_start_of(const problem::AttentionProblem& problem) {
  const auto depends = [](const Expr& mod) {
    return !mod.empty() && mod.node()->uses.intersects({Leaf::kv_idx, Leaf::kv_start});
  };
  if (!depends(problem.score_mod) && !depends(problem.mask_mod) && !depends(problem.weight_mod)) return {};
  if (problem.device_kv_starts) return {.form = KvStart::Form::capture, .dtype = problem.kv_start_dtype};
  return kv_start_of(problem.sequences);
}

Expr by_position(const Expr& mod, const KvStart& start) {
  if (mod.empty()) return mod;
  const bool shifts = start.form != KvStart::Form::zero;
  const Expr value = value_of(start);
  return expr::rewrite(mod, [&](const expr::Node& node, std::span<const Expr> operands) {
    if (node.op == expr::Op::leaf && node.leaf() == Leaf::kv_start) return value;
    if (node.op == expr::Op::leaf && node.leaf() == Leaf::kv_idx && shifts) return leaf::kv_idx() + value;
    return expr::with_operands(node, operands);
  });
}

problem::AttentionProblem by_position(const problem::AttentionProblem& problem, const KvStart& start) {
  problem::AttentionProblem result = problem;
  for (Expr* mod : {&result.score_mod, &result.mask_mod, &result.weight_mod}) *mod = by_position(*mod, start);
  for (Sequence& sequence : result.sequences) sequence.kv_start = 0;
  result.device_kv_starts = false;
  return result;
}

std::string takes_one_more(const KvStart& start, KvStart::Form form) {
  return start.form == form ? ", and kv_start takes one more" : "";
}

}  // namespace heddle::plan
