#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

template <bool kTransposed>
void store_fragments(Address to, const unsigned (&words)[4]) {
  emulated::Thread& own = cta().own();
  own.address = to;
  std::memcpy(own.words, words, sizeof own.words);
  cta().meet(cta().warp(), [] {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int e = 0; e < 2; ++e) {  // row lane / 4, column 2 (lane % 4) + e
          const int row = lane / 4, column = 2 * (lane % 4) + e;
          const auto element = static_cast<unsigned short>(cta().lane(lane).words[matrix] >> (16 * e));
          const Address at = cta().lane(8 * matrix + (kTransposed ? column : row)).address;
          if (at % 16 != 0) emulated::fail("a matrix's row that is not aligned");
          std::memcpy(cta().at(at) + 2 * (kTransposed ? row : column), &element, 2);
        }
      }
    }
  });
}
inline void store_transposed(Address to, const unsigned (&words)[4]) { store_fragments<true>(to, words); }
inline void store_matrices(Address to, const unsigned (&words)[4]) { store_fragments<false>(to, words); }

}  // namespace heddle::ptx
