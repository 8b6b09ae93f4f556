#include <fmt/format.h>

#include "backend/amd/simulator/simulator.h"

namespace heddle::amd::simulator {

const char* name_of(Class c) {
  switch (c) {
    case Class::kScalar:
      return "scalar";
    case Class::kScalarLoad:
      return "scalar load";
    case Class::kBranch:
      return "branch";
    case Class::kWait:
      return "wait";
    case Class::kBarrier:
      return "barrier";
    case Class::kNoOperation:
      return "no operation";
    case Class::kVector:
      return "vector";
    case Class::kTranscendental:
      return "transcendental";
    case Class::kDual:
      return "dual";
    case Class::kMatrix:
      return "matrix";
    case Class::kLds:
      return "LDS";
    case Class::kGlobalLoad:
      return "global load";
    case Class::kGlobalStore:
      return "global store";
    case Class::kAtomic:
      return "atomic";
    case Class::kScratch:
      return "scratch";
    case Class::kCache:
      return "cache";
    case Class::kCount:
      break;
  }
  return "?";
}

double Report::matrix_share() const {
  std::uint64_t cycles = 0;
  for (const ClassCount& count : classes) cycles += count.cycles;
  return cycles == 0 ? 0 : static_cast<double>(of(Class::kMatrix).cycles) / static_cast<double>(cycles);
}

std::string Report::text() const {
  std::string text = fmt::format("{} waves, {} instructions\n", waves, instructions);
  for (std::size_t c = 0; c < classes.size(); ++c) {
    if (classes[c].instructions == 0) continue;
    text += fmt::format("{:>16} {:>12} instructions {:>12} cycles\n", name_of(static_cast<Class>(c)),
                        classes[c].instructions, classes[c].cycles);
  }
  text += fmt::format("LDS cycles {}, of them conflicts {}; matrix share of the vector port {:.2f}\n", lds.all,
                      lds.conflicts, matrix_share());
  return text;
}

}  // namespace heddle::amd::simulator
