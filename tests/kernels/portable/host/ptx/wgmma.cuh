// Stands in for kernels/nvidia/ptx/wgmma.cuh on the host. Products happen as late as they may: when their group is
// waited for. They read shared memory and accumulators then, so a thread that gives a buffer back too early, or reads
// too early, gets wrong numbers. Ends the process with a sentence where a thread of the warpgroup has waited for copies
// without a fence behind.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::ptx {

/// A thread's part of a product of its warpgroup, 64 x columns x 16.
struct AskedProduct {
  float* d;
  unsigned a_registers[4];
  bool a_in_registers, accumulates, b_by_rows;  // b_by_rows: MN-major
  unsigned long long a, b;
  int columns;
  float (*value)(unsigned short bits);
};
struct AskedProducts {
  std::vector<AskedProduct> open;
  std::deque<std::vector<AskedProduct>> groups;  // the oldest first
};
inline constexpr int kWarpgroup = 128;
inline AskedProducts asked_products[8 * kWarpgroup];
inline int waiting_for_products[8];

inline void wgmma_fence() {}
inline void wgmma_commit() {
  AskedProducts& own = asked_products[threadIdx.x];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}
template <int kCount>
void touch(float (&)[kCount]) {}

inline unsigned matrix_at(Address address) { return (address & 0x3ffffU) >> 4; }
inline unsigned long long descriptor(unsigned low) { return 0x4000004000000000ULL | low; }
inline constexpr unsigned kNextColumns = 16 * 2 / 16;
inline constexpr unsigned kNextRows = 16 * 128 / 16;

/// An element of an operand in shared memory: `row` of the product's rows or columns, `k` of its sum.
inline float element_of(const AskedProduct& product, unsigned long long descriptor, bool by_rows, unsigned row,
                        unsigned k) {
  const auto field = [&](int bit) { return static_cast<unsigned>(descriptor >> bit & 0x3fff) << 4; };
  const unsigned leading = field(16), stride = field(32);
  const unsigned at = field(0) + (by_rows ? row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                                          : row / 8 * stride + row % 8 * 128 + k * 2);
  unsigned short bits;
  std::memcpy(&bits, lanes::cta.memory + (at ^ (at >> 7 & 7) << 4), 2);
  return product.value(bits);
}

/// Product `number` of group 0 of the 128 threads from `first` on.
inline void multiply(unsigned first, std::size_t number) {
  const auto of_thread = [&](unsigned t) -> const AskedProduct& {
    return asked_products[first + t].groups.front()[number];
  };
  const AskedProduct& all = of_thread(0);
  static float a[64][16], b[256][16];
  for (unsigned t = 0; t < kWarpgroup; ++t) {
    const AskedProduct& own = of_thread(t);
    if (own.b != all.b || own.a != all.a || own.accumulates != all.accumulates || own.columns != all.columns) {
      lanes::fail("threads of a warpgroup disagree about a product");
    }
    for (unsigned i = 0; i < 8 && own.a_in_registers; ++i) {
      const unsigned word = i / 2, row = 16 * (t / 32) + t % 32 / 4 + 8 * (word % 2);
      a[row][8 * (word / 2) + 2 * (t % 4) + i % 2] =
          own.value(static_cast<unsigned short>(own.a_registers[word] >> (16 * (i % 2))));
    }
  }
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned row = 0; row < 64 && !all.a_in_registers; ++row) a[row][k] = element_of(all, all.a, false, row, k);
    for (unsigned column = 0; column < static_cast<unsigned>(all.columns); ++column) {
      b[column][k] = element_of(all, all.b, all.b_by_rows, column, k);
    }
  }
  for (unsigned t = 0; t < kWarpgroup; ++t) {
    for (unsigned n = 0; n < static_cast<unsigned>(all.columns) / 2; ++n) {
      const unsigned row = 16 * (t / 32) + t % 32 / 4 + 8 * (n / 2 % 2), column = 8 * (n / 4) + 2 * (t % 4) + n % 2;
      float sum = all.accumulates ? of_thread(t).d[n] : 0;
      for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[column][k];
      of_thread(t).d[n] = sum;
    }
  }
}

/// Until at most kGroups groups are left, by all threads of a warpgroup.
template <int kGroups>
void wgmma_wait() {
  const unsigned group = threadIdx.x / kWarpgroup, first = group * kWarpgroup;
  if (++waiting_for_products[group] == kWarpgroup) {
    waiting_for_products[group] = 0;
    for (unsigned t = first; t < first + kWarpgroup; ++t) {
      if (!lanes::cta.lanes[t].fenced) lanes::fail("a product reads copies that no fence stands behind");
    }
    while (asked_products[first].groups.size() > kGroups) {
      const std::size_t count = asked_products[first].groups.front().size();
      for (std::size_t i = 0; i < count; ++i) multiply(first, i);
      for (unsigned t = 0; t < kWarpgroup; ++t) asked_products[first + t].groups.pop_front();
    }
  }
  constexpr int kFirstBarrier = 14;  // of warpgroups, behind those that kernels name
  lanes::meet(kFirstBarrier + static_cast<int>(group), kWarpgroup);
}

}  // namespace heddle::ptx
