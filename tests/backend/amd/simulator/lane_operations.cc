// Values of lanes to scalar registers and back, and exchanges through the LDS unit that touch no LDS.
#include <fmt/format.h>

#include <bit>

#include "backend/amd/simulator/operations.h"

namespace heddle::amd::simulator {
namespace {

std::uint64_t undefined_of(const Undefined& u, int lane) {
  return (u.low >> lane & 1 ? 0xffffu : 0u) | (u.high >> lane & 1 ? 0xffff0000u : 0u);
}

void read_lane(Execution& x, const Instruction& i, int lane) {
  const auto index = static_cast<std::size_t>(i.from[0].index);
  write_scalar(x, i.to[0], {x.wave.v[index][lane], undefined_of(x.wave.undefined[index], lane)});
}

void v_readfirstlane(Execution& x, const Instruction& i) {
  if (i.from[0].kind != Operand::Kind::kVector) {
    write_scalar(x, i.to[0], read_scalar(x.wave, i.from[0]));
    return;
  }
  const std::uint64_t exec = x.exec();
  read_lane(x, i, exec == 0 ? 0 : std::countr_zero(exec));
}

int named_lane(Execution& x, const Operand& operand) {
  const ScalarValue lane = read_scalar(x.wave, operand);
  if (lane.undefined != 0) x.found(Fault::kUndefined, "the lane's number holds bits that nothing wrote");
  return static_cast<int>(lane.bits % static_cast<std::uint64_t>(x.lanes()));
}

void v_readlane(Execution& x, const Instruction& i) { read_lane(x, i, named_lane(x, i.from[1])); }

void v_writelane(Execution& x, const Instruction& i) {
  const ScalarValue value = read_scalar(x.wave, i.from[0]);
  const int lane = named_lane(x, i.from[1]);
  const auto index = static_cast<std::size_t>(i.to[0].index);
  x.wave.v[index][lane] = static_cast<std::uint32_t>(value.bits);
  Undefined& u = x.wave.undefined[index];
  const std::uint64_t bit = 1ull << lane;
  u.low = (u.low & ~bit) | (value.undefined & 0xffff ? bit : 0);
  u.high = (u.high & ~bit) | (value.undefined >> 16 ? bit : 0);
}

void v_swap(Execution& x, const Instruction& i) {
  const std::uint64_t exec = x.exec();
  const auto a = static_cast<std::size_t>(i.to[0].index), b = static_cast<std::size_t>(i.from[0].index);
  for (int l = 0; l < x.lanes(); ++l) {
    if (exec >> l & 1) std::swap(x.wave.v[a][l], x.wave.v[b][l]);
  }
  Undefined &ua = x.wave.undefined[a], &ub = x.wave.undefined[b];
  const Undefined old = ua;
  ua = {(ua.low & ~exec) | (ub.low & exec), (ua.high & ~exec) | (ub.high & exec)};
  ub = {(ub.low & ~exec) | (old.low & exec), (ub.high & ~exec) | (old.high & exec)};
}

/// Lane l gets what lane `from(l)` holds; -1 and lanes that exec leaves out give 0.
template <class From>
void gather(Execution& x, const Instruction& i, const Operand& data, From from) {
  const std::uint64_t exec = x.exec();
  const auto source = static_cast<std::size_t>(data.index), target = static_cast<std::size_t>(i.to[0].index);
  const Row values = x.wave.v[source];
  const Undefined unknown = x.wave.undefined[source];
  Undefined& to = x.wave.undefined[target];
  for (int l = 0; l < x.lanes(); ++l) {
    if (!(exec >> l & 1)) continue;
    const int lane = from(l);
    const bool readable = lane >= 0 && (exec >> lane & 1);
    x.wave.v[target][l] = readable ? values[lane] : 0;
    to.low = (to.low & ~(1ull << l)) | (readable ? unknown.low >> lane & 1 : 0) << l;
    to.high = (to.high & ~(1ull << l)) | (readable ? unknown.high >> lane & 1 : 0) << l;
  }
}

std::uint64_t check_address(Execution& x, const Operand& address) {
  const std::uint64_t unknown = x.wave.undefined[static_cast<std::size_t>(address.index)].any() & x.exec();
  if (unknown != 0)
    x.found(Fault::kUndefined, fmt::format("the lane number of lanes {:#x} holds bits that nothing wrote", unknown));
  return unknown;
}

int lane_at(const Execution& x, std::uint32_t address) {
  return static_cast<int>(address / 4 % static_cast<std::uint32_t>(x.lanes()));
}

void ds_bpermute(Execution& x, const Instruction& i) {
  check_address(x, i.from[0]);
  const Row address = x.wave.v[static_cast<std::size_t>(i.from[0].index)];
  const auto offset = static_cast<std::uint32_t>(i.offset);
  // A wave of 64 reads across all 64 lanes on gfx9; where waves have 32 lanes there are no others.
  gather(x, i, i.from[1], [&](int l) { return lane_at(x, address[l] + offset); });
}

void ds_permute(Execution& x, const Instruction& i) {
  check_address(x, i.from[0]);
  const Row address = x.wave.v[static_cast<std::size_t>(i.from[0].index)];
  const auto offset = static_cast<std::uint32_t>(i.offset);
  std::array<int, kLanes> sender;
  sender.fill(-1);
  const std::uint64_t exec = x.exec();
  for (int l = 0; l < x.lanes(); ++l) {
    if (exec >> l & 1) sender[static_cast<std::size_t>(lane_at(x, address[l] + offset))] = l;  // the last one wins
  }
  gather(x, i, i.from[1], [&](int l) { return sender[static_cast<std::size_t>(l)]; });
}

/// The pattern: four lanes permuted (bit 15), else and, or and xor masks inside 32 lanes.
void ds_swizzle(Execution& x, const Instruction& i) {
  const auto pattern = static_cast<int>(i.offset);
  gather(x, i, i.from[0], [&](int l) {
    if (pattern & 0x8000) return (l & ~3) + (pattern >> (2 * (l & 3)) & 3);
    const int within = (((l & 31) & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
    return (l & 32) + within;
  });
}

constexpr OperationRow kRows[] = {
    {"v_readfirstlane_b32", "i:i", v_readfirstlane, Class::kVector},
    {"v_readlane_b32", "i:ii", v_readlane, Class::kVector},
    {"v_writelane_b32", "i:ii", v_writelane, Class::kVector},
    {"v_swap_b32", "i:i", v_swap, Class::kVector},
    {"ds_bpermute_b32", "i:ii", ds_bpermute, Class::kLds},
    {"ds_permute_b32", "i:ii", ds_permute, Class::kLds},
    {"ds_swizzle_b32", "i:i", ds_swizzle, Class::kLds},
};

}  // namespace

std::span<const OperationRow> lane_rows() { return kRows; }

}  // namespace heddle::amd::simulator
