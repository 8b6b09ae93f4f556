#include "families/cpu/mod_programs.h"

#include <algorithm>
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

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

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

std::size_t ModPrograms::register_bytes() const {
  std::size_t bytes = 0;
  for (const auto* program : {&full, &partial, &weight}) bytes += *program ? (*program)->register_bytes() : 0;
  return bytes;
}

std::vector<std::pair<std::string, std::vector<std::string>>> ModPrograms::text() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> programs;
  const auto add = [&](const char* title, const std::optional<TileProgram>& program) {
    if (program) programs.emplace_back(title, lines_of(program->text()));
  };
  add("score mod of full runs", full);
  add("mask and score mod of partial runs", partial);
  add("weight mod", weight);
  return programs;
}

WorkerMods::WorkerMods(const ModPrograms& programs) : programs_(&programs) {
  if (programs.full) full_.emplace(*programs.full);
  if (programs.partial) partial_.emplace(*programs.partial);
  if (programs.weight) weight_.emplace(*programs.weight);
}

void WorkerMods::bind(const Bindings& bindings) {
  for (Scratch* scratch : {&full_, &partial_, &weight_}) {
    if (*scratch) (*scratch)->bind(bindings);
  }
}

}  // namespace heddle::cpu
