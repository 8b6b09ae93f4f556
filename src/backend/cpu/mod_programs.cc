#include "backend/cpu/mod_programs.h"

#include <fmt/format.h>

#include <limits>

#include "expr/simplify.h"

namespace heddle::cpu {
namespace {

// No program where the expression is the score itself.
std::optional<TileProgram> compile(const Expr& mod, expr::Precision precision) {
  const Expr simple = expr::simplify(mod, precision);
  if (same(simple, leaf::score())) return std::nullopt;
  return std::optional<TileProgram>(std::in_place, simple, precision);
}

}  // namespace

ModPrograms::ModPrograms(const problem::AttentionProblem& problem) {
  const Expr score = problem.score_mod.empty() ? leaf::score() : problem.score_mod;
  full = compile(score, problem.precision);
  if (!problem.mask_mod.empty()) {
    partial =
        compile(where(problem.mask_mod, score, Expr(-std::numeric_limits<double>::infinity())), problem.precision);
  }
  if (!problem.weight_mod.empty())
    weight.emplace(expr::simplify(problem.weight_mod, problem.precision), problem.precision);
}

std::string ModPrograms::text() const {
  std::string text;
  const auto add = [&](const char* title, const std::optional<TileProgram>& program) {
    if (!program) return;
    std::string lines = program->text();
    while (lines.ends_with('\n')) lines.pop_back();
    text += fmt::format("\n{}:\n{}", title, lines);
  };
  add("score mod of full runs", full);
  add("mask and score mod of partial runs", partial);
  add("weight mod", weight);
  return text;
}

WorkerMods::WorkerMods(const ModPrograms& programs, const Bindings& bindings) : programs_(&programs) {
  if (programs.full) full_.emplace(*programs.full, bindings);
  if (programs.partial) partial_.emplace(*programs.partial, bindings);
  if (programs.weight) weight_.emplace(*programs.weight, bindings);
}

}  // namespace heddle::cpu
