// How values of 8 bits are transposed, instruction by instruction on the host: what ldmatrix, the byte permutations and
// stmatrix make of a block of values, and what wgmma reads of it, by the layouts that the PTX manual gives.
#include "shared/transposed_values.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "families/forward_sm90/shared/forward_sm90_config.h"

namespace heddle::shared {
namespace {

constexpr unsigned kLanes = 32, kMatrices = 4, kRowBytes = 16;
constexpr int kPanelBytes = 128;

using Memory = std::vector<std::uint8_t>;
using Registers = std::array<std::array<std::uint32_t, kMatrices>, kLanes>;

/// ldmatrix.x4.trans: lane 8 m + r tells row r of matrix m; thread l gets elements [2 (l % 4)][l / 4] and
/// [2 (l % 4) + 1][l / 4] of 16 bits.
Registers load_transposed(const Memory& memory, const std::array<unsigned, kLanes>& addresses) {
  Registers registers{};
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (unsigned m = 0; m < kMatrices; ++m) {
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned at = addresses[8 * m + 2 * (lane % 4) + half] + 2 * (lane / 4);
        registers[lane][m] |= (memory[at] | unsigned{memory[at + 1]} << 8) << 16 * half;
      }
    }
  }
  return registers;
}

/// stmatrix.x4: thread l has the 32-bit word l % 4 of row l / 4 of each matrix.
void store(Memory& memory, const std::array<unsigned, kLanes>& addresses, const Registers& registers) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (unsigned m = 0; m < kMatrices; ++m) {
      for (unsigned byte = 0; byte < 4; ++byte) {
        memory[addresses[8 * m + lane / 4] + 4 * (lane % 4) + byte] =
            static_cast<std::uint8_t>(registers[lane][m] >> 8 * byte);
      }
    }
  }
}

/// prmt
std::uint32_t permuted(std::uint32_t low, std::uint32_t high, unsigned selector) {
  const std::uint64_t both = low | std::uint64_t{high} << 32;
  std::uint32_t word = 0;
  for (unsigned i = 0; i < 4; ++i)
    word |= static_cast<std::uint32_t>((both >> 8 * ((selector >> 4 * i) & 7)) & 0xff) << 8 * i;
  return word;
}

/// Eight rows of 16 bytes that lie in different banks.
void expect_no_conflict(const std::array<unsigned, kLanes>& addresses, unsigned matrix) {
  std::set<unsigned> banks;
  for (unsigned row = 0; row < 8; ++row) {
    EXPECT_EQ(addresses[8 * matrix + row] % kRowBytes, 0U);
    banks.insert(addresses[8 * matrix + row] / kRowBytes % 8);
  }
  EXPECT_EQ(banks.size(), 8U) << matrix;
}

/// A value that tells key and column, as far as a byte can.
std::uint8_t value_of(int key, int column) { return static_cast<std::uint8_t>(key * 37 + column * 101 + key * column); }

/// A block as TMA leaves it: panels of [keys][128], 16-byte chunks swapped by the row's number.
Memory loaded_block(const ForwardSm90Config& config) {
  Memory memory(static_cast<std::size_t>(config.v_panels() * config.kv_block * kPanelBytes));
  for (int key = 0; key < config.kv_block; ++key) {
    for (int column = 0; column < config.v_panels() * kPanelBytes; ++column) {
      const int panel = column / kPanelBytes, chunk = (column % kPanelBytes / 16) ^ (key % 8);
      const int at = (panel * config.kv_block + key) * kPanelBytes + 16 * chunk + column % 16;
      memory[static_cast<std::size_t>(at)] = value_of(key, column);
    }
  }
  return memory;
}

/// Transposes a block as forward_sm90/transposer.cuh does.
Memory transposed_block(const ForwardSm90Config& config, const Memory& loaded) {
  Memory memory(static_cast<std::size_t>(config.kv_block * config.transposed_rows()));
  const bool alone = config.transposers() == 1;  // a warp does both halves of the columns
  for (unsigned half = 0; half < 2; ++half) {
    for (int step = 0; step < config.kv_block / kSlots; ++step) {
      for (int sixteen = 0; sixteen < config.transposed_rows() / 32; ++sixteen) {
        std::array<unsigned, kLanes> from{}, to{};
        for (unsigned lane = 0; lane < kLanes; ++lane) {
          const unsigned own = alone ? offset_to_load(lane, 0) ^ (16 * half) : offset_to_load(lane, half),
                         row = own + static_cast<unsigned>(step * kSlots * kPanelBytes);
          from[lane] = (row ^ (32 * (static_cast<unsigned>(sixteen) % 4))) +
                       static_cast<unsigned>(sixteen / 4 * config.kv_block * kPanelBytes);
          to[lane] = offset_to_store(lane) + 512 * half +
                     static_cast<unsigned>(step * config.transposed_rows() * kSlots + sixteen * 2 * 16 * kSlots);
        }
        for (unsigned m = 0; m < kMatrices; ++m) {
          expect_no_conflict(from, m);
          expect_no_conflict(to, m);
        }
        const Registers pairs = load_transposed(loaded, from);
        Registers words{};
        for (unsigned lane = 0; lane < kLanes; ++lane) {
          for (unsigned m = 0; m < kMatrices; ++m) {
            words[lane][m] = permuted(pairs[lane][m / 2 * 2], pairs[lane][m / 2 * 2 + 1], bytes_of_word(lane, m));
          }
        }
        store(memory, to, words);
      }
    }
  }
  return memory;
}

