#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

inline void load_matrices(Address from, unsigned* words) {
  if (from % 16 != 0) emulated::fail("a matrix's row that is not aligned");
  cta().own().address = from;
  cta().meet(cta().warp(), [] {
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const Address row = cta().lane(8 * matrix + lane / 4).address;
        std::memcpy(&cta().lane(lane).words[matrix], cta().at(row) + 4 * (lane % 4), 4);
      }
    }
  });
  std::memcpy(words, cta().own().words, sizeof cta().own().words);
}

}  // namespace heddle::ptx
