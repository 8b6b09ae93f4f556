#include "backend/amd/simulator/decode_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "backend/amd/simulator/memory_operations.h"
#include "backend/amd/simulator/operand.h"

namespace heddle::amd::simulator {
namespace {

bool starts(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

/// The operands' registers, at least `count` of them.
std::vector<Operand> registers(const AssemblyLine& line, std::size_t count) {
  std::vector<Operand> all;
  for (const std::string& text : line.operands) all.push_back(parse_registers(text));
  if (all.size() < count) throw std::runtime_error(fmt::format("{} operands, not {}", all.size(), count));
  return all;
}

bool asks_for_old_value(const AssemblyLine& line) {
  return std::any_of(line.modifiers.begin(), line.modifiers.end(),
                     [](const std::string& m) { return m == "glc" || m == "sc0" || m == "th:TH_ATOMIC_RETURN"; });
}

void set_to(Instruction& i, const Operand& operand) {
  i.to[0] = operand;
  i.to_count = 1;
}

// Text: `global_load to, address, base`; `global_store address, data, base`; flat without base; a buffer's
// `data, address, descriptor, offset`.
void place_operands(const AssemblyLine& line, Space space, bool loads, bool stores, Instruction& i) {
  const std::size_t values = (loads ? 1u : 0u) + (stores ? 1u : 0u);
  const std::size_t around = space == Space::kFlat ? 1 : space == Space::kBuffer ? 3 : 2;
  const std::vector<Operand> all = registers(line, space == Space::kBuffer ? 4 : values + around);
  i.from_count = 4;
  if (space == Space::kBuffer) {
    if (loads) set_to(i, all[0]);
    if (stores) i.from[1] = all[0];
    i.from[0] = all[1];
    i.from[2] = all[2];
    i.from[3] = all[3];
    return;
  }
  std::size_t at = 0;
  if (loads) set_to(i, all[at++]);
  i.from[0] = all[at++];
  if (stores) i.from[1] = all[at++];
  if (space != Space::kFlat) i.from[2] = all[at];
}

bool decode_vector_memory(std::string_view name, const AssemblyLine& line, Instruction& i) {
  Space space = Space::kGlobal;
  if (starts(name, "flat_")) {
    space = Space::kFlat;
  } else if (starts(name, "scratch_")) {
    space = Space::kScratch;
  } else if (starts(name, "buffer_")) {
    space = Space::kBuffer;
  } else if (!starts(name, "global_")) {
    return false;
  }
  i.space = static_cast<std::uint8_t>(space);
  const bool load = starts(name, "load_"), store = !load && starts(name, "store_");
  if (load || store) {
    const auto access = parse_access(name);
    if (!access) throw std::runtime_error("unknown width of a memory access");
    i.detail = access->packed();
    i.execute = load ? execute_load : execute_store;
    i.counted_as = space == Space::kScratch ? Class::kScratch : load ? Class::kGlobalLoad : Class::kGlobalStore;
    place_operands(line, space, load, store, i);
    i.returns = load;
    return true;
  }
  if (!starts(name, "atomic_")) return false;
  const auto atomic = parse_atomic(name);
  if (!atomic) throw std::runtime_error("unknown atomic operation");
  i.detail = atomic->packed();
  i.execute = execute_atomic;
  i.counted_as = Class::kAtomic;
  i.returns = asks_for_old_value(line);
  place_operands(line, space, i.returns, true, i);
  if (space == Space::kBuffer) throw std::runtime_error("atomics on buffers are not simulated");
  return true;
}

bool decode_lds_access(std::string_view name, const AssemblyLine& line, Instruction& i) {
  const bool load = starts(name, "load_"), store = !load && starts(name, "store_");
  if (!load && !store) return false;
  const bool far = starts(name, "2addr_stride64_"), two = far || starts(name, "2addr_");
  const auto access = parse_access(name);
  if (!access) return false;
  i.detail = access->packed();
  i.returns = load;
  if (load) {
    const auto all = registers(line, 2);
    set_to(i, all[0]);
    i.from[0] = all[1];
    i.from_count = 1;
  } else {
    const auto all = registers(line, two ? 3 : 2);
    std::copy_n(all.begin(), two ? 3 : 2, i.from.begin());
    i.from_count = two ? 3 : 2;
  }
  if (two) {
    const std::int64_t step = access->bytes * (far ? 64 : 1);
    i.offset *= step;
    i.offset1 *= step;
    i.execute = load ? execute_lds_load_two : execute_lds_store_two;
  } else {
    i.execute = load ? execute_lds_load : execute_lds_store;
  }
  return true;
}

bool decode_lds(std::string_view name, const AssemblyLine& line, Instruction& i) {
  if (!starts(name, "ds_")) return false;
  i.counted_as = Class::kLds;
  if (decode_lds_access(name, line, i)) return true;
  std::string rest(name);
  if (const std::size_t at = rest.find("rtn_"); at != std::string::npos) {
    rest.erase(at, 4);
    i.returns = true;
  }
  const auto atomic = parse_atomic(rest);
  if (!atomic) return false;
  i.detail = atomic->packed();
  i.execute = execute_lds_atomic;
  const auto all = registers(line, i.returns ? 3 : 2);
  std::size_t at = 0;
  if (i.returns) set_to(i, all[at++]);
  i.from_count = 0;
  while (at < all.size() && i.from_count < 3) i.from[i.from_count++] = all[at++];
  return true;
}

}  // namespace

bool decode_memory(std::string_view name, const AssemblyLine& line, Instruction& i) {
  if (name == "buffer_inv" || name == "global_inv" || name.starts_with("global_wb") || name.starts_with("buffer_wb") ||
      name.starts_with("buffer_gl") || name == "buffer_invl2" || name == "ds_bpermute_b32" ||
      name == "ds_permute_b32" || name == "ds_swizzle_b32") {
    return false;  // in the tables of operations
  }
  const bool known = name.starts_with("ds_") || name.starts_with("global_") || name.starts_with("flat_") ||
                     name.starts_with("scratch_") || name.starts_with("buffer_");
  if (!known) return false;
  apply_modifiers(line, i);
  return name.starts_with("ds_") ? decode_lds(name, line, i) : decode_vector_memory(name, line, i);
}

}  // namespace heddle::amd::simulator
