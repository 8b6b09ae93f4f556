#include "backend/amd/simulator/wave.h"

#include <fmt/format.h>

namespace heddle::amd::simulator {

void Execution::found(Fault fault, const std::string& detail) {
  const auto index = static_cast<std::size_t>(current - program.instructions.data());
  Finding* finding = findings.add(fault, current->address, program.texts[index]);
  if (!finding) return;
  finding->detail =
      fmt::format("workgroup ({}, {}, {}), wave {}: {}", group.id[0], group.id[1], group.id[2], wave.number, detail);
}

ScalarValue read_scalar(const Wave& wave, const Operand& operand) {
  if (operand.kind == Operand::Kind::kConstant) return {operand.value, 0};
  const auto i = static_cast<std::size_t>(operand.index);
  if (operand.index == kNull) return {};
  if (operand.count == 1) return {wave.s[i], wave.s_undefined[i]};
  return {wave.pair(operand.index), wave.s_undefined[i] | static_cast<std::uint64_t>(wave.s_undefined[i + 1]) << 32};
}

void write_scalar(Execution& x, const Operand& operand, ScalarValue value) {
  if (operand.index == kNull) return;
  if (operand.index >= kExec && (value.undefined & x.all_lanes()) != 0) {
    x.found(Fault::kUndefined, fmt::format("exec of lanes {:#x} depends on bits that nothing wrote", value.undefined));
    value.undefined = 0;
  }
  const auto i = static_cast<std::size_t>(operand.index);
  x.wave.s[i] = static_cast<std::uint32_t>(value.bits);
  x.wave.s_undefined[i] = static_cast<std::uint32_t>(value.undefined);
  if (operand.count == 1) return;
  x.wave.s[i + 1] = static_cast<std::uint32_t>(value.bits >> 32);
  x.wave.s_undefined[i + 1] = static_cast<std::uint32_t>(value.undefined >> 32);
}

}  // namespace heddle::amd::simulator
