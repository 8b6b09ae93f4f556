// forward_mma's memory, from the configuration alone: a CTA's shared memory, and what the CTAs that share a tile leave
// each other. Read by the planner, by the launchers, and by the kernel itself: no headers but these, plain integers
// only.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::shared {

/// Rows in shared memory are an odd number of 16 bytes apart, so that the same 16 bytes of eight rows stand in all
/// banks.
constexpr int row_pitch(int columns, int element_bytes) { return ((columns * element_bytes + 15) / 16 | 1) * 16; }

/// Or they are a multiple of 128 bytes apart, and swizzled: what belongs to byte b of a row stands at b ^ turn_of(row).
/// Copies of 16 bytes a thread then fill whole lines: rows that straddle lines cost 3 % of decode_mma's rate of
/// reading.
constexpr bool is_swizzled(int pitch) { return pitch % 128 == 0; }
constexpr int turn_of(int row) { return row % 8 * 16; }

/// Offsets in bytes. When a tile ends its waves' rows stand where keys and values were.
struct ForwardMmaMemory {
  int k_pitch, v_pitch;  // from one row to the next; transposed: of v, whose rows are its columns
  int q_pitch;
  int k, v, q;  // q: [tile rows], shared_queries
  int stage;    // from a buffer to the next; 0: there is one
  int wave;     // own_blocks: from a ring to the next one; waves that share keys share a ring
  int bytes;
};

constexpr ForwardMmaMemory forward_mma_memory(const ForwardMmaConfig& config) {
  ForwardMmaMemory memory{};
  const int bytes = config.kv_element_bytes();
  const bool transposed = config.shape().transposed;
  memory.k_pitch = row_pitch(config.qk_columns(), bytes);
  memory.v_pitch = transposed ? row_pitch(config.kv_block, bytes) : row_pitch(config.v_columns(), bytes);
  memory.q_pitch = row_pitch(config.qk_columns(), config.element_bytes());
  if (config.own_blocks) {
    if (is_swizzled(config.qk_columns() * bytes)) memory.k_pitch = config.qk_columns() * bytes;
    if (is_swizzled(config.v_columns() * bytes)) memory.v_pitch = config.v_columns() * bytes;
    if (config.wide()) memory.v_pitch = memory.k_pitch;
  }
  const int keys = config.block_keys() * memory.k_pitch;
  const int values = (transposed ? config.v_columns() : config.block_keys()) * memory.v_pitch;
  // Values that are the keys stand apart only where they are transposed.
  const bool apart =
      config.blocks == StepBlocks::keys_and_values || (config.blocks == StepBlocks::both_ways && transposed);
  memory.v = apart ? keys : 0;
  const int block = keys + (apart ? values : 0);
  memory.stage = config.stages > 1 ? block : 0;
  memory.wave = config.own_blocks ? config.stages * block : 0;
  memory.q = (config.own_blocks ? config.waves() / config.ring_waves() : 1) * config.stages * block;
  memory.bytes = memory.q + (config.shared_queries ? config.rows() * memory.q_pitch : 0);
  if (config.key_waves > 1 && !config.own_blocks) {
    const int real = real_bytes(config.storage);
    const int merged = config.waves() * config.wave_rows() * (config.v_columns() + 2) * real;
    if (merged > memory.bytes) memory.bytes = merged;
  }
  return memory;
}

/// The workspace of tiles that are split: for each tile a word that counts the CTAs which have finished, then for each
/// tile what its CTAs have found: maximum and sum [rows][splits][2], and O [splits][rows][v_columns].
struct SplitMemory {
  long long words, parts, bytes;
};
constexpr SplitMemory split_memory(const ForwardMmaConfig& config, long long tiles) {
  SplitMemory memory{};
  memory.parts = (tiles * 8 + 255) / 256 * 256;
  const long long real = real_bytes(config.storage);
  memory.bytes = memory.parts + tiles * config.splits * config.rows() * (config.v_columns() + 2) * real;
  return memory;
}

/// CTAs of this memory that a multiprocessor holds at once, if one of them may have `most_bytes`. NVIDIA's have 1 KiB
/// more than that, and take 1 KiB beside each CTA's.
constexpr int resident_ctas(long long bytes, long long most_bytes) {
  return static_cast<int>((most_bytes + 1024) / (bytes + 1024));
}

}  // namespace heddle::shared
