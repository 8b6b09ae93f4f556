// forward_mma's configuration: what one kernel of the portable family computes, and how; behind it a CTA's shared
// memory, and what the CTAs that share a tile leave each other, from the configuration alone. Read by the planner, by
// the launchers, and by the kernel itself: no headers but these, plain integers only.
//
// A CTA (AMD: workgroup) computes one tile: `rows()` rows of scores against the key blocks of its runs. Its waves share
// the rows; where rows are few, they share the keys of each step instead, and merge what they found when the tile ends.
// How many rows, keys and columns a fragment has is each architecture's own (Fragments).
#pragma once

#include "backend/portable/shared/fragments.h"
#include "shared/mod_forms.h"
#include "shared/storage.h"
#include "shared/tile_shape.h"

namespace heddle::shared {

/// Storage of q, k and v, all alike. f32 and f64 are multiplied as they are.
enum class Storage : int { f16, bf16, f32, f64 };
inline constexpr const char* kStorages[] = {"f16", "bf16", "f32", "f64"};
constexpr const char* name(Storage storage) { return kStorages[static_cast<int>(storage)]; }
constexpr int bytes_of(Storage storage) { return storage == Storage::f64 ? 8 : storage == Storage::f32 ? 4 : 2; }
/// Bytes of scores, sums, lse and the reals of mods: f64 where q, k and v are, else f32.
constexpr int real_bytes(Storage storage) { return storage == Storage::f64 ? 8 : 4; }

/// Blocks of a step: keys and values; keys alone; or one block, which is multiplied as keys and then as values.
enum class StepBlocks : int { keys_and_values, keys, both_ways };
inline constexpr const char* kStepBlocks[] = {"keys_and_values", "keys", "both_ways"};
constexpr const char* name(StepBlocks blocks) { return kStepBlocks[static_cast<int>(blocks)]; }

/// decode_mma: tiles of keys that several sequences share. They stand on one line with the sequences' own tiles
/// (beside_own); or a kernel has them alone, and another kernel, which is launched behind it, the sequences' own tiles
/// (elsewhere).
enum class SharedTiles : int { beside_own, alone, elsewhere };
inline constexpr const char* kSharedTiles[] = {"beside_own", "alone", "elsewhere"};
constexpr const char* name(SharedTiles tiles) { return kSharedTiles[static_cast<int>(tiles)]; }

/// Keys of a unit of shared keys, where a kernel has them alone.
inline constexpr int kPrefixStep = 64;
/// And waves of such a kernel that ask for them. (A multiprocessor's four schedulers have three waves each then, as
/// they would beside one.)
inline constexpr int kBringingWaves = 4;

struct ForwardMmaConfig {
#define HEDDLE_FIELD(type, name, value) type name = value;
#include "backend/portable/shared/forward_mma_config.def"
#undef HEDDLE_FIELD