ForwardSm90Config config_of(int v_dim, int kv_block) {
  return {.qk_dim = 128,
          .v_dim = v_dim,
          .warpgroups = 3,
          .kv_block = kv_block,
          .stages = 2,
          .q_buffers = 2,
          .o_panels = 1,
          .f16 = false,
          .lse = false,
          .masked = false,
          .q_fp8 = Fp8::e4m3,
          .k_fp8 = Fp8::e4m3,
          .v_fp8 = Fp8::e4m3};
}

// A descriptor of the 32-byte swizzle reads chunk c of row n of a k-step at 32 n + 16 (c ^ (n / 4) % 2): groups of 8
// rows follow each other after 256 bytes.
TEST(TransposedValues, AreWhatProductsRead) {
  for (const int v_dim : {1, 8, 40, 64, 72, 96, 128, 136, 192, 248, 256}) {
    for (const int kv_block : {32, 64, 96, 128, 224}) {
      ForwardSm90Config config = config_of(v_dim, kv_block);
      config.page_rows = v_dim % 16;
      const Memory transposed = transposed_block(config, loaded_block(config));
      for (int step = 0; step < kv_block / kSlots; ++step) {
        for (int column = 0; column < config.v_columns(); ++column) {
          for (int slot = 0; slot < kSlots; ++slot) {
            const int chunk = (slot / 16) ^ (column / 4 % 2);
            const int at =
                step * config.transposed_rows() * kSlots + column / 8 * 256 + column % 8 * 32 + 16 * chunk + slot % 16;
            ASSERT_EQ(transposed[static_cast<std::size_t>(at)], value_of(step * kSlots + key_of_slot(slot), column))
                << v_dim << ' ' << kv_block << ' ' << column << ' ' << slot;
          }
        }
      }
    }
  }
}

// A thread has the keys 8 j + 2 q + e of a row of S, as d[4 j + e]. Register r of a k-step must hold the slots 16 (r /
// 2) + 4 q + 0 .. 3 of P, of the upper (r even) or the lower row. pack_p() of forward_sm90/consumer.cuh picks from S by
// this rule.
TEST(TransposedValues, SlotsAreTheThreadsOwnKeys) {
  for (int q = 0; q < 4; ++q) {
    for (int r = 0; r < 4; ++r) {
      const int first = 8 * (r / 2) + 2 * (r % 2);
      const int registers[] = {first, first + 1, first + 4, first + 5};
      for (int byte = 0; byte < 4; ++byte) {
        const int i = registers[byte];
        EXPECT_EQ(i / 2 % 2, r % 2) << "the other row";
        EXPECT_EQ(8 * (i / 4) + 2 * q + i % 2, key_of_slot(16 * (r / 2) + 4 * q + byte)) << q << r << byte;
      }
    }
  }
}

TEST(TransposedValues, EachKeyIsOneSlot) {
  std::set<int> keys;
  for (int slot = 0; slot < kSlots; ++slot) keys.insert(key_of_slot(slot));
  EXPECT_EQ(std::ssize(keys), kSlots);
  EXPECT_EQ(*keys.rbegin(), kSlots - 1);
}

// Where buffers of 8-bit kernels lie: the swizzles repeat after 1024 and after 256 bytes, and nothing overlaps.
TEST(TransposedValues, HaveABufferOfTheirOwn) {
  for (const int v_dim : {8, 64, 128, 200}) {
    ForwardSm90Config config = config_of(v_dim, 96);
    const ForwardSm90Memory memory = forward_sm90_memory(config);
    EXPECT_EQ(memory.v % 1024, 0);
    EXPECT_EQ(memory.values % 1024, 0);
    EXPECT_EQ(memory.o % 1024, 0);
    EXPECT_EQ(memory.values - memory.v, config.stages * config.v_panels() * 96 * 128);
    EXPECT_EQ(memory.o - memory.values, config.stages * 96 * config.transposed_rows());
    EXPECT_EQ(memory.steps - memory.barriers, 8 * (2 * 2 * 3 + 6 * 2 + 3));
    EXPECT_EQ(memory.bytes - memory.ends, 4 * config.stages);
    ForwardSm90Config paged = config;
    paged.page_rows = 16;
    const ForwardSm90Memory orders = forward_sm90_memory(paged);
    EXPECT_EQ(orders.orders % 16, 0);
    EXPECT_EQ(orders.barriers - orders.orders, kGatherOrders * static_cast<int>(sizeof(GatherOrder)));
    EXPECT_EQ(orders.steps - orders.barriers, 8 * (2 * 2 * 3 + 6 * 2 + 3 + 2 * kGatherOrders));
    config.q_fp8 = config.k_fp8 = config.v_fp8 = Fp8::none;
    EXPECT_EQ(forward_sm90_memory(config).values, forward_sm90_memory(config).v);
  }
}

}  // namespace
}  // namespace heddle::shared
