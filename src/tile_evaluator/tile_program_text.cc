// A tile program as text.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tile_evaluator/tile_program.h"

namespace heddle::cpu {
namespace {

using expr::Leaf;

std::string_view name(Extent extent) {
  constexpr std::string_view kNames[] = {"scalar", "row", "column", "diagonal", "tile"};
  return kNames[static_cast<std::size_t>(extent)];
}

std::string_view name(Code code) {
  constexpr std::string_view kNames[] = {"",          "copy",        "mul_add", "select_lt", "select_le",
                                         "select_eq", "shift_right", "bit_and", "read",      "draw_row"};
  return kNames[static_cast<std::size_t>(code)];
}

std::string text(const Source& source) {
  if (source.extent == Extent::tile && source.index == kScore) return "score";
  if (source.extent == Extent::tile && source.index == kResult) return "result";
  return fmt::format("{}{}", name(source.extent), source.index);
}

std::string text(const expr::Payload& payload) {
  struct Text {
    std::string operator()(std::monostate) const { return ""; }
    std::string operator()(double x) const { return fmt::format("{}", x); }
    std::string operator()(std::int32_t x) const { return fmt::format("{}", x); }
    std::string operator()(bool x) const { return x ? "True" : "False"; }
    std::string operator()(Leaf leaf) const { return std::string(expr::name(leaf)); }
    std::string operator()(const expr::ParamDecl& param) const { return param.name; }
    std::string operator()(const expr::CaptureDecl& capture) const { return capture.name; }
  };
  return std::visit(Text(), payload);
}

std::string text(const Instruction& step, const Program& program) {
  std::string line = fmt::format("{} = ", text(step.out));
  line += step.code == Code::op ? expr::info(step.op).name : name(step.code);
  if (step.code == Code::read)
    line += fmt::format(" {}", program.captures[static_cast<std::size_t>(step.capture)].name);
  for (std::size_t i = 0; i < step.in.size(); ++i) {
    line += i == 0 ? " " : ", ";
    line += text(step.in[i]);
    if (static_cast<int>(i) == step.column_axis) line += "+";
  }
  return line + "\n";
}

}  // namespace

std::string to_string(const Program& program) {
  std::string lines;
  for (const FixedValue& value : program.fixed) lines += fmt::format("{} = {}\n", text(value.out), text(value.payload));
  for (const Instruction& step : program.once) lines += text(step, program);
  for (std::size_t extent = 0; extent < kExtentCount; ++extent) {
    for (const LeafValue& leaf : program.leaves) {
      if (static_cast<std::size_t>(leaf.out.extent) != extent) continue;
      lines += fmt::format("{} = {}\n", text(leaf.out), expr::name(leaf.leaf));
    }
    for (const Instruction& step : program.steps[extent]) lines += text(step, program);
  }
  return lines;
}

}  // namespace heddle::cpu
