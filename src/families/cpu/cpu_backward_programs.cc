#include "families/cpu/cpu_backward_programs.h"

#include <algorithm>

#include "expr/differentiate.h"
#include "expr/node.h"
#include "expr/simplify.h"

namespace heddle::cpu {
namespace {

ReadProgram compile(const plan::ReadGradient& read, std::size_t sum, expr::Precision precision) {
  ReadProgram program = {
      .sum = sum, .of_weight = read.of_weight, .dependence = read.dependence, .slope = {}, .indices = {}};
  program.skips_outside = read.skips_outside;
  if (!same(read.slope, Expr(1.0))) program.slope.emplace(read.slope, precision);
  for (const Expr& index : read.indices) {
    program.indices.emplace_back(expr::simplify(index, precision), precision);
    program.by_score = program.by_score || index.node()->uses.has(expr::Leaf::score);
  }
  return program;
}

}  // namespace

BackwardPrograms::BackwardPrograms(const problem::AttentionProblem& problem, const plan::CpuBackwardSplit& split)
    : mods(problem) {
  const expr::Precision precision = problem.precision;
  if (!problem.score_mod.empty()) {
    const Expr derivative = expr::d_score(problem.score_mod, precision);
    if (!same(derivative, Expr(1.0))) slope.emplace(derivative, precision);
  }
  for (std::size_t i = 0; i < split.sums.size(); ++i) {
    for (const plan::ReadGradient& read : split.sums[i].reads) reads.push_back(compile(read, i, precision));
  }
}

std::size_t BackwardPrograms::register_bytes() const {
  std::size_t bytes = mods.register_bytes() + (slope ? slope->register_bytes() : 0);
  for (const ReadProgram& read : reads) {
    if (read.slope) bytes += read.slope->register_bytes();
    for (const TileProgram& index : read.indices) bytes += index.register_bytes();
  }
  return bytes;
}

std::vector<std::pair<std::string, std::vector<std::string>>> BackwardPrograms::text() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> programs = mods.text();
  if (slope) programs.emplace_back("derivative of the score mod", lines_of(slope->text()));
  for (const ReadProgram& read : reads) {
    if (read.slope) programs.emplace_back("derivative by a read", lines_of(read.slope->text()));
  }
  return programs;
}

BackwardWorkerMods::BackwardWorkerMods(const BackwardPrograms& programs) : programs_(&programs), mods_(programs.mods) {
  if (programs.slope) slope_.emplace(*programs.slope);
  for (const ReadProgram& read : programs.reads) {
    ReadScratch& scratch = reads_.emplace_back();
    if (read.slope) scratch.slope.emplace(*read.slope);
    for (const TileProgram& index : read.indices) scratch.indices.emplace_back(index);
    for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
      scratch.index_mods.push_back({&read.indices[axis], &scratch.indices[axis]});
    }
  }
}

void BackwardWorkerMods::bind(const Bindings& bindings) {
  mods_.bind(bindings);
  if (slope_) slope_->bind(bindings);
  for (ReadScratch& scratch : reads_) {
    if (scratch.slope) scratch.slope->bind(bindings);
    for (TileProgram::Scratch& index : scratch.indices) index.bind(bindings);
  }
}

}  // namespace heddle::cpu
