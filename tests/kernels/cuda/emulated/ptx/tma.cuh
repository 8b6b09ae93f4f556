#pragma once

#include "ptx/cluster.cuh"
#include "ptx/shared_words.cuh"

namespace heddle::ptx {

/// The content of a map, in the place of the driver's 128 bytes: axes innermost first, of 16-bit elements.
struct MapContent {
  const char* base;
  long long extents[5], steps[5];  // steps in bytes; of the first axis 2
  int rank, box_rows;
};
struct alignas(64) TensorMap {
  char opaque[128];
};
static_assert(sizeof(MapContent) <= sizeof(TensorMap));

inline constexpr unsigned long long kEvictFirst = 0, kEvictLast = 0, kEvictNormal = 0;
inline void prefetch_map(const TensorMap&) {}

/// Where 16 bytes stand in the 128-byte swizzle.
inline Address swizzled(Address at) { return at ^ (at >> 7 & 7) << 4; }

inline void load_box(Address to, const TensorMap& map, Address barrier, std::vector<long long> at) {
  MapContent content;
  std::memcpy(&content, &map, sizeof content);
  if (to % 1024 != 0) emulated::fail("a box that does not begin where the swizzle repeats");
  // If a box is wholly outside of its map, a GPU touches the map's first element. Maps of five axes begin before their
  // tensor, where no memory need be (docs/notes/cuda_driver.md).
  const auto outside = [&](std::size_t axis, long long size) {
    return at[axis] + size <= 0 || at[axis] >= content.extents[axis];
  };
  if (content.rank == 5 && (outside(0, 64) || outside(1, content.box_rows) || outside(2, 1) || outside(3, 1))) {
    emulated::fail("a box that is wholly outside of a map that begins before its tensor");
  }
  cta().later([=] {
    for (int row = 0; row < content.box_rows; ++row) {
      for (int column = 0; column < 64; ++column) {
        long long index[5] = {at[0] + column, at[1] + row, at[2], at[3], content.rank > 4 ? at[4] : 0};
        bool inside = true;
        long long offset = 0;
        for (int axis = 0; axis < content.rank; ++axis) {
          inside = inside && index[axis] >= 0 && index[axis] < content.extents[axis];
          offset += index[axis] * content.steps[axis];
        }
        unsigned short element = 0;
        if (inside) std::memcpy(&element, content.base + offset, 2);
        std::memcpy(cta().at(swizzled(to + static_cast<unsigned>(row * 128 + column * 2))), &element, 2);
      }
    }
    emulated::Barrier& own = cta().barrier(barrier);
    own.bytes -= content.box_rows * 128;
    own.complete();
  });
}
inline void tma_load(Address to, const TensorMap& map, Address barrier, int column, int row, int head, int batch,
                     unsigned long long) {
  load_box(to, map, barrier, {column, row, head, batch});
}
inline void tma_load_before(int end, Address to, const TensorMap& map, Address barrier, int column, int row, int head,
                            int batch, unsigned long long) {
  load_box(to, map, barrier, {column, row, end, head, batch});
}
/// Each CTA's box on its own, as they come in no order.
inline void load_box_to(unsigned short ctas, Address to, const TensorMap& map, Address barrier,
                        const std::vector<long long>& at) {
  for (int rank = 0; ctas >> rank != 0; ++rank) {
    if ((ctas >> rank & 1) != 0) load_box(address_in(rank, to), map, address_in(rank, barrier), at);
  }
}
inline void tma_load_to(unsigned short ctas, Address to, const TensorMap& map, Address barrier, int column, int row,
                        int head, int batch, unsigned long long) {
  load_box_to(ctas, to, map, barrier, {column, row, head, batch});
}
inline void tma_load_before_to(unsigned short ctas, int end, Address to, const TensorMap& map, Address barrier,
                               int column, int row, int head, int batch, unsigned long long) {
  load_box_to(ctas, to, map, barrier, {column, row, end, head, batch});
}
inline void tma_store_commit() {}
inline void tma_store_wait_read() {
  emulated::Thread* own = &cta().own();
  cta().wait_until([own] { return own->adds == 0; });
}
inline void tma_store_wait() { tma_store_wait_read(); }

}  // namespace heddle::ptx
