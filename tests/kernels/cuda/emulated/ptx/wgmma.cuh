#pragma once

#include "ptx/math.cuh"
#include "ptx/tma.cuh"

namespace heddle::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() {
  emulated::Thread& own = cta().own();
  if (own.open > 0) own.groups.push_back(own.open);
  own.open = 0;
}
template <int kGroups>
void wgmma_wait() {
  emulated::Thread* own = &cta().own();
  cta().wait_until([own] { return static_cast<int>(own->groups.size()) <= kGroups; });
}
template <int kCount>
void touch(float (&)[kCount]) {}
template <int kCount>
void forget(float (&)[kCount]) {}

inline unsigned matrix_at(Address address) { return (address & 0x3ffffU) >> 4; }
inline unsigned long long descriptor(unsigned low) { return 0x4000004000000000ULL | low; }
inline constexpr unsigned kNextColumns = 16 * 2 / 16;
inline constexpr unsigned kNextRows = 16 * 128 / 16;

/// An element of an operand in shared memory: `row` of the product's rows or columns, `k` of its sum.
inline float operand(bool f16, unsigned long long descriptor, int rank, bool by_rows, int row, int k) {
  // A descriptor has 14 bits of an address, which mean the warpgroup's own CTA.
  const auto field = [&](int bit) { return static_cast<unsigned>(descriptor >> bit & 0x3fff) << 4; };
  const unsigned first = field(0) | static_cast<unsigned>(rank) << emulated::Cta::kRankBit, leading = field(16),
                 stride = field(32);
  const auto r = static_cast<unsigned>(row), i = static_cast<unsigned>(k);
  const unsigned offset =
      by_rows ? r / 64 * leading + i / 8 * stride + i % 8 * 128 + r % 64 * 2 : r / 8 * stride + r % 8 * 128 + i * 2;
  unsigned short bits;
  std::memcpy(&bits, cta().at(swizzled(first + offset)), 2);
  return from_storage(f16, bits);
}

/// The product that 128 threads have asked for: 64 rows, steps of 16.
inline void multiply(bool f16, std::vector<emulated::Thread*>& group) {
  const emulated::Product& first = group.front()->products.front();
  std::vector<float> a(64 * 16), b(static_cast<std::size_t>(first.columns) * 16);
  for (int t = 0; t < 128; ++t) {
    const emulated::Product& own = group[static_cast<std::size_t>(t)]->products.front();
    if (own.b != first.b || own.a != first.a || own.accumulates != first.accumulates || own.columns != first.columns) {
      emulated::fail("threads of a warpgroup disagree about a product");
    }
    if (own.a_registers == nullptr) continue;
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < 2; ++e) {
        const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2), k = 8 * (i / 2) + 2 * (t % 4) + e;
        a[static_cast<std::size_t>(row * 16 + k)] =
            from_storage(f16, static_cast<unsigned short>(own.a_registers[i] >> (16 * e)));
      }
    }
  }
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 64 && first.a_registers == nullptr; ++row) {
      a[static_cast<std::size_t>(row * 16 + k)] = operand(f16, first.a, first.rank, false, row, k);
    }
    for (int column = 0; column < first.columns; ++column) {
      b[static_cast<std::size_t>(column * 16 + k)] = operand(f16, first.b, first.rank, first.b_by_rows, column, k);
    }
  }
  for (int t = 0; t < 128; ++t) {
    const emulated::Product& own = group[static_cast<std::size_t>(t)]->products.front();
    for (int n = 0; n < first.columns / 2; ++n) {
      const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (n / 2 % 2), column = 8 * (n / 4) + 2 * (t % 4) + n % 2;
      float sum = own.accumulates ? own.d[n] : 0;
      for (int k = 0; k < 16; ++k) {
        sum += a[static_cast<std::size_t>(row * 16 + k)] * b[static_cast<std::size_t>(column * 16 + k)];
      }
      own.d[n] = sum;
    }
  }
}

inline void ask(const emulated::Product& product) {
  cta().own().products.push_back(product);
  cta().own().products.back().rank = cta().rank();
  ++cta().own().open;
}

}  // namespace heddle::ptx