  constexpr Fragments shape() const { return fragments_of(fragments); }
  constexpr int element_bytes() const { return bytes_of(storage); }  // of what is multiplied
  /// Keys and values of 8 bits become f16.
  constexpr bool converts() const { return k_fp8 != Fp8::none; }
  constexpr int q_element_bytes() const { return q_fp8 != Fp8::none ? 1 : element_bytes(); }  // in memory
  constexpr int kv_element_bytes() const { return converts() ? 1 : element_bytes(); }
  constexpr int kv_shared_bytes() const { return shape().converts_first ? element_bytes() : kv_element_bytes(); }
  constexpr int q_first_bytes() const { return q_first * q_element_bytes(); }
  constexpr int k_first_bytes() const { return k_first * kv_element_bytes(); }
  constexpr int waves() const { return row_waves * key_waves; }
  constexpr int wave_keys() const { return takes_turns() ? kv_block : kv_block / key_waves; }
  /// The first one of a wave's keys of a step.
  constexpr int first_key_of(int key_wave) const { return takes_turns() ? 0 : key_wave * wave_keys(); }
  constexpr int wave_rows() const { return row_fragments * shape().rows; }
  constexpr int rows() const { return row_waves * wave_rows(); }  // of a tile
  /// A kernel that has shared keys alone has waves besides that bring them.
  constexpr int threads() const { return (waves() + (shares_alone() ? kBringingWaves : 0)) * shape().wave; }
  constexpr bool packs() const { return packed_heads > 1; }
  constexpr bool splits_keys() const { return splits > 1; }
  /// Blocks of keys and values come in a ring of `stages` buffers.
  constexpr bool rings() const { return blocks == StepBlocks::keys_and_values && stages > 1; }
  /// decode_mma: values are the first columns of the keys, and too many for one wave's sums. Each wave of keys has
  /// columns of o of its own, and all waves share a ring.
  constexpr bool wide() const { return own_blocks && blocks == StepBlocks::both_ways; }
  /// decode_mma: four waves of rows, 64 together, and two of keys multiply by wgmma. Keys, values and queries stand in
  /// panels of 64 columns: [panels][rows][128 bytes], swizzled.
  constexpr bool by_warpgroups() const { return fragments == FragmentKind::warpgroup; }
  /// decode_mma: the blocks of a ring that two warpgroups share are computed in turn: one has the scores of a block,
  /// the other those of the next. Each has columns of o of its own, of all blocks.
  constexpr bool takes_turns() const { return wide() && by_warpgroups(); }
  /// backward_mma: products over more columns than a thread's registers have sums for.
  constexpr bool deep() const { return blocks != StepBlocks::keys_and_values && !own_blocks && qk_dim > 256; }
  constexpr int wave_columns() const { return wide() ? v_columns() / key_waves : v_columns(); }  // of o
  constexpr int ring_waves() const { return wide() ? waves() : row_waves; }                      // that share a ring
  constexpr int rings_of_blocks() const { return own_blocks ? waves() / ring_waves() : 1; }
  /// Keys of a block: those that are copied together.
  constexpr int block_keys() const { return own_blocks && !wide() ? wave_keys() : kv_block; }
  /// Rows of a box by which TMA brings keys: those of a block; of shared keys those that lie in one page.
  constexpr int box_rows() const {
    if (!shares_alone() || page_rows == 0) return block_keys();
    const int in_page = page_rows & -page_rows;
    return in_page < block_keys() ? in_page : block_keys();
  }
  /// decode_mma: blocks of keys of 8 bits lie in two pages each.
  constexpr bool blocks_in_two_pages() const { return converts() && own_blocks && 2 * page_rows == block_keys(); }
  /// decode_mma: blocks of keys lie in one page each, or in two.
  constexpr bool blocks_in_pages() const {
    return page_rows > 0 && (page_rows % block_keys() == 0 || blocks_in_two_pages());
  }
  constexpr bool chunked() const { return chunks > 0; }
  /// decode_mma: units of a mask's run of keys begin at a multiple of so many keys: where a block of a page does, and
  /// with chunks there in all layouts, so that pages change no bit.
  constexpr int run_step() const { return blocks_in_pages() || chunked() ? block_keys() : 1; }
  /// decode_mma: several sequences may share their first keys.
  constexpr bool prefixed() const { return prefix_sequences > 0; }
  // Which tiles the kernel has then.
  constexpr bool shares_beside_own() const { return prefixed() && shared_tiles == SharedTiles::beside_own; }
  constexpr bool shares_alone() const { return prefixed() && shared_tiles == SharedTiles::alone; }
  constexpr bool shares_elsewhere() const { return prefixed() && shared_tiles == SharedTiles::elsewhere; }
  /// Rows of a sequence.
  constexpr int own_rows() const {
    return prefixed() && !shares_elsewhere() ? live_rows / prefix_sequences : live_rows;
  }
  /// Shared keys are so many, or a multiple.
  constexpr int prefix_step() const { return shares_beside_own() ? kv_block : kPrefixStep; }
  /// decode_mma: a sequence's units are those of runs of its keys.
  constexpr bool has_runs() const { return bounded || prefixed(); }
  /// decode_mma: only the device knows how many units there are.
  constexpr bool counts_units() const { return device_lengths || has_runs(); }
  /// Columns that are multiplied: what the tensors lack of them is zero.
  constexpr int qk_columns() const {
    // Keys that are values, too, are read as whole fragments of O.
    const bool as_values = blocks == StepBlocks::both_ways && !shape().transposed;
    if (as_values && value_slices > 1) return value_slices * v_columns();
    const int fragment = as_values ? shape().columns : 16;
    return (qk_dim + fragment - 1) / fragment * fragment;
  }
  constexpr int v_columns() const {
    const int fragment = shape().columns;
    return (v_dim + fragment - 1) / fragment * fragment;
  }
  /// The shape of a tile for the list of tiles. Tiles of fewer than 64 rows are those of few queries, or of a mask's
  /// blocks of as few rows. Packed ones count as 64 rows: no sequence has more queries than the tile's own, so the
  /// others hold none.
  constexpr TileShape tile() const {
    const int warpgroups = rows() < kWarpgroupRows ? 1 : rows() / kWarpgroupRows;
    TileShape shape = {warpgroups, kv_block, packs() ? kWarpgroupRows * warpgroups / packed_heads : 0};
    if (rows() < kWarpgroupRows && !packs()) shape.unit_rows = rows();
    return shape;
  }
  constexpr bool operator==(const ForwardMmaConfig&) const = default;
};

/// Rows in shared memory are an odd number of 16 bytes apart, so that the same 16 bytes of eight rows stand in all
/// banks.
constexpr int row_pitch(int columns, int element_bytes) { return ((columns * element_bytes + 15) / 16 | 1) * 16; }

/// Or they are a multiple of 128 bytes apart, and swizzled: what belongs to byte b of a row stands at b ^ turn_of(row).
/// Copies of 16 bytes a thread then fill whole lines: rows that straddle lines cost 3 % of decode_mma's rate of
/// reading.
constexpr bool is_swizzled(int pitch) { return pitch % 128 == 0; }
constexpr int turn_of(int row) { return row % 8 * 16; }

/// backward_mma, tf32: the bytes from one key of a wave to the next, each with dS of 16 queries. At this pitch mma's
/// first operand is read without bank conflicts.
inline constexpr int kTurnedPitch = (16 + 4) * 4;

/// Offsets in bytes. When a tile ends its waves' rows stand where keys and values were.
struct ForwardMmaMemory {
  int k_pitch, v_pitch;  // from one row to the next; transposed: of v, whose rows are its columns
  int q_pitch;
  int k, v, q;   // q: [tile rows], shared_queries
  int weights;   // of waves whose threads pass weights to each other: weight_bytes() each
  int arrivals;  // by_warpgroups(): a barrier of 8 bytes for each buffer of each ring, and for the queries;
                 // shares_alone(): then one for each buffer that has been read
  int stage;     // from a buffer to the next; 0: there is one
  int wave;      // own_blocks: from a ring to the next one; waves that share keys share a ring
  int bytes;
};

/// Weights of a wave that are on their way to other threads. takes_turns(): a panel of 64 rows of all waves together.
constexpr int weight_bytes(const ForwardMmaConfig& config) {
  if (config.blocks == StepBlocks::keys) return 0;
  if (config.takes_turns()) return config.kv_block * config.element_bytes() * config.rows() / config.waves();
  return config.shape().weight_keys * config.wave_rows() * real_bytes(config.storage);
}

constexpr ForwardMmaMemory forward_mma_memory(const ForwardMmaConfig& config) {
  ForwardMmaMemory memory{};
  const int bytes = config.kv_shared_bytes();
  const bool transposed = config.shape().transposed;
  memory.k_pitch = row_pitch(config.qk_columns(), bytes);
  memory.v_pitch = transposed ? row_pitch(config.kv_block, bytes) : row_pitch(config.v_columns(), bytes);
  memory.q_pitch = row_pitch(config.qk_columns(), config.element_bytes());
  if (config.own_blocks) {
    if (is_swizzled(config.qk_columns() * bytes)) memory.k_pitch = config.qk_columns() * bytes;
    if (is_swizzled(config.v_columns() * bytes)) memory.v_pitch = config.v_columns() * bytes;
    if (config.wide()) memory.v_pitch = memory.k_pitch;
    if (config.by_warpgroups()) memory.q_pitch = memory.k_pitch;
  }
  if (config.blocks == StepBlocks::both_ways && config.value_slices > 1) memory.v_pitch = memory.k_pitch;
  const int keys = config.block_keys() * memory.k_pitch;
  const int values = (transposed ? config.v_columns() : config.block_keys()) * memory.v_pitch;
  // Values that are the keys stand apart only where they are transposed.
  const bool apart =
      config.blocks == StepBlocks::keys_and_values || (config.blocks == StepBlocks::both_ways && transposed);
  memory.v = apart ? keys : 0;
  const int block = keys + (apart ? values : 0);
  memory.stage = config.stages > 1 ? block : 0;
  memory.wave = config.own_blocks ? config.stages * block : 0;
  memory.weights = config.rings_of_blocks() * config.stages * block;
  memory.q = memory.weights + config.waves() * weight_bytes(config);
  memory.bytes = memory.q + (config.shared_queries ? config.rows() * memory.q_pitch : 0);
  memory.arrivals = memory.bytes;
  if (config.by_warpgroups()) {
    const int barriers = (config.shares_alone() ? 2 : 1) * config.rings_of_blocks() * config.stages + 1;
    memory.bytes += (barriers * 8 + 15) / 16 * 16;
  }
  if (config.key_waves > 1 && !config.own_blocks && config.blocks == StepBlocks::keys_and_values) {
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
