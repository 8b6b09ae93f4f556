#include "backend/amd/simulator/findings.h"

#include <fmt/format.h>

#include <algorithm>

namespace heddle::amd::simulator {

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kWait:
      return "missing wait";
    case Fault::kRace:
      return "LDS race";
    case Fault::kBounds:
      return "out of bounds";
    case Fault::kUndefined:
      return "undefined value";
    case Fault::kDuplicate:
      return "duplicate";
    case Fault::kAlignment:
      return "misaligned";
    case Fault::kBarrier:
      return "barrier not reached by all waves";
    case Fault::kRunaway:
      return "too many instructions";
  }
  return "?";
}

Finding* Findings::add(Fault fault, std::uint64_t address, const std::string& instruction) {
  const auto known = std::find_if(findings_.begin(), findings_.end(),
                                  [&](const Finding& f) { return f.fault == fault && f.address == address; });
  if (known != findings_.end()) {
    ++known->times;
    return nullptr;
  }
  findings_.push_back({fault, address, instruction, {}, 1});
  return &findings_.back();
}

bool Findings::has(Fault fault) const {
  return std::any_of(findings_.begin(), findings_.end(), [&](const Finding& f) { return f.fault == fault; });
}

std::string Findings::text() const {
  std::string text;
  for (const Finding& f : findings_) {
    text +=
        fmt::format("{} ({} times) at {:#x}: {}: {}\n", name_of(f.fault), f.times, f.address, f.instruction, f.detail);
  }
  return text;
}

}  // namespace heddle::amd::simulator
