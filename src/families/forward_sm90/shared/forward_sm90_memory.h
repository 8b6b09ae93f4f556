// forward_sm90's shared memory: where each buffer and barrier of a CTA is, from the configuration alone. Read by the
// planner, by the launcher, and by the kernel itself when NVRTC compiles it: no headers but these, plain integers only.
#pragma once

#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "shared/paging.h"
#include "shared/sequence_span.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

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
