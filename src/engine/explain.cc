// What was decided, stage by stage, as text.
#include <fmt/format.h>

#include <algorithm>

#include "engine/state.h"
#include "expr/simplify.h"

namespace heddle {
namespace {

constexpr std::string_view kIndent = "         ";  // below the text of a stage

std::string describe_mod(std::string_view stage, const Expr& mod, std::string_view absent, expr::Precision precision) {
  if (mod.empty()) return fmt::format("{:<9}{}\n", stage, absent);
  std::string text = fmt::format("{:<9}{}\n", stage, print(mod));
  const Expr simplified = expr::simplify(mod, precision);
  if (!same(simplified, mod)) text += fmt::format("{}simplified: {}\n", kIndent, print(simplified));
  return text;
}

std::string describe_rows(const BlockMask& mask) {
  const BlockMask::Statistics statistics = mask.statistics();
  return fmt::format(
      "{}{}blocks of {} x {}: {} full, {} partial, {} empty (density {:.4g}); {} runs in {} bytes; {} tiles "
      "evaluated\n",
      kIndent, mask.is_from_lists() ? "given lists, " : "", mask.block().q, mask.block().kv, statistics.full,
      statistics.partial, statistics.empty, statistics.density(), statistics.runs, statistics.bytes,
      statistics.evaluated_tiles);
}

// Further lines stand below the first; blank ones go.
std::string indent_lines(std::string_view text) {
  std::string indented;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    if (!indented.empty()) indented += fmt::format("\n{}", kIndent);
    indented += line;
  }
  return indented;
}

}  // namespace

std::string AttentionPlan::explain() const {
  const State& state = *state_;
  const expr::Precision precision = state.problem.precision;
  std::string text = fmt::format("{:<9}{}\n", "problem", to_string(state.problem));
  text += describe_mod("score", state.problem.score_mod, "score", precision);
  text += describe_mod("mask", state.problem.mask_mod, "everything attends", precision);
  if (state.block_mask != nullptr) text += describe_rows(*state.block_mask);
  text += describe_mod("weight", state.problem.weight_mod, "1", precision);
  text += fmt::format("{:<9}{}\n", "plan", indent_lines(to_string(state.plan)));
  text += fmt::format("{:<9}{}\n", "kernel", indent_lines(state.kernel->describe()));
  return text;
}

}  // namespace heddle
