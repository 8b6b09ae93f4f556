#include "backend/amd/simulator/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace heddle::amd::simulator {
namespace {

// Bits of the descriptor's properties: which pointers the first SGPRs hold, in this order.
constexpr int kPrivateSegmentBuffer = 0, kDispatchPointer = 1, kQueuePointer = 2, kArgumentPointer = 3, kDispatchId = 4,
              kFlatScratch_ = 5, kPrivateSegmentSize = 6;
constexpr std::uint64_t kPreloadPrologue = 256;  // bytes of code for firmware that does not preload arguments

std::uint32_t user_registers(const KernelInfo& kernel) { return kernel.rsrc2 >> 1 & 31; }

template <class T>
void put(std::vector<std::uint8_t>& bytes, std::uint32_t offset, T value) {
  if (bytes.size() < offset + sizeof(T)) bytes.resize(offset + sizeof(T));
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

/// Bytes up to the end of the last argument that the caller gives.
std::uint32_t visible_bytes(const KernelInfo& kernel) {
  std::uint32_t end = 0;
  for (const ArgumentInfo& argument : kernel.arguments) {
    if (!argument.kind.starts_with("hidden_")) end = std::max(end, argument.offset + argument.size);
  }
  return end;
}

}  // namespace

Dispatch::Dispatch(const KernelInfo& kernel, const Chip& chip, std::array<std::uint32_t, 3> grid,
                   std::array<std::uint32_t, 3> block, const std::vector<std::uint8_t>& arguments,
                   std::uint32_t dynamic_lds, Memory& memory)
    : kernel_(kernel), chip_(chip), grid_(grid), block_(block), memory_(memory) {
  if (arguments.size() != visible_bytes(kernel)) {
    throw std::runtime_error(
        fmt::format("{} bytes of arguments; {} takes {}", arguments.size(), kernel.name, visible_bytes(kernel)));
  }
  std::vector<std::uint8_t> bytes = arguments;
  write_hidden_arguments(bytes, dynamic_lds);
  arguments_ =
      memory.allocate(std::max<std::size_t>(bytes.size(), kernel.argument_bytes) + 16, "the kernel's arguments");
  memory.set_read_only(arguments_, true);
  if (!bytes.empty()) memory.write(arguments_, bytes);
  std::vector<std::uint8_t> packet(64);
  for (std::uint32_t d = 0; d < 3; ++d) {
    put(packet, 4 + 2 * d, static_cast<std::uint16_t>(block[d]));
    put(packet, 12 + 4 * d, grid[d] * block[d]);
  }
  packet_ = memory.allocate(packet.size(), "the dispatch packet");
  memory.write(packet_, packet);
}

Dispatch::~Dispatch() {
  memory_.free(arguments_);
  memory_.free(packet_);
}

void Dispatch::write_hidden_arguments(std::vector<std::uint8_t>& bytes, std::uint32_t dynamic_lds) const {
  for (const ArgumentInfo& argument : kernel_.arguments) {
    if (!argument.kind.starts_with("hidden_")) continue;
    const std::size_t axis = static_cast<std::size_t>(argument.kind.back() - 'x');
    if (argument.kind.starts_with("hidden_block_count_")) {
      put(bytes, argument.offset, grid_.at(axis));
    } else if (argument.kind.starts_with("hidden_group_size_")) {
      put(bytes, argument.offset, static_cast<std::uint16_t>(block_.at(axis)));
    } else if (argument.kind.starts_with("hidden_remainder_")) {
      put(bytes, argument.offset, std::uint16_t{0});
    } else if (argument.kind.starts_with("hidden_global_offset_")) {
      put(bytes, argument.offset, std::uint64_t{0});
    } else if (argument.kind == "hidden_grid_dims") {
      put(bytes, argument.offset,
          static_cast<std::uint16_t>(grid_[2] * block_[2] > 1   ? 3
                                     : grid_[1] * block_[1] > 1 ? 2
                                                                : 1));
    } else if (argument.kind == "hidden_dynamic_lds_size") {
      put(bytes, argument.offset, dynamic_lds);
    }
  }
}

std::uint32_t Dispatch::waves_of_group() const {
  const std::uint32_t threads = block_[0] * block_[1] * block_[2], lanes = static_cast<std::uint32_t>(chip_.lanes);
  return (threads + lanes - 1) / lanes;
}

std::uint64_t Dispatch::entry() const { return kernel_.entry + ((kernel_.preload & 127) != 0 ? kPreloadPrologue : 0); }

/// \returns the register behind those that are set
int Dispatch::set_user_registers(Wave& wave) const {
  int next = 0;
  const auto set = [&](std::uint32_t value) {
    wave.s[static_cast<std::size_t>(next)] = value;
    wave.s_undefined[static_cast<std::size_t>(next++)] = 0;
  };
  const auto set_wide = [&](std::uint64_t value) {
    set(static_cast<std::uint32_t>(value)), set(static_cast<std::uint32_t>(value >> 32));
  };
  const auto asked = [&](int bit) { return (kernel_.properties >> bit & 1) != 0; };
  if (asked(kPrivateSegmentBuffer)) {
    set(0), set(0x8000'0000), set(kernel_.scratch_bytes), set(0);  // the highest bit of the second word: swizzled
  }
  if (asked(kDispatchPointer)) set_wide(packet_);
  if (asked(kQueuePointer)) next += 2;
  if (asked(kArgumentPointer)) set_wide(arguments_);
  if (asked(kDispatchId)) set_wide(0);
  if (asked(kFlatScratch_)) set_wide(0);
  if (asked(kPrivateSegmentSize)) set(kernel_.scratch_bytes);
  const std::uint32_t preloaded = kernel_.preload & 127u, first = kernel_.preload >> 7;
  for (std::uint32_t dword = 0; dword < preloaded; ++dword) {
    std::uint32_t value = 0;
    memory_.read(arguments_ + 4ull * (first + dword), {reinterpret_cast<std::uint8_t*>(&value), 4});
    set(value);
  }
  return static_cast<int>(user_registers(kernel_));
}

void Dispatch::set_group_registers(Wave& wave, int next, std::uint32_t number,
                                   const std::array<std::uint32_t, 3>& group) const {
  const auto set = [&](int index, std::uint32_t value) {
    wave.s[static_cast<std::size_t>(index)] = value;
    wave.s_undefined[static_cast<std::size_t>(index)] = 0;
  };
  if (chip_.generation == 12) {
    set(kTemporary + 9, group[0]);
    set(kTemporary + 7, group[1] | group[2] << 16);
    set(kTemporary + 8, number << 25);
    return;
  }
  for (std::size_t d = 0; d < 3; ++d) {
    if (kernel_.rsrc2 >> (7 + d) & 1) set(next++, group[d]);
  }
  if (kernel_.rsrc2 >> 10 & 1) set(next++, 0);
  if ((kernel_.rsrc2 & 1) && chip_.is_gfx90a)
    set(next++, 0);  // the wave's offset in scratch: scratch is the wave's own here
}

void Dispatch::set_thread_registers(Wave& wave, std::uint32_t number) const {
  const std::uint32_t threads = block_[0] * block_[1] * block_[2], lanes = static_cast<std::uint32_t>(chip_.lanes);
  std::uint64_t exec = 0;
  for (std::uint32_t l = 0; l < lanes; ++l) {
    const std::uint32_t thread = number * lanes + l;
    if (thread >= threads) break;
    exec |= 1ull << l;
    const std::uint32_t x = thread % block_[0], y = thread / block_[0] % block_[1], z = thread / block_[0] / block_[1];
    wave.v[0][static_cast<int>(l)] = x | y << 10 | z << 20;
  }
  wave.undefined[0] = {~exec, ~exec};
  wave.set_pair(kExec, exec);
}

void Dispatch::start(Wave& wave, std::uint32_t number, const std::array<std::uint32_t, 3>& group,
                     int first_instruction) const {
  if (first_instruction < 0) throw std::runtime_error(fmt::format("{} has no instruction at its entry", kernel_.name));
  constexpr std::uint32_t kJunk = 0xdead'beef;
  for (Row& row : wave.v) row.lane.fill(kJunk);
  wave.undefined.fill({~0ull, ~0ull});
  wave.s.fill(kJunk);
  wave.s_undefined.fill(~0u);
  for (const int index : {kNull, kExec, kExec + 1}) {
    wave.s[static_cast<std::size_t>(index)] = 0;
    wave.s_undefined[static_cast<std::size_t>(index)] = 0;
  }
  wave.scc = false;
  wave.scc_undefined = true;
  wave.pc = first_instruction;
  wave.number = static_cast<int>(number);
  wave.state = Wave::State::kReady;
  wave.signalled = false;
  wave.executed = 0;
  wave.waits.reset();
  wave.lds_out.clear();
  wave.scratch_bytes = kernel_.scratch_bytes;
  wave.scratch.assign(static_cast<std::size_t>(kernel_.scratch_bytes) * kLanes, 0xa5);
  wave.scratch_undefined.assign(wave.scratch.size(), 1);
  set_group_registers(wave, set_user_registers(wave), number, group);
  set_thread_registers(wave, number);
}

}  // namespace heddle::amd::simulator
