// Stands in for kernels/nvidia/ptx/tma.cuh on the host, of boxes of keys.
#pragma once

#include "described_rows.h"
#include "ptx/barrier.cuh"

namespace heddle::ptx {

struct alignas(64) TensorMap {
  char opaque[128];
};
inline constexpr unsigned long long kEvictNormal = 0;

/// Rows from `longest` on of those that end at `end` are zeros, as are columns that the tensor lacks.
inline void tma_load_before(int end, Address to, const TensorMap& map, Address barrier, int column, int row, int head,
                            int batch, unsigned long long) {
  constexpr int kLine = 128, kBytes = 16, kElement = 2;
  test::DescribedRows rows;
  std::memcpy(&rows, map.opaque, sizeof rows);
  if (to % 1024 != 0) lanes::fail("a box stands where its swizzle does not begin");
  const char* first = rows.data + batch * rows.batch + head * rows.head;
  for (int i = 0; i < rows.box_rows; ++i) {
    const bool there = row + i >= 0 && row + i < rows.longest;
    for (int at = 0; at < kLine; at += kBytes) {
      const int byte = column * kElement + at, left = rows.row_bytes - byte;
      const int valid = !there || left < 0 ? 0 : left < kBytes ? left : kBytes;
      lanes::copy_to_arrival(barrier, {lanes::cta.memory + to + i * kLine + (at ^ i % 8 * kBytes),
                                       first + (end - rows.longest + row + i) * rows.row + byte, kBytes, valid});
    }
  }
  lanes::arrive_bytes(barrier, rows.box_rows * kLine);
}

}  // namespace heddle::ptx
