// Stored masks: what a mask says of every partial block, found once before any run of an attention kernel and kept in
// the device's memory as the words that the kernel's threads take (mask_bits.h). What host and device pass each other,
// and where the words stand. Read by the planner, the launcher, and the kernels when NVRTC compiles them: no other
// headers, plain integers only.
#pragma once

#include "shared/mask_bits.h"
#include "shared/mod_values.h"
#include "shared/tile_shape.h"

namespace heddle::shared {

/// Key blocks of a tile of which the mask decides. Tiles that walk the same rows of the same mask share their words.
struct StoredRun {
  int batch, head;    // sequence; query head
  int q_first;        // the tile's first query
  int block, blocks;  // key blocks [block, block + blocks), in the order of keys
  int words_at;       // of the tile: the words of key block n stand at words_at + n; may be negative
  int warpgroups;     // bit w: it decides of rows of warpgroup w. The others' words are not written
};

/// Threads of a warpgroup.
inline constexpr int kStoredThreads = 128;

/// Which of all words are those of a thread: a warpgroup's stand side by side. `block`: words_at of the tile + number
/// of the key block.
constexpr long long stored_word(int block, int warpgroups, int warpgroup, int thread) {
  return (static_cast<long long>(block) * warpgroups + warpgroup) * kStoredThreads + thread;
}
/// Bytes that `blocks` blocks take for all warpgroups.
constexpr long long stored_bytes(long long blocks, int warpgroups) {
  return blocks * warpgroups * kStoredThreads * static_cast<long long>(sizeof(MaskWords));
}

struct StoredMaskParams {
  const StoredRun* runs;
  MaskWords* words;
  int kv_block;    // keys of a block, at most 128
  int warpgroups;  // of a tile
  ModValues mod;
};

}  // namespace heddle::shared
