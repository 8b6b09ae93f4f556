#include <fmt/format.h>

#include <algorithm>

#include "backend/amd/simulator/memory_operations.h"

namespace heddle::amd::simulator {
namespace {

std::string range_text(std::uint64_t address, std::uint32_t bytes) {
  return fmt::format("LDS bytes {} to {}", address, address + bytes - 1);
}

bool in_bounds(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes) {
  if (x.group.lds.contains(address, bytes)) return true;
  x.found(Fault::kBounds, fmt::format("lane {}: {}, of {}", lane, range_text(address, bytes), x.group.lds.size()));
  return false;
}

/// The address registers of the active lanes, plus the offset; undefined ones are a finding.
std::uint64_t addresses(Execution& x, const Instruction& i, std::int64_t offset,
                        std::array<std::uint32_t, kLanes>& to) {
  std::uint64_t exec = x.exec();
  if (i.from[0].kind == Operand::Kind::kVector) {
    const auto index = static_cast<std::size_t>(i.from[0].index);
    const std::uint64_t unknown = x.wave.undefined[index].any() & exec;
    if (unknown != 0) {
      x.found(Fault::kUndefined, fmt::format("the LDS address of lanes {:#x} holds bits that nothing wrote", unknown));
      exec &= ~unknown;
    }
    for (int l = 0; l < x.lanes(); ++l)
      to[static_cast<std::size_t>(l)] = x.wave.v[index][l] + static_cast<std::uint32_t>(offset);
  } else {
    const auto base = static_cast<std::uint32_t>(read_scalar(x.wave, i.from[0]).bits);
    to.fill(base + static_cast<std::uint32_t>(offset));
  }
  return exec;
}

void count_cycles(Execution& x, const std::array<std::uint32_t, kLanes>& address, std::uint64_t exec,
                  std::uint32_t bytes) {
  const BankCycles cycles =
      bank_cycles({address.data(), static_cast<std::size_t>(x.lanes())}, exec, bytes, x.chip.generation);
  x.counts.lds.all += cycles.all;
  x.counts.lds.conflicts += cycles.conflicts;
  x.counts.conflicts[static_cast<std::size_t>(x.current - x.program.instructions.data())] += cycles.conflicts;
}

void remember(Execution& x, const std::array<std::uint32_t, kLanes>& address, std::uint64_t exec, std::uint32_t bytes,
              bool written) {
  std::vector<LdsAccess>& out = x.wave.lds_out;
  out.emplace_back();
  LdsAccess& access = out.back();
  access.number = 0;  // given when the instruction is issued (waits)
  access.size = bytes;
  access.exec = exec;
  access.written = written;
  std::copy_n(address.begin(), x.lanes(), access.address.begin());
}

void load(Execution& x, const Instruction& i, int to, const Access& access, std::int64_t offset) {
  std::array<std::uint32_t, kLanes> address;
  const std::uint64_t exec = addresses(x, i, offset, address);
  count_cycles(x, address, exec, access.bytes);
  for (int l = 0; l < x.lanes(); ++l) {
    if (!(exec >> l & 1)) continue;
    put_loaded(x.wave, to, l, access, load_lds_lane(x, l, address[static_cast<std::size_t>(l)], access.bytes));
  }
  remember(x, address, exec, access.bytes, false);
}

void store(Execution& x, const Instruction& i, int from, const Access& access, std::int64_t offset) {
  std::array<std::uint32_t, kLanes> address;
  const std::uint64_t exec = addresses(x, i, offset, address);
  count_cycles(x, address, exec, access.bytes);
  for (int l = 0; l < x.lanes(); ++l) {
    if (!(exec >> l & 1)) continue;
    store_lds_lane(x, l, address[static_cast<std::size_t>(l)], access.bytes, take_stored(x.wave, from, l, access));
  }
  remember(x, address, exec, access.bytes, true);
}

/// Loads and stores may have any address: HSA switches that on, and compilers use it. Atomics may not.
bool is_aligned(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes) {
  if (address % bytes == 0) return true;
  x.found(Fault::kAlignment, fmt::format("lane {}: {}", lane, range_text(address, bytes)));
  return false;
}

std::uint64_t cell(const LaneBytes& bytes) {
  std::uint64_t value = 0;
  std::copy_n(bytes.bytes.begin(), 8, reinterpret_cast<std::uint8_t*>(&value));
  return value;
}

}  // namespace

LaneBytes load_lds_lane(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes) {
  LaneBytes loaded;
  if (!in_bounds(x, lane, address, bytes)) {
    loaded.undefined = (1u << bytes) - 1;
    return loaded;
  }
  const auto at = static_cast<std::uint32_t>(address);
  if (!x.group.lds.load(x.toucher(), at, bytes, loaded.bytes.data())) {
    x.found(Fault::kRace, fmt::format("lane {} reads {}, which another wave writes with no barrier between", lane,
                                      range_text(at, bytes)));
  }
  loaded.undefined = x.group.lds.undefined(at, bytes);
  return loaded;
}

void store_lds_lane(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes, const LaneBytes& value) {
  if (!in_bounds(x, lane, address, bytes)) return;
  const auto at = static_cast<std::uint32_t>(address);
  if (!x.group.lds.store(x.toucher(), at, bytes, value.bytes.data())) {
    x.found(Fault::kRace, fmt::format("lane {} writes {}, which another wave reads or writes with no barrier between",
                                      lane, range_text(at, bytes)));
  }
  if (value.undefined != 0) x.group.lds.set_undefined(at, bytes, value.undefined);
}

void delay_lds_accesses(Execution& x) {
  Toucher later = x.toucher();
  later.last_epoch = x.group.epoch + 1;
  for (const LdsAccess& access : x.wave.lds_out) {
    for (int l = 0; l < x.lanes(); ++l) {
      const std::uint32_t address = access.address[static_cast<std::size_t>(l)];
      if ((access.exec >> l & 1) && x.group.lds.contains(address, access.size)) {
        x.group.lds.delay(later, address, access.size, access.written);
      }
    }
  }
}

void execute_lds_load(Execution& x, const Instruction& i) {
  load(x, i, i.to[0].index, Access::unpacked(i.detail), i.offset);
}

void execute_lds_load_two(Execution& x, const Instruction& i) {
  const Access access = Access::unpacked(i.detail);
  // The address may stand in a register that the first half fills.
  const Row kept = x.wave.v[static_cast<std::size_t>(i.from[0].index)];
  const Undefined kept_undefined = x.wave.undefined[static_cast<std::size_t>(i.from[0].index)];
  load(x, i, i.to[0].index, access, i.offset);
  const auto index = static_cast<std::size_t>(i.from[0].index);
  const Row filled = x.wave.v[index];
  const Undefined filled_undefined = x.wave.undefined[index];
  x.wave.v[index] = kept;
  x.wave.undefined[index] = kept_undefined;
  const int second = i.to[0].index + access.bytes / 4;
  load(x, i, second, access, i.offset1);
  const bool refilled = i.from[0].index >= second && i.from[0].index < second + access.bytes / 4;
  if (!refilled) {
    x.wave.v[index] = filled;
    x.wave.undefined[index] = filled_undefined;
  }
}

void execute_lds_store(Execution& x, const Instruction& i) {
  store(x, i, i.from[1].index, Access::unpacked(i.detail), i.offset);
}

void execute_lds_store_two(Execution& x, const Instruction& i) {
  store(x, i, i.from[1].index, Access::unpacked(i.detail), i.offset);
  store(x, i, i.from[2].index, Access::unpacked(i.detail), i.offset1);
}

void execute_lds_atomic(Execution& x, const Instruction& i) {
  const Atomic atomic = Atomic::unpacked(i.detail);
  const Access access{.bytes = atomic.bytes};
  std::array<std::uint32_t, kLanes> address;
  const std::uint64_t exec = addresses(x, i, i.offset, address);
  count_cycles(x, address, exec, atomic.bytes);
  for (int l = 0; l < x.lanes(); ++l) {
    const std::uint32_t at = address[static_cast<std::size_t>(l)];
    if (!(exec >> l & 1) || !in_bounds(x, l, at, atomic.bytes) || !is_aligned(x, l, at, atomic.bytes)) continue;
    if (!x.group.lds.touch_atomically(x.toucher(), at, atomic.bytes)) {
      x.found(Fault::kRace,
              fmt::format("lane {} changes {}, which another wave reads or writes with no barrier between", l,
                          range_text(at, atomic.bytes)));
    }
    LaneBytes old;
    std::copy_n(x.group.lds.at(at), atomic.bytes, old.bytes.begin());
    old.undefined = x.group.lds.undefined(at, atomic.bytes);
    const LaneBytes operand = take_stored(x.wave, i.from[1].index, l, access);
    LaneBytes other =
        i.from[2].kind == Operand::Kind::kVector ? take_stored(x.wave, i.from[2].index, l, access) : LaneBytes{};
    // gfx9's ds_cmpst has the compared value first, ds_cmpstore of gfx11 the new one.
    const bool compared_first = atomic.op == AtomicOp::kCompareSwap && x.chip.generation == 9;
    const std::uint64_t value = compared_first ? updated(atomic, cell(old), cell(other), cell(operand))
                                               : updated(atomic, cell(old), cell(operand), cell(other));
    std::copy_n(reinterpret_cast<const std::uint8_t*>(&value), atomic.bytes, x.group.lds.at(at));
    const std::uint32_t unknown = old.undefined | operand.undefined | other.undefined;
    x.group.lds.set_undefined(at, atomic.bytes, unknown != 0 ? ~0u : 0);
    if (i.returns) put_loaded(x.wave, i.to[0].index, l, access, old);
  }
  remember(x, address, exec, atomic.bytes, true);
}

}  // namespace heddle::amd::simulator
