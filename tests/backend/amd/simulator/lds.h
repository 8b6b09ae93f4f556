// The LDS of one workgroup: its bytes, their last accesses by barriers passed, and the cycles that its banks take.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace heddle::amd::simulator {

/// A wave that touches LDS, and between which barriers. A plain access counts for one epoch (the number of barriers
/// passed). An access between a split barrier's signal and its wait may meet accesses of both sides, and so counts for
/// two.
struct Toucher {
  std::uint32_t wave = 0;  ///< in the workgroup, below kManyWaves
  std::uint32_t first_epoch = 0;
  std::uint32_t last_epoch = 0;
};

class Lds {
 public:
  static constexpr std::uint32_t kManyWaves = 63;

  /// A new workgroup: nothing is written yet.
  void reset(std::uint32_t bytes);
  std::uint32_t size() const { return static_cast<std::uint32_t>(bytes_.size()); }
  bool contains(std::uint64_t address, std::uint32_t size) const {
    return address <= bytes_.size() && size <= bytes_.size() - address;
  }

  /// Each returns false if another wave touched a byte in the same epoch, and one of the two wrote. The caller has
  /// checked the bounds.
  bool load(const Toucher& by, std::uint32_t address, std::uint32_t size, std::uint8_t* to);
  bool store(const Toucher& by, std::uint32_t address, std::uint32_t size, const std::uint8_t* from);
  /// Atomics of several waves may touch the same bytes.
  bool touch_atomically(const Toucher& by, std::uint32_t address, std::uint32_t size);
  /// An access that was issued before a barrier and may come to pass after it.
  void delay(const Toucher& by, std::uint32_t address, std::uint32_t size, bool written);

  /// Bit i: byte i of [address, address + size), size at most 16, holds nothing that was written.
  std::uint32_t undefined(std::uint32_t address, std::uint32_t size) const;
  void set_undefined(std::uint32_t address, std::uint32_t size, std::uint32_t bits);
  std::uint8_t* at(std::uint32_t address) { return bytes_.data() + address; }

 private:
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> undefined_;
  std::vector<std::uint32_t> writer_;  // epoch << 8 | atomic << 7 | wave; 0: nobody
  std::vector<std::uint32_t> reader_;
};

struct BankCycles {
  std::uint64_t all = 0;
  std::uint64_t conflicts = 0;  ///< of these: a bank was asked for a second dword in the same cycle
};

/// Cycles that 32 banks of 4 bytes take for one access of all active lanes. A cycle serves 128 bytes: 32 lanes of up to
/// 4 bytes, 16 of 8, 8 of 16; lanes that ask for the same dword share it. The 8 lanes that a 16-byte read of gfx9
/// serves together are not consecutive (measured by others on gfx950). AMD documents none of this for gfx11 and gfx12:
/// it is a model.
BankCycles bank_cycles(std::span<const std::uint32_t> addresses, std::uint64_t exec, std::uint32_t size,
                       int generation);

}  // namespace heddle::amd::simulator
