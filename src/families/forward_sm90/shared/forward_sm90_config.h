// forward_sm90's configuration: the work of one of its kernels, and how it is done; behind it the shared memory, which
// follows from the configuration alone. Read by the planner, by the launcher, and by the kernel itself when NVRTC
// compiles it: no headers but these, plain integers only.
//
// A CTA has one producer warpgroup and `warpgroups` consumers of 64 query rows each. One of the producer's threads
// issues TMA and one draws tiles. If needed, a thread of the third warp streams a capture; other warps transpose values
// of 8 bits, gather pages or compute numbers of keys: two warps for one task, or one each for two. The host lists the
// tiles; each CTA begins with its own and then draws one after the other, so that a CTA that is held up takes fewer.
// The producer alone walks a tile's runs of key blocks and leaves one Step beside each key block it loads, so a
// consumer knows of masks, schedules and sequences only the Step and the tile's origin. A warpgroup passes over
// the blocks that none of its own rows attends.
#pragma once

#include "shared/mod_forms.h"
#include "shared/paging.h"
#include "shared/panels.h"
#include "shared/sequence_span.h"
#include "shared/storage.h"
#include "shared/tile_shape.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

struct ForwardSm90Config {
#define HEDDLE_FIELD(type, name, value) type name = value;
#include "families/forward_sm90/shared/forward_sm90_config.def"
#undef HEDDLE_FIELD

  constexpr bool masks_by_distance() const { return mask == MaskForm::distance || mask == MaskForm::both; }
  constexpr bool masks_by_values() const { return mask == MaskForm::values || mask == MaskForm::both; }
  constexpr bool stores_mask() const { return mask == MaskForm::stored; }
  constexpr TileShape tile() const { return {warpgroups, kv_block, packed_queries, descending, stores_mask()}; }
  constexpr int rows() const { return tile().rows(); }
  constexpr bool packs() const { return tile().packs(); }
  constexpr int queries() const { return tile().queries(); }
  constexpr int warpgroup_heads() const { return tile().warpgroup_heads(); }
  constexpr int heads() const { return tile().heads(); }
  constexpr int threads() const { return 128 * (warpgroups + 1); }
  constexpr bool fp8() const { return q_fp8 != Fp8::none; }
  constexpr int element_bytes() const { return fp8() ? 1 : 2; }  // of q, k and v
  // Extents of the products: they go in steps of 32 bytes of columns (Q K^T) and of keys (P V), and P V gives multiples
  // of 8 columns. TMA fills the columns that the tensors lack with zeros, as it does those up to the end of the last
  // panel.
  constexpr int product_step() const { return 32 / element_bytes(); }
  constexpr int panel_columns() const { return 2 * kPanelColumns / element_bytes(); }  // of q, k and v
  constexpr int qk_columns() const { return (qk_dim + product_step() - 1) / product_step() * product_step(); }
  constexpr int v_columns() const { return (v_dim + 7) / 8 * 8; }
  constexpr int qk_panels() const { return (qk_dim + panel_columns() - 1) / panel_columns(); }
  constexpr int v_panels() const { return (v_dim + panel_columns() - 1) / panel_columns(); }
  constexpr int output_panels() const { return (v_dim + kPanelColumns - 1) / kPanelColumns; }
  constexpr int transposed_rows() const { return (v_dim + 31) / 32 * 32; }  // of values of 8 bits
  // A streamed tile stands in panels of 128 bytes a row, and what is left of its keys in panels of 16 columns.
  constexpr int streamed_panel_columns() const { return 128 / streamed_bytes; }
  constexpr int streamed_columns() const { return kv_block / streamed_parts; }  // of a part
  constexpr int streamed_panels() const { return streamed_columns() / streamed_panel_columns(); }
  constexpr int streamed_rest_panels() const {
    return streamed_columns() % streamed_panel_columns() / kStreamedRestColumns;
  }
  /// Rows of it that are one head's: a box of TMA's.
  constexpr int streamed_box() const { return tile().warpgroup_queries(); }
  constexpr int streamed_part_bytes() const { return kWarpgroupRows * streamed_columns() * streamed_bytes; }
  // Registers a thread after the warpgroups have traded theirs. Their sum may not exceed what the launch gave: the most
  // of 8, times the warpgroups, that 512 has room for: 4 * 128 with three consumers, 3 * 168 with two. More waits
  // forever.
  constexpr int consumer_registers() const { return warpgroups == 3 ? 160 : 232; }
  constexpr int producer_registers() const { return warpgroups == 3 ? 32 : 40; }
  /// The producer does not load keys and values itself but orders them from the gathering warps, which ask TMA for
  /// boxes of pages, or copy rows themselves.
  constexpr bool orders() const { return page_rows > 0; }
  constexpr bool gathers() const { return page_rows % kBoxRows != 0; }
  /// The last ones of the producer's warpgroup; a streamer or a transposer has one of the two that are left.
  constexpr int gather_warps() const { return streamed_bytes > 0 || fp8() || computes_keys() ? 1 : 2; }
  /// Warps that transpose values of 8 bits.
  constexpr int transposers() const { return orders() || computes_keys() ? 1 : 2; }
  /// Warps compute numbers of keys: the third of the producer's warpgroup, or, where that transposes, the fourth; or
  /// both.
  constexpr bool computes_keys() const { return key_numbers() > 0; }
  constexpr int key_warps() const { return !computes_keys() ? 0 : orders() || fp8() ? 1 : 2; }
  constexpr int first_key_warp() const { return fp8() ? 3 : 2; }
  /// Numbers of each key that consumers read: a factor, a term, a place in the table. Two at most.
  constexpr int key_numbers() const { return (key_factor ? 1 : 0) + (key_term ? 1 : 0) + (table_entries > 0 ? 1 : 0); }
  /// Rows of k and v that are in one page, wherever they are in their block: a box of TMA's.
  constexpr int page_box() const {
    int box = kv_block, rest = page_rows;
    while (rest > 0) {
      const int next = box % rest;
      box = rest;
      rest = next;
    }
    return box;
  }
  constexpr bool stores_o_by_threads() const { return o_type != StorageType::same; }
  constexpr bool operator==(const ForwardSm90Config&) const = default;
};

