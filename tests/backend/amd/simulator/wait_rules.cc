#include "backend/amd/simulator/wait_rules.h"

#include <fmt/format.h>

#include <stdexcept>

#include "backend/amd/simulator/memory_operations.h"
#include "backend/amd/simulator/operand.h"

namespace heddle::amd::simulator {

WaitGroup wait_group_of(const Instruction& i, const Chip& chip) {
  const bool flat = i.space == static_cast<std::uint8_t>(Space::kFlat);
  switch (i.counted_as) {
    case Class::kScalarLoad:
      return WaitGroup::kScalarLoad;
    case Class::kLds:
      return WaitGroup::kLds;
    case Class::kGlobalLoad:
      return flat ? WaitGroup::kFlatLoad : WaitGroup::kVectorLoad;
    case Class::kGlobalStore:
    case Class::kScratch:
    case Class::kAtomic: {
      const bool as_load = i.returns || chip.generation == 9;  // gfx9 has one counter for both
      if (flat) return as_load ? WaitGroup::kFlatLoad : WaitGroup::kFlatStore;
      return as_load ? WaitGroup::kVectorLoad : WaitGroup::kVectorStore;
    }
    default:
      return WaitGroup::kNone;
  }
}

namespace {

constexpr std::int64_t kNoLimit = 0xffff'ffff;

std::int64_t with_limit(std::int64_t limits, Counter counter, std::int64_t left) {
  const int shift = 8 * static_cast<int>(counter);
  return (limits & ~(0xffll << shift)) | left << shift;
}

/// "vmcnt(0)": the counter's name and its number.
std::int64_t with_named_limit(std::int64_t limits, std::string_view text) {
  if (text == "&" || text.starts_with("expcnt") || text.starts_with("depctr")) return limits;
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos) throw std::runtime_error(fmt::format("wait '{}' is not known", text));
  const std::string_view name = text.substr(0, open);
  const std::int64_t left = parse_number(text.substr(open + 1, text.size() - open - 2));
  if (name == "vmcnt") return with_limit(limits, Counter::kLoads, left);
  if (name == "lgkmcnt") return with_limit(limits, Counter::kLds, left);
  throw std::runtime_error(fmt::format("wait '{}' is not known", text));
}

/// From gfx10 on flat operations come back in order. (LLVM's FeatureFlatLgkmVMemCountInOrder.) On gfx9 what goes to LDS
/// and what goes to memory may overtake each other.
bool flat_in_order(const Chip& chip) { return chip.generation != 9; }

Counter scalar_counter(const Chip& chip) { return chip.generation == 12 ? Counter::kScalar : Counter::kLds; }

}  // namespace

std::int64_t wait_limits(const AssemblyLine& line) {
  const std::string& name = line.mnemonic;
  std::int64_t limits = kNoLimit;
  if (name == "s_waitcnt") {
    for (const std::string& text : line.operands) limits = with_named_limit(limits, text);
    for (const std::string& text : line.modifiers) limits = with_named_limit(limits, text);
    return limits;
  }
  const std::int64_t number = parse_number(line.operands.back());
  if (name == "s_waitcnt_vscnt" || name == "s_wait_storecnt") return with_limit(limits, Counter::kStores, number);
  if (name == "s_waitcnt_vmcnt" || name == "s_wait_loadcnt") return with_limit(limits, Counter::kLoads, number);
  if (name == "s_waitcnt_lgkmcnt" || name == "s_wait_dscnt") return with_limit(limits, Counter::kLds, number);
  if (name == "s_wait_kmcnt") return with_limit(limits, Counter::kScalar, number);
  const Counter other = name == "s_wait_loadcnt_dscnt" ? Counter::kLoads : Counter::kStores;
  return with_limit(with_limit(limits, other, number >> 8 & 63), Counter::kLds, number & 63);
}

void check_waits(Execution& x, const Instruction& i) {
  const auto group = static_cast<WaitGroup>(i.wait_group);
  for (std::size_t t = 0; t < i.touched_count; ++t) {
    const RegisterRange& range = i.touched[t];
    int waiting = -1;
    const bool like_vector = group == WaitGroup::kFlatLoad && flat_in_order(x.chip);
    if (range.written && (group == WaitGroup::kVectorLoad || like_vector)) {
      waiting = x.wave.waits.pending_beside(range, Counter::kLoads);
    } else if (range.written && group == WaitGroup::kLds) {
      waiting = x.wave.waits.pending_beside(range, Counter::kLds);
    } else {
      waiting = x.wave.waits.pending(range);
    }
    if (waiting < 0) continue;
    const std::string name = waiting >= kVectorRegisters    ? fmt::format("s{}", waiting - kVectorRegisters)
                             : waiting >= kFirstAccumulator ? fmt::format("a{}", waiting - kFirstAccumulator)
                                                            : fmt::format("v{}", waiting);
    x.found(Fault::kWait, fmt::format("{} is {} before the load that fills it was waited for", name,
                                      range.written ? "written" : "read"));
  }
}

void issue(Execution& x, const Instruction& i) {
  Waits& waits = x.wave.waits;
  RegisterRange filled;
  std::span<const RegisterRange> ranges;
  if (i.to_count == 1 && (i.returns || i.counted_as == Class::kScalarLoad || i.counted_as == Class::kLds)) {
    for (std::size_t t = 0; t < i.touched_count; ++t) {
      if (i.touched[t].written) filled = i.touched[t];
    }
    if (filled.count > 0) ranges = {&filled, 1};
  }
  switch (static_cast<WaitGroup>(i.wait_group)) {
    case WaitGroup::kNone:
      break;
    case WaitGroup::kVectorLoad:
      waits.issue(Counter::kLoads, true, ranges);
      break;
    case WaitGroup::kVectorStore:
      waits.issue(Counter::kStores, true, ranges);
      break;
    case WaitGroup::kScalarLoad:
      waits.issue(scalar_counter(x.chip), false, ranges);
      break;
    case WaitGroup::kFlatLoad:
    case WaitGroup::kFlatStore: {  // to LDS or to memory: each counter goes up
      const Counter memory =
          static_cast<WaitGroup>(i.wait_group) == WaitGroup::kFlatLoad ? Counter::kLoads : Counter::kStores;
      const bool in_order = flat_in_order(x.chip);
      waits.issue(memory, in_order, ranges);  // a register has one mark; compilers wait for both counters
      waits.issue(Counter::kLds, in_order, {});
      break;
    }
    case WaitGroup::kLds: {
      const std::uint32_t number = waits.issue(Counter::kLds, true, ranges);
      for (LdsAccess& access : x.wave.lds_out) {
        if (access.number == 0) access.number = number;
      }
      break;
    }
  }
}

}  // namespace heddle::amd::simulator
