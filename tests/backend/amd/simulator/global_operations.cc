#include <fmt/format.h>

#include <algorithm>

#include "backend/amd/simulator/memory_operations.h"

namespace heddle::amd::simulator {
namespace {

/// The memory behind a lane's address.
struct Target {
  enum class Kind : std::uint8_t { kGlobal, kLds, kScratch, kNowhere } kind = Kind::kGlobal;
  std::uint64_t address = 0;
};

struct Addresses {
  std::array<Target, kLanes> target;
  std::uint64_t exec = 0;
};

bool is_present(const Operand& operand) { return operand.kind != Operand::Kind::kNone; }

std::uint64_t scalar_base(Execution& x, const Operand& operand) {
  if (!is_present(operand)) return 0;
  const ScalarValue value = read_scalar(x.wave, operand);
  if (value.undefined != 0) x.found(Fault::kUndefined, "the scalar address holds bits that nothing wrote");
  return value.bits;
}

/// Active lanes but for those whose address registers hold bits that nothing wrote.
std::uint64_t lanes_with_address(Execution& x, const Operand& address) {
  const std::uint64_t exec = x.exec();
  if (!is_present(address)) return exec;
  std::uint64_t unknown = 0;
  for (int r = 0; r < address.count; ++r)
    unknown |= x.wave.undefined[static_cast<std::size_t>(address.index + r)].any();
  unknown &= exec;
  if (unknown != 0)
    x.found(Fault::kUndefined, fmt::format("the address of lanes {:#x} holds bits that nothing wrote", unknown));
  return exec & ~unknown;
}

std::uint64_t vector_part(const Wave& wave, const Operand& address, int lane) {
  if (!is_present(address)) return 0;
  const auto index = static_cast<std::size_t>(address.index);
  const std::uint64_t low = wave.v[index][lane];
  return address.count == 2 ? low | static_cast<std::uint64_t>(wave.v[index + 1][lane]) << 32 : low;
}

/// A buffer's descriptor: base, bytes between records, records or bytes, flags. Raw buffers (stride 0) count bytes.
Target buffer_target(Execution& x, const Instruction& i, int lane) {
  const auto s = static_cast<std::size_t>(i.from[2].index);
  const std::uint32_t* words = x.wave.s.data() + s;
  const std::uint64_t base = words[0] | static_cast<std::uint64_t>(words[1] & 0xffff) << 32;
  const std::uint32_t stride = words[1] >> 16 & 0x3fff, records = words[2];
  const Operand& address = i.from[0];
  std::uint64_t offset = static_cast<std::uint64_t>(i.offset), index = 0;
  if (is_present(address)) {
    const auto v = static_cast<std::size_t>(address.index);
    if (i.index_enable) index = x.wave.v[v][lane];
    if (i.offset_enable) offset += x.wave.v[v + (i.index_enable ? 1 : 0)][lane];
  }
  const std::uint64_t scalar_offset = scalar_base(x, i.from[3]);
  if (words[1] >> 31)
    return {Target::Kind::kScratch, offset + scalar_offset / 64};  // swizzled: gfx90a's scratch, 64 lanes side by side
  const bool outside = stride == 0 ? offset + Access::unpacked(i.detail).bytes > records : index >= records;
  if (outside) return {Target::Kind::kNowhere, 0};  // loads give 0, stores are dropped: what descriptors are for
  return {Target::Kind::kGlobal, base + index * stride + offset + scalar_offset};
}

Target flat_target(std::uint64_t address) {
  if (address >> 32 == kLdsAperture) return {Target::Kind::kLds, address & 0xffff'ffff};
  if (address >> 32 == kScratchAperture) return {Target::Kind::kScratch, address & 0xffff'ffff};
  return {Target::Kind::kGlobal, address};
}

Addresses addresses_of(Execution& x, const Instruction& i) {
  Addresses result;
  result.exec = lanes_with_address(x, i.from[0]);
  const auto space = static_cast<Space>(i.space);
  const std::uint64_t base = space == Space::kBuffer ? 0 : scalar_base(x, i.from[2]);
  for (int l = 0; l < x.lanes(); ++l) {
    if (!(result.exec >> l & 1)) continue;
    Target& target = result.target[static_cast<std::size_t>(l)];
    const std::uint64_t sum = base + vector_part(x.wave, i.from[0], l) + static_cast<std::uint64_t>(i.offset);
    switch (space) {
      case Space::kGlobal:
        target = {Target::Kind::kGlobal, sum};
        break;
      case Space::kFlat:
        target = flat_target(sum);
        break;
      case Space::kScratch:
        target = {Target::Kind::kScratch, sum & 0xffff'ffff};
        break;
      case Space::kBuffer:
        target = buffer_target(x, i, l);
        break;
    }
  }
  return result;
}

/// The buffers that the lanes of an instruction lie in: mostly one.
class BufferLookup {
 public:
  explicit BufferLookup(Execution& x) : x_(x) {}
  /// nullptr, and a finding, unless some buffer holds all bytes.
  Memory::Buffer* at(int lane, std::uint64_t address, std::uint32_t bytes) {
    if (last_ && last_->contains(address, bytes)) return last_;
    Memory::Buffer* found = x_.memory.find(address, bytes);
    if (found) {
      last_ = found;
    } else {
      x_.found(Fault::kBounds, fmt::format("lane {}, {} bytes: {}", lane, bytes, x_.memory.location_of(address)));
    }
    return found;
  }

 private:
  Execution& x_;
  Memory::Buffer* last_ = nullptr;
};

/// Loads and stores may have any address: HSA switches that on, and compilers use it. Atomics may not.
bool is_aligned(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes) {
  if (address % bytes == 0) return true;
  x.found(Fault::kAlignment, fmt::format("lane {}: {} bytes at {:#x}", lane, bytes, address));
  return false;
}

std::uint32_t undefined_bytes(const Memory::Buffer& buffer, std::size_t at, std::uint32_t bytes) {
  if (buffer.defined) return 0;
  std::uint32_t bits = 0;
  for (std::uint32_t i = 0; i < bytes; ++i)
    bits |= static_cast<std::uint32_t>(buffer.writer[at + i] == Memory::kNobody) << i;
  return bits;
}

LaneBytes load_global(Execution& x, BufferLookup& buffers, int lane, std::uint64_t address, std::uint32_t bytes) {
  LaneBytes loaded;
  const Memory::Buffer* buffer = buffers.at(lane, address, bytes);
  if (!buffer) {
    loaded.undefined = (1u << bytes) - 1;
    return loaded;
  }
  const std::size_t at = address - buffer->begin;
  std::copy_n(buffer->bytes.data() + at, bytes, loaded.bytes.data());
  loaded.undefined = undefined_bytes(*buffer, at, bytes);
  x.counts.global_bytes_loaded += bytes;
  return loaded;
}

void store_global(Execution& x, BufferLookup& buffers, int lane, std::uint64_t address, std::uint32_t bytes,
                  const LaneBytes& value) {
  Memory::Buffer* buffer = buffers.at(lane, address, bytes);
  if (!buffer) return;
  if (buffer->read_only)
    x.found(Fault::kBounds, fmt::format("lane {} writes to {}, which is read only", lane, buffer->name));
  if (value.undefined != 0) {
    x.found(Fault::kUndefined,
            fmt::format("lane {} stores bits that nothing wrote to {}", lane, x.memory.location_of(address)));
  }
  const std::size_t at = address - buffer->begin;
  std::copy_n(value.bytes.data(), bytes, buffer->bytes.data() + at);
  const std::uint32_t self = x.wave.first_thread + static_cast<std::uint32_t>(lane);
  std::uint32_t* writer = buffer->writer.data() + at;
  bool twice = false;
  for (std::uint32_t b = 0; b < bytes; ++b) {
    twice |= (writer[b] >= x.counts.first_thread) & (writer[b] != self);
    writer[b] = self;
  }
  x.counts.global_bytes_stored += bytes;
  if (twice && !buffer->rewritable) {
    x.found(Fault::kDuplicate, fmt::format("lane {} stores {} bytes that another thread stored: {}", lane, bytes,
                                           x.memory.location_of(address)));
  }
}

bool scratch_in_bounds(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes) {
  if (address <= x.wave.scratch_bytes && bytes <= x.wave.scratch_bytes - address) return true;
  x.found(Fault::kBounds, fmt::format("lane {}: scratch bytes {} to {}, of {}", lane, address, address + bytes - 1,
                                      x.wave.scratch_bytes));
  return false;
}

LaneBytes load_scratch(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes) {
  LaneBytes loaded;
  if (!scratch_in_bounds(x, lane, address, bytes)) return loaded;
  const std::size_t at = static_cast<std::size_t>(lane) * x.wave.scratch_bytes + address;
  std::copy_n(x.wave.scratch.data() + at, bytes, loaded.bytes.data());
  for (std::uint32_t i = 0; i < bytes; ++i)
    loaded.undefined |= static_cast<std::uint32_t>(x.wave.scratch_undefined[at + i]) << i;
  return loaded;
}

void store_scratch(Execution& x, int lane, std::uint64_t address, std::uint32_t bytes, const LaneBytes& value) {
  if (!scratch_in_bounds(x, lane, address, bytes)) return;
  const std::size_t at = static_cast<std::size_t>(lane) * x.wave.scratch_bytes + address;
  std::copy_n(value.bytes.data(), bytes, x.wave.scratch.data() + at);
  for (std::uint32_t i = 0; i < bytes; ++i) x.wave.scratch_undefined[at + i] = value.undefined >> i & 1;
}

}  // namespace

void execute_load(Execution& x, const Instruction& i) {
  const Access access = Access::unpacked(i.detail);
  const Addresses addresses = addresses_of(x, i);
  BufferLookup buffers(x);
  for (int l = 0; l < x.lanes(); ++l) {
    if (!(addresses.exec >> l & 1)) continue;
    const Target& target = addresses.target[static_cast<std::size_t>(l)];
    LaneBytes loaded;
    switch (target.kind) {
      case Target::Kind::kGlobal:
        loaded = load_global(x, buffers, l, target.address, access.bytes);
        break;
      case Target::Kind::kLds:
        loaded = load_lds_lane(x, l, target.address, access.bytes);
        break;
      case Target::Kind::kScratch:
        loaded = load_scratch(x, l, target.address, access.bytes);
        break;
      case Target::Kind::kNowhere:
        break;
    }
    put_loaded(x.wave, i.to[0].index, l, access, loaded);
  }
}

void execute_store(Execution& x, const Instruction& i) {
  const Access access = Access::unpacked(i.detail);
  const Addresses addresses = addresses_of(x, i);
  BufferLookup buffers(x);
  for (int l = 0; l < x.lanes(); ++l) {
    if (!(addresses.exec >> l & 1)) continue;
    const Target& target = addresses.target[static_cast<std::size_t>(l)];
    const LaneBytes value = take_stored(x.wave, i.from[1].index, l, access);
    switch (target.kind) {
      case Target::Kind::kGlobal:
        store_global(x, buffers, l, target.address, access.bytes, value);
        break;
      case Target::Kind::kLds:
        store_lds_lane(x, l, target.address, access.bytes, value);
        break;
      case Target::Kind::kScratch:
        store_scratch(x, l, target.address, access.bytes, value);
        break;
      case Target::Kind::kNowhere:
        break;
    }
  }
}

void execute_atomic(Execution& x, const Instruction& i) {
  const Atomic atomic = Atomic::unpacked(i.detail);
  const Access access{.bytes = atomic.bytes};
  const Addresses addresses = addresses_of(x, i);
  BufferLookup buffers(x);
  for (int l = 0; l < x.lanes(); ++l) {
    if (!(addresses.exec >> l & 1)) continue;
    const Target& target = addresses.target[static_cast<std::size_t>(l)];
    if (target.kind == Target::Kind::kNowhere) continue;
    if (target.kind != Target::Kind::kGlobal) {
      x.found(Fault::kBounds, fmt::format("lane {}: a flat atomic on LDS or scratch is not simulated", l));
      continue;
    }
    Memory::Buffer* buffer = buffers.at(l, target.address, atomic.bytes);
    if (!buffer || !is_aligned(x, l, target.address, atomic.bytes)) continue;
    const std::size_t at = target.address - buffer->begin;
    const std::uint32_t unknown_bytes = undefined_bytes(*buffer, at, atomic.bytes);
    std::uint64_t old = 0, operand = 0, compared = 0;
    std::copy_n(buffer->bytes.data() + at, atomic.bytes, reinterpret_cast<std::uint8_t*>(&old));
    const LaneBytes value = take_stored(x.wave, i.from[1].index, l, access);
    std::copy_n(value.bytes.data(), 8, reinterpret_cast<std::uint8_t*>(&operand));
    std::uint32_t unknown = value.undefined | (atomic.op == AtomicOp::kSwap ? 0 : unknown_bytes);
    if (atomic.op == AtomicOp::kCompareSwap) {
      const LaneBytes expected = take_stored(x.wave, i.from[1].index + atomic.bytes / 4, l, access);
      std::copy_n(expected.bytes.data(), 8, reinterpret_cast<std::uint8_t*>(&compared));
      unknown |= expected.undefined;
    }
    if (unknown != 0) x.found(Fault::kUndefined, fmt::format("lane {}: an atomic with bits that nothing wrote", l));
    const std::uint64_t result = updated(atomic, old, operand, compared);
    std::copy_n(reinterpret_cast<const std::uint8_t*>(&result), atomic.bytes, buffer->bytes.data() + at);
    for (std::uint32_t b = 0; b < atomic.bytes; ++b)
      buffer->writer[at + b] = Memory::kHost;  // others may change it, too
    if (!i.returns) continue;
    LaneBytes returned;
    std::copy_n(reinterpret_cast<const std::uint8_t*>(&old), 8, returned.bytes.data());
    returned.undefined = unknown_bytes;
    put_loaded(x.wave, i.to[0].index, l, access, returned);
  }
}

}  // namespace heddle::amd::simulator