/// The producer is never more than stages + 1 tiles ahead of one that is being finished, or whose tiles of a capture
/// are being asked for.
inline constexpr int kTileSlots = 8;
inline constexpr int kItemSlots = 4;  // the tile, the next, the one before; rounded up for a cheap modulo

// Two records describe a tile, each followed by what its kernel needs, in this order. Every part is a multiple of 16
// bytes.
//   The item, from the list, for the producer: WorkItem; SequenceSpan if sequences differ; words_at with a stored mask;
//   HeadFactors of each head in 8 bits; the sink of each head.
//   The tile, for consumers: TileOrigin; the fields of SequenceSpan before kv_begin if sequences differ; words_at;
//   HeadFactors; heads_end, if heads are packed: the query head after the tile's last one, an int; sinks.

/// words_at: where the mask words of the tile's key block 0 would stand, an int.
constexpr int words_at_bytes(const ForwardSm90Config& config) { return config.stores_mask() ? 16 : 0; }
constexpr int factor_bytes(const ForwardSm90Config& config) {
  const int factors = static_cast<int>(sizeof(HeadFactors)) * config.heads();
  return config.fp8() ? (factors + 15) / 16 * 16 : 0;
}
constexpr int heads_end_bytes(const ForwardSm90Config& config) { return config.packs() ? 16 : 0; }
constexpr int sink_bytes(const ForwardSm90Config& config) {
  return config.sinks ? (4 * config.heads() + 15) / 16 * 16 : 0;
}

constexpr int item_words_at(const ForwardSm90Config& config) {
  return static_cast<int>(sizeof(WorkItem)) + (config.by_sequence ? static_cast<int>(sizeof(SequenceSpan)) : 0);
}
constexpr int item_factors(const ForwardSm90Config& config) { return item_words_at(config) + words_at_bytes(config); }
constexpr int item_bytes(const ForwardSm90Config& config) {
  return item_factors(config) + factor_bytes(config) + sink_bytes(config);
}
constexpr int tile_words_at(const ForwardSm90Config& config) {
  return static_cast<int>(sizeof(TileOrigin)) + (config.by_sequence ? static_cast<int>(kSequenceKvBegin) : 0);
}
constexpr int tile_factors(const ForwardSm90Config& config) { return tile_words_at(config) + words_at_bytes(config); }
constexpr int tile_bytes(const ForwardSm90Config& config) {
  return tile_factors(config) + factor_bytes(config) + heads_end_bytes(config) + sink_bytes(config);
}

