#include "backend/amd/simulator/lds.h"

#include <algorithm>

namespace heddle::amd::simulator {
namespace {

constexpr std::uint32_t kWaveBits = 0x3f;
constexpr std::uint32_t kAtomicBit = 0x80;

std::uint32_t stamp(const Toucher& by) { return by.last_epoch << 8 | by.wave; }

/// Did another wave leave this stamp in an epoch that the toucher's access belongs to?
bool meets(std::uint32_t stamp, const Toucher& by) {
  return ((stamp >> 8) >= by.first_epoch) & ((stamp & kWaveBits) != by.wave);
}

std::uint32_t joined(std::uint32_t reader, const Toucher& by) {
  return (reader >> 8) >= by.last_epoch && (reader & kWaveBits) != by.wave ? (reader | Lds::kManyWaves) : stamp(by);
}

// The loops of loads and stores, for a size that is known when compiling: they are most of what LDS costs.
template <std::uint32_t kSize>
bool load_fixed(const Toucher& by, const std::uint32_t* writer, std::uint32_t* reader) {
  std::uint32_t bad = 0;
  for (std::uint32_t i = 0; i < kSize; ++i) bad |= meets(writer[i], by);
  for (std::uint32_t i = 0; i < kSize; ++i) reader[i] = joined(reader[i], by);
  return bad == 0;
}

template <std::uint32_t kSize>
bool store_fixed(const Toucher& by, std::uint32_t* writer, const std::uint32_t* reader) {
  std::uint32_t bad = 0;
  for (std::uint32_t i = 0; i < kSize; ++i) bad |= meets(writer[i], by) | meets(reader[i], by);
  for (std::uint32_t i = 0; i < kSize; ++i) writer[i] = stamp(by);
  return bad == 0;
}

}  // namespace

void Lds::reset(std::uint32_t bytes) {
  bytes_.assign(bytes, 0xa5);
  undefined_.assign(bytes, 1);
  writer_.assign(bytes, 0);
  reader_.assign(bytes, 0);
}

bool Lds::load(const Toucher& by, std::uint32_t address, std::uint32_t size, std::uint8_t* to) {
  std::memcpy(to, bytes_.data() + address, size);
  const std::uint32_t* writer = writer_.data() + address;
  std::uint32_t* reader = reader_.data() + address;
  switch (size) {
    case 1:
      return load_fixed<1>(by, writer, reader);
    case 2:
      return load_fixed<2>(by, writer, reader);
    case 4:
      return load_fixed<4>(by, writer, reader);
    case 8:
      return load_fixed<8>(by, writer, reader);
    case 12:
      return load_fixed<12>(by, writer, reader);
    default:
      return load_fixed<16>(by, writer, reader);
  }
}

bool Lds::store(const Toucher& by, std::uint32_t address, std::uint32_t size, const std::uint8_t* from) {
  std::memcpy(bytes_.data() + address, from, size);
  std::memset(undefined_.data() + address, 0, size);
  std::uint32_t* writer = writer_.data() + address;
  const std::uint32_t* reader = reader_.data() + address;
  switch (size) {
    case 1:
      return store_fixed<1>(by, writer, reader);
    case 2:
      return store_fixed<2>(by, writer, reader);
    case 4:
      return store_fixed<4>(by, writer, reader);
    case 8:
      return store_fixed<8>(by, writer, reader);
    case 12:
      return store_fixed<12>(by, writer, reader);
    default:
      return store_fixed<16>(by, writer, reader);
  }
}

bool Lds::touch_atomically(const Toucher& by, std::uint32_t address, std::uint32_t size) {
  bool good = true;
  for (std::uint32_t i = address; i < address + size; ++i) {
    const bool met = meets(writer_[i], by);
    good &= !(met && !(writer_[i] & kAtomicBit)) && !meets(reader_[i], by);
    writer_[i] = stamp(by) | kAtomicBit | (met ? kManyWaves : 0);
  }
  return good;
}

void Lds::delay(const Toucher& by, std::uint32_t address, std::uint32_t size, bool written) {
  for (std::uint32_t i = address; i < address + size; ++i) {
    if (written) {
      writer_[i] = std::max(writer_[i], stamp(by));
    } else {
      reader_[i] = joined(reader_[i], by);
    }
  }
}

std::uint32_t Lds::undefined(std::uint32_t address, std::uint32_t size) const {
  std::uint32_t any = 0;
  for (std::uint32_t i = 0; i < size; ++i) any |= undefined_[address + i];
  if (any == 0) return 0;
  std::uint32_t bits = 0;
  for (std::uint32_t i = 0; i < size; ++i) bits |= static_cast<std::uint32_t>(undefined_[address + i]) << i;
  return bits;
}

void Lds::set_undefined(std::uint32_t address, std::uint32_t size, std::uint32_t bits) {
  for (std::uint32_t i = 0; i < size; ++i) undefined_[address + i] = bits >> i & 1;
}

namespace {

/// The lanes that a gfx9 serves together in 16-byte reads: eight groups of 8 for 64 lanes.
constexpr std::array<std::uint8_t, 32> kGfx9Order = {0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27,
                                                     4, 5, 6, 7, 8,  9,  10, 11, 16, 17, 18, 19, 28, 29, 30, 31};

/// Cycles of lanes that are served together: the most dwords, or pieces of `piece` bytes, that fall on the same banks.
std::uint32_t cycles_of(std::span<const std::uint32_t> pieces, std::uint32_t slots) {
  std::array<std::uint32_t, 64> seen_piece;  // a chain of the pieces seen, for each slot
  std::array<std::int8_t, 64> previous;
  std::array<std::int8_t, 32> last;
  std::array<std::uint8_t, 32> count{};
  last.fill(-1);
  std::uint32_t most = 0;
  std::int8_t used = 0;
  for (const std::uint32_t piece : pieces) {
    const std::uint32_t slot = piece % slots;
    std::int8_t at = last[slot];
    while (at >= 0 && seen_piece[static_cast<std::size_t>(at)] != piece) at = previous[static_cast<std::size_t>(at)];
    if (at >= 0) continue;
    seen_piece[static_cast<std::size_t>(used)] = piece;
    previous[static_cast<std::size_t>(used)] = last[slot];
    last[slot] = used++;
    most = std::max<std::uint32_t>(most, ++count[slot]);
  }
  return most;
}

}  // namespace

BankCycles bank_cycles(std::span<const std::uint32_t> addresses, std::uint64_t exec, std::uint32_t size,
                       int generation) {
  BankCycles result;
  const std::uint32_t piece = size <= 4 ? 4 : size == 8 ? 8 : 16;
  const std::uint32_t together = 128 / piece;
  std::array<std::uint32_t, 64> pieces;
  for (std::uint32_t first = 0; first < addresses.size(); first += together) {
    std::size_t count = 0;
    for (std::uint32_t i = first; i < first + together; ++i) {
      const std::uint32_t lane = generation == 9 && piece == 16 ? (i & 32) + kGfx9Order[i % 32] : i;
      if (exec >> lane & 1) pieces[count++] = addresses[lane] / piece;
    }
    if (count == 0) continue;
    const std::uint32_t cycles = cycles_of({pieces.data(), count}, together);
    result.all += cycles;
    result.conflicts += cycles - 1;
  }
  return result;
}

}  // namespace heddle::amd::simulator