/// Offsets in bytes in dynamic shared memory, which begins at a multiple of 1024, where the swizzle repeats.
struct ForwardSm90Memory {
  int q;          // [q_buffers][warpgroups][qk_panels][64][panel_columns], 128-byte swizzle
  int k;          // [stages][qk_panels][kv_block][panel_columns]
  int v;          // [stages][v_panels][kv_block][panel_columns]
  int values;     // where P V reads them: v; in 8 bits [stages], as transposed_values.h says
  int o;          // [warpgroups][o_panels][64][64]
  int streamed;   // [streamed_stages][warpgroups] parts: [streamed_panels][64 rows][128 bytes], 128-byte swizzle, and
                  // [streamed_rest_panels][64 rows][16 columns], swizzled over these
  int tiles;      // tile records [kTileSlots], by the tile's number modulo their count
  int barriers;   // 8 bytes each: q full, q empty [q_buffers][warpgroups]; k full, k empty, v full, v empty [stages];
                  // list done; wished, answered; in 8 bits: values loaded, values transposed [stages]; tiles of a
                  // capture full, empty [streamed_stages][warpgroups]; ordered, taken [kGatherOrders], where there are
                  // orders; numbers of keys: asked for [stages], table empty [kTables]
  int steps;      // Step [stages]
  int redo;       // int [kTileSlots]: not 0 where some of that tile's row sums left the safe range
  int items;      // item records [kItemSlots]: of the tile that is loaded, of the next, and of the
                  // one before, whose last values may be yet to come; by the tile's number
  int orders;     // GatherOrder [kGatherOrders], where there are any
  int distances;  // float [warpgroups][distance_words]: the term of each distance; distant scores only
  int key_numbers;  // float [key_slots()][kv_block][key_numbers()]
  int key_flags;    // int [key_slots()][2]: kKeyTerms... of each warp's keys
  int key_blocks;   // int [stages]: what the producer asks for
  int tables;       // of two tiles: int [rows()], where the entries of the rows' queries begin, then the entries
  int wish;         // int: the item that the producer wishes to load next, and the answer
  int ends;         // int [stages]: not 0 where what has been loaded are no values, but the end; 8 bits only
  int bytes;        // to ask for
};

/// Distances between 64 queries and a block of keys; and the two ends where the term stays the same.
constexpr int distance_words(const ForwardSm90Config& config) { return kWarpgroupRows + config.kv_block + 1; }

/// Blocks of numbers of keys: one more than there are blocks of keys, since a block of keys is given back before its
/// scores are changed.
constexpr int key_slots(const ForwardSm90Config& config) { return config.stages + 1; }
constexpr int key_slot_bytes(const ForwardSm90Config& config) { return config.kv_block * config.key_numbers() * 4; }
/// Bytes of a tile's table: its rows and entries.
constexpr int table_bytes(const ForwardSm90Config& config) {
  return config.table_entries > 0 ? (config.rows() + config.table_entries + 3) / 4 * 16 : 0;
}
inline constexpr int kTables = 2;
/// Flags of a block's terms: some are not 0; the largest is far above that of the tile's blocks before.
inline constexpr int kKeyTermsAdd = 1, kKeyTermsRise = 2;

/// The producer's wish to the warps that compute numbers of keys: the number of a block of keys, times 2, and 1 for the
/// first of a tile; or that they end.
inline constexpr int kNoKeyBlock = -1;

constexpr ForwardSm90Memory forward_sm90_memory(const ForwardSm90Config& config) {
  constexpr int kPanelRow = 128;  // bytes
  ForwardSm90Memory memory{};
  int at = 0;
  memory.q = at;
  at += config.q_buffers * config.rows() * config.qk_panels() * kPanelRow;
  memory.k = at;
  at += config.stages * config.kv_block * config.qk_panels() * kPanelRow;
  memory.v = at;
  at += config.stages * config.kv_block * config.v_panels() * kPanelRow;
  memory.values = config.fp8() ? at : memory.v;
  if (config.fp8()) at += config.stages * config.kv_block * config.transposed_rows();
  memory.o = at;
  at += config.rows() * config.o_panels * kPanelRow;
  memory.streamed = at;
  at += config.streamed_stages * config.warpgroups * config.streamed_part_bytes();
  memory.tiles = at;
  at += kTileSlots * tile_bytes(config);
  memory.items = at;
  at += kItemSlots * item_bytes(config);
  memory.orders = at;
  if (config.orders()) at += kGatherOrders * static_cast<int>(sizeof(GatherOrder));
  memory.key_numbers = at;
  at += key_slots(config) * key_slot_bytes(config);
  memory.tables = at;
  at += kTables * table_bytes(config);
  memory.barriers = at;
  at += 8 * (2 * config.q_buffers * config.warpgroups + (config.fp8() ? 6 : 4) * config.stages + 3);
  at += 8 * 2 * config.streamed_stages * config.warpgroups;
  if (config.orders()) at += 8 * 2 * kGatherOrders;
  if (config.computes_keys()) at += 8 * (config.stages + kTables);
  memory.key_flags = at;
  if (config.computes_keys()) at += key_slots(config) * 8;
  memory.key_blocks = at;
  if (config.computes_keys()) at += config.stages * 4;
  memory.steps = at;
  at += config.stages * static_cast<int>(sizeof(Step));
  memory.wish = at;
  at += 4;
  memory.redo = at;
  at += kTileSlots * 4;
  memory.distances = at;
  if (config.scores == ScoreForm::distant) at += config.warpgroups * distance_words(config) * 4;
  memory.ends = at;
  if (config.fp8()) at += config.stages * 4;
  memory.bytes = at;
  return memory;
}

}  // namespace heddle::shared
