// forward_sm90: the configuration of one kernel, its shared memory, and what host and device pass each other. Read by
// the planner, by the launcher, and by the kernel itself when NVRTC compiles it: no headers, plain integers only.
//
// A CTA has one producer warpgroup (one thread of it issues TMA, another draws tiles; where there is such, a third
// streams a capture, and warps transpose values of 8 bits and gather what TMA does not bring: two of either kind, or
// one beside another's) and `warpgroups` consumers of 64 query rows each. The host lists the tiles; each CTA begins
// with its own and then draws one after the other, so that a CTA that is held up takes fewer. The producer alone walks
// a tile's runs of key blocks and leaves one Step beside each key block it loads, so consumers know nothing of masks,
// schedules or sequences but what the Step says, and the place of its tile. A warpgroup passes over the blocks that
// none of its own rows attends.
#pragma once

#include "shared/tile_shape.h"

namespace heddle::shared {

inline constexpr int kKeysOfDraw = 64;    // of which a thread's sixteen share one call (philox.h)
inline constexpr int kPanelColumns = 64;  // columns of o, and of q, k, v of 16 bits, in a panel: 128 bytes, swizzled
inline constexpr int kStreamedRestColumns = 16;
inline constexpr int kBoxRows = 8;  // of a panel, after which the swizzle repeats

/// What the scores become before their exponentials are taken: t, or t in powers of two.
enum class ScoreForm : int {
  plain,    // factor * score
  shifted,  // and a term of the query and the head alone, computed once a block
  tilted,   // and one that is linear in the key's index: computed for a block's first key, and its slope
  distant,  // and one that depends on kv_idx - q_idx alone: computed once for each distance in a block
  added,    // and a term of each element
  mapped,   // the score_mod of each element, as it is written
};

/// Storage of 8 bits.
enum class Fp8 : int { none, e4m3, e5m2 };

/// What t becomes: the weight of its value, before the weight_mod.
enum class Normalizer : int {
  softmax,  // e^t over the row's sum of them
  none,     // t
  sigmoid,  // 1 / (1 + e^-t)
};

/// What o is stored as: `same`, what q, k and v are (of 8 bits: bf16), by TMA; else by threads, two neighbours at a
/// time.
enum class OutputType : int { same, f64, f32, f16, bf16, e4m3, e5m2 };

/// How a partial step finds what its mask_mod excludes.
enum class MaskForm : int {
  direct,    // element by element, when the scores have come
  distance,  // all of it depends on kv_idx - q_idx alone: bits, found while the product runs
  values,    // what it reads or works out of the query and of the key: bits likewise
  both,      // a part that depends on the distance alone, and a part of values
  stored,    // all of it was found before any run: each thread loads its bits (stored_mask.h)
};

struct ForwardSm90Config {
  int qk_dim;      // head dim of queries and keys, 1 to 256
  int v_dim;       // of values and o, 1 to 256
  int warpgroups;  // 1 to 3 consumers
  int kv_block;    // keys of a step: a multiple of 16 (of 32 in 8 bits), at most 256
  int stages;      // key blocks, and value blocks, in flight
  int q_buffers;   // 1 or 2 tiles of queries
  int o_panels;    // panels of o that a warpgroup stages at a time, at most output_panels()
  bool f16;        // storage: f16, else bf16; of 8 bits: see q_fp8
  bool lse;        // writes lse
  bool masked;     // partial steps apply a mask_mod; else they only mind the end of the keys
  ScoreForm scores = ScoreForm::plain;
  bool descending = false;   // tiles walk their key blocks from the last to the first
  bool capped = false;       // plain, shifted: not a multiple of the score, but of the tanh of one
  bool weighted = false;     // a weight_mod multiplies what the values are multiplied by
  bool dropped = false;      // or keeps it or not, by a draw; kv_block is then a multiple of kKeysOfDraw
  int safe_headroom = 5;     // f16: powers of two from 1 to a row's largest weight where the running maximum is taken
  bool by_sequence = false;  // lengths, starts and places are each sequence's own: SequencePlace
  bool device_lengths = false;  // and so are the tiles that they leave: shared/sequences.h
  int streamed_bytes = 0;       // added, mapped: of an element of the capture that comes in tiles, 2 or 4; 0: none does
  int streamed_stages = 0;      // its tiles, or parts of them, in flight, of each warpgroup
  int streamed_parts = 1;       // 2: a tile comes in halves of its keys, which are asked for and read one by one
  bool sinks = false;           // softmax: each row's sum has e^sink of its head besides
  Normalizer normalizer = Normalizer::softmax;
  OutputType o_type = OutputType::same;
  MaskForm mask = MaskForm::direct;
  bool mask_range = false;  // distance, both: what depends on the distance says that it is in a range
  int page_rows = 0;   // k and v are pages of so many rows, which a table lists for each sequence; 0: they are not.
                       // Then sequences count as different
  bool odd_o = false;  // not `same`: o's strides or its address are no pair's
  // q, k and v are stored in 8 bits, all or none; P takes q's type. Descale factors are read at run time.
  Fp8 q_fp8 = Fp8::none, k_fp8 = Fp8::none, v_fp8 = Fp8::none;
  int weight_exponent = 0;  // 8 bits: no weight of the weight_mod exceeds 2^weight_exponent
  int packed_queries = 0;   // TileShape::packed_queries
  // Scores are first multiplied by a number of the key, and one of the key is added. So is one of a table, which stands
  // where a number of the query and one of the key sum to; so many entries, 0: there is none.
  bool key_factor = false, key_term = false;
  int table_entries = 0;

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
  // What is multiplied: products go in steps of 32 bytes of columns (Q K^T) and of keys (P V), and P V gives multiples
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
  /// What consumers read of each key: a factor, a term, a place in the table. Two at most.
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
  constexpr bool stores_o_by_threads() const { return o_type != OutputType::same; }
  constexpr bool operator==(const ForwardSm90Config&) const = default;
};

/// Key blocks [begin, end), in blocks of kv_block keys, each of which at least one warpgroup attends. Where tiles
/// descend block n is the n-th from the last one.
struct KvRun {
  int begin, end;
  int flags;       // of the steps before the last: kStepAttends, kStepPartial, kStepNextUneven
  int last_flags;  // of the last one
};

/// One tile: queries() queries of one head, or of as many of heads() as its keys have left, against `steps` blocks of
/// keys. Copied 16 bytes at a time.
struct WorkItem {
  int q_tile;       // queries from q_tile * queries() on
  int head, batch;  // query head, the first one
  int kv_head;
  int steps;            // key blocks in all its runs; at least 1, but for the host's list with lengths on the device
  int first_run, runs;  // its rows of key blocks: KvRun[first_run, first_run + runs)
  int before;           // flag of the step before its first one: kStepNextUneven, or 0. In shared memory, once the tile
                        // is being loaded: of all its steps, kStepSafe or 0
  KvRun run;            // the first of its runs
};
static_assert(sizeof(WorkItem) % 16 == 0);
/// Offsets in it, in bytes, for who reads a word at a time (NVRTC has no offsetof).
inline constexpr unsigned kItemQTile = 0, kItemHead = 4, kItemBatch = 8, kItemKvHead = 12, kItemSteps = 16,
                          kItemFirstRun = 20, kItemBefore = 28, kItemRunBegin = 32, kItemRunEnd = 36,
                          kItemRunFlags = 40, kItemRunLastFlags = 44;

/// One sequence of a batch in which they differ: a list by their numbers. Copied 16 bytes at a time.
struct SequencePlace {
  int q_begin, q_len;  // its rows of q, o and lse
  int kv_len;
  int q_start;   // q_idx of its first query
  int kv_begin;  // its rows of k and v: kv_len from here on
  // As TMA takes rows: where those of k and v end, and how many more the longest sequence has; where those of q end.
  int kv_end, kv_before, q_end;
};
static_assert(sizeof(SequencePlace) % 16 == 0);
inline constexpr unsigned kSequenceQBegin = 0, kSequenceQLen = 4, kSequenceKvLen = 8, kSequenceQStart = 12,
                          kSequenceKvBegin = 16, kSequenceKvEnd = 20, kSequenceKvBefore = 24,
                          kSequenceQEnd = 28;  // offsets in bytes

/// What the producer leaves with a key block: its number << kStepFlagBits | kStep... flags.
using Step = int;
inline constexpr int kStepFlagBits = 12;
inline constexpr int kStepAttends = 1;        // << warpgroup: some of its rows attend, or may
inline constexpr int kStepPartial = 8;        // << warpgroup: of these rows the mask decides
inline constexpr int kStepRagged = 64;        // the keys end inside
inline constexpr int kStepSafe = 128;         // its tile is computed with the running maximum
inline constexpr int kStepLast = 256;         // the last of its tile
inline constexpr int kStepListEnd = 512;      // and the CTA's last: finish the tile and report
inline constexpr int kStepNextUneven = 1024;  // the next step is not attended by all warpgroups
inline constexpr int kStepStop = 2048;        // no key block: the end
inline constexpr int kMaxKvBlocks = 1 << (31 - kStepFlagBits);

/// And with the first of a tile. The producer is never more than stages + 1 tiles ahead of one that is being finished,
/// or whose tiles of a capture are being asked for.
struct TilePlace {
  int q_first, head, batch;  // first query; query head, the first one; sequence
  int item;                  // its number
};
inline constexpr unsigned kPlaceHead = 4, kPlaceBatch = 8, kPlaceItem = 12;  // offsets in bytes
inline constexpr int kTilePlaces = 8;
inline constexpr int kItemPlaces = 4;  // the tile, the next, the one before; rounded up for a cheap modulo

/// What a head's products are multiplied by, where storage has 8 bits: scores by q's and k's factor, o by v's.
struct HeadFactors {
  float scores, values;
};
inline constexpr unsigned kFactorOfScores = 0, kFactorOfValues = 4;  // offsets in bytes
/// Of each of the tile's heads, and room that keeps the next ones aligned.
constexpr int factor_bytes(const ForwardSm90Config& config) {
  const int factors = static_cast<int>(sizeof(HeadFactors)) * config.heads();
  return config.fp8() ? (factors + 15) / 16 * 16 : 0;
}

/// With a stored mask both have the number of the tile's words before these, and room that keeps the next ones aligned.
constexpr int stored_mask_bytes(const ForwardSm90Config& config) { return config.stores_mask() ? 16 : 0; }
/// Behind both, where there are sinks: that of each of the tile's heads, a float, and room that keeps the next ones
/// aligned.
constexpr int sink_bytes(const ForwardSm90Config& config) {
  return config.sinks ? (4 * config.heads() + 15) / 16 * 16 : 0;
}
/// And behind the place, before these, where heads are packed: the query head after the tile's last one, an int.
constexpr int heads_end_bytes(const ForwardSm90Config& config) { return config.packs() ? 16 : 0; }

/// In shared memory an item has its sequence behind it, where sequences differ, and a tile's place has what consumers
/// need of it: what stands before kv_begin. Behind these, where storage has 8 bits, both have the factors.
constexpr int item_stored_mask(const ForwardSm90Config& config) {
  return static_cast<int>(sizeof(WorkItem)) + (config.by_sequence ? static_cast<int>(sizeof(SequencePlace)) : 0);
}
constexpr int item_factors(const ForwardSm90Config& config) {
  return item_stored_mask(config) + stored_mask_bytes(config);
}
constexpr int item_bytes(const ForwardSm90Config& config) {
  return item_factors(config) + factor_bytes(config) + sink_bytes(config);
}
constexpr int place_stored_mask(const ForwardSm90Config& config) {
  return static_cast<int>(sizeof(TilePlace)) + (config.by_sequence ? static_cast<int>(kSequenceKvBegin) : 0);
}
constexpr int place_factors(const ForwardSm90Config& config) {
  return place_stored_mask(config) + stored_mask_bytes(config);
}
constexpr int place_bytes(const ForwardSm90Config& config) {
  return place_factors(config) + factor_bytes(config) + heads_end_bytes(config) + sink_bytes(config);
}

/// What the producer asks of the gathering warps: rows of one tensor, for one buffer.
struct GatherOrder {
  int tensor;          // kGatherK, kGatherV; or kGatherNothing: the warps may end
  unsigned to, full;   // addresses of the buffer and of the barrier that says when it is filled
  int sequence, head;  // of that tensor
  int row, rows;       // the first one, of the sequence; and how many there are from it on: the others are zeros. At
                       // most 0: all are
  int count;           // in the first place: of all orders so far
};
static_assert(sizeof(GatherOrder) == 32);  // written 16 bytes at a time
inline constexpr unsigned kOrderTensor = 0, kOrderTo = 4, kOrderFull = 8, kOrderSequence = 12, kOrderHead = 16,
                          kOrderRow = 20, kOrderRows = 24, kOrderCount = 28;  // offsets in bytes
inline constexpr int kGatherNothing = -1, kGatherK = 0, kGatherV = 1;
inline constexpr int kGatherOrders = 4;  // so many may wait
inline constexpr int kGatherRows = 16;   // a warp copies so many at once

/// Offsets in bytes in dynamic shared memory, which begins at a multiple of 1024, where the swizzle repeats.
struct ForwardSm90Memory {
  int q;          // [q_buffers][warpgroups][qk_panels][64][panel_columns], 128-byte swizzle
  int k;          // [stages][qk_panels][kv_block][panel_columns]
  int v;          // [stages][v_panels][kv_block][panel_columns]
  int values;     // where P V reads them: v; in 8 bits [stages], as transposed_values.h says
  int o;          // [warpgroups][o_panels][64][64]
  int streamed;   // [streamed_stages][warpgroups] parts: [streamed_panels][64 rows][128 bytes], 128-byte swizzle, and
                  // [streamed_rest_panels][64 rows][16 columns], swizzled over these
  int places;     // TilePlace, and what follows it, [kTilePlaces], by the tile's number modulo their count
  int barriers;   // 8 bytes each: q full, q empty [q_buffers][warpgroups]; k full, k empty, v full, v empty [stages];
                  // list done; wished, answered; in 8 bits: values loaded, values transposed [stages]; tiles of a
                  // capture full, empty [streamed_stages][warpgroups]; ordered, taken [kGatherOrders], where there are
                  // orders; numbers of keys: asked for [stages], table empty [kTables]
  int steps;      // Step [stages]
  int redo;       // int [kTilePlaces]: not 0 where some of that tile's row sums left the safe range
  int items;      // WorkItem, and what follows it, [kItemPlaces]: of the tile that is loaded, of the next, and of the
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
/// Of a tile: of its rows and entries.
constexpr int table_bytes(const ForwardSm90Config& config) {
  return config.table_entries > 0 ? (config.rows() + config.table_entries + 3) / 4 * 16 : 0;
}
inline constexpr int kTables = 2;
/// Of a block's terms: some are not 0; the largest is far above that of the tile's blocks before.
inline constexpr int kKeyTermsAdd = 1, kKeyTermsRise = 2;

/// What the producer asks of the warps that compute numbers of keys: the number of a block of keys, times 2, and 1 for
/// the first of a tile; or that they end.
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
  memory.places = at;
  at += kTilePlaces * place_bytes(config);
  memory.items = at;
  at += kItemPlaces * item_bytes(config);
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
  at += kTilePlaces * 4;
  memory.distances = at;
  if (config.scores == ScoreForm::distant) at += config.warpgroups * distance_words(config) * 4;
  memory.ends = at;
  if (config.fp8()) at += config.stages * 4;
  memory.bytes = at;
  return memory;
}
/// What a CTA may ask for on sm_90.
inline constexpr int kSm90SharedMemory = 232448;

/// A tensor that a mod reads: element strides, i32 extents. Indices are clamped on the device.
struct ModCapture {
  const void* data;
  long long stride[4];
  int extent[4];
};
inline constexpr int kModParams = 16;   // 4-byte words: f32, i32, or boolean as 0 and 1
inline constexpr int kModCaptures = 8;  // of rank 4 at most

/// The values behind a mod's leaves, params and captures. In constant memory (a kernel parameter).
struct ModValues {
  int q_len, kv_len, q_start;  // of every sequence
  unsigned params[kModParams];
  ModCapture captures[kModCaptures];
  const SequencePlace* sequences;  // of each, where they differ
};

/// Where lengths are on the device: what the tiles left by them are, and which rows no sequence has.
struct ListedTiles {
  const int* item_count;  // instead of the host's, which is that for the longest sequences
  int sequence_count, q_heads;
  int q_rows;  // of the tensor
  int packed;  // rows of a sequence end where those of the next one begin; else with the tensor
};

/// Where the CTAs of a run draw their tiles: one word. During the run it holds the run's number, shifted by
/// kTicketBits, and below it how many tiles have been drawn; when all are drawn it is 0. Its content before does not
/// matter, but for this run's number: numbers are of one launch, and no finished run leaves its own.
using TicketWord = unsigned long long;
inline constexpr int kTicketBits = 24;
inline constexpr int kMaxTiles = 1 << kTicketBits;

/// A tensor of pages whose rows are gathered. Element strides of page, head and row: multiples of 16 bytes.
struct GatheredTensor {
  const void* data;
  long long stride[3];
};
/// Which page of k and v holds rows [n * page_rows, (n + 1) * page_rows) of a sequence. Entries past its end are not
/// read, but for the first of a sequence without keys; what is no page's number counts as the nearest that is.
struct PageTable {
  const int* data;
  long long stride[2];  // of sequence, and of n; elements
  int pages;            // that k and v have
};

/// Queries without a key, up to 64 of one head: o = 0; lse is that of no keys, -inf or the sink, or, past the end of
/// their sequence, -inf.
struct RowFill {
  int row, rows;    // of q, o and lse
  int head, batch;  // query head; sequence
};

/// A factor for each sequence and head; null: 1. A stride is 0 where all share one.
struct Descale {
  const float* factors;
  long long stride[2];  // batch, head
};

struct MaskWords;  // mask_bits.h

/// The kernel's parameters beside the four tensor maps (q, k, v, o).
struct ForwardSm90Params {
  const WorkItem* items;  // CTA c begins with item c; the ones from gridDim.x on are drawn, in their order
  int item_count;         // at most kMaxTiles
  TicketWord* tickets;    // not read where there are no more items than CTAs
  TicketWord run;         // number of this launch, not 0, below 2^(64 - kTicketBits)
  const KvRun* runs;
  const RowFill* fills;
  int fill_count;
  int q_len, kv_len;                    // queries and keys of every sequence; where they differ, of the longest
  int last_block;                       // key block of the last key; where sequences differ each has its own
  int q_batched, k_batched, v_batched;  // 0: the tensor's batch is 1 and serves every sequence
  int flat_from, flat_to;               // distant: the term is the same at all distances from flat_from on, and at all
                                        // up to flat_to
  float cap_inside, cap_outside;        // capped: t in powers of two is cap_outside * tanh(cap_inside * product),
  float cap_series[3];                  // or product * (c0 + c1 u + c2 u^2), u = product^2,
  float cap_limit;                      // while no |product| exceeds this
  float scale;                          // what a product q.k is multiplied by: scale, times the factor of the score_mod
  float scale_log2;                     // scale * log2(e); normalizer none: scale
  int group;                            // packed: query heads that read one head of keys
  void* o;                              // for fills; element strides of batch, head, row
  long long o_stride[3];
  float* lse;
  long long lse_stride[3];  // batch, head, row
  ModValues mod;
  const float* sinks;  // with sinks: of query head h at h * sink_stride
  long long sink_stride;
  int unattending_fills;  // and the first so many fills are queries of their sequence, the others lie past its end
  int mask_repeats_to;  // masks by distance: that part is the same in the next block of keys, up to this kv_idx - q_idx
  ListedTiles listed;   // device_lengths
  GatheredTensor gathered[2];               // by kGatherK, kGatherV
  PageTable page_table;                     // where k and v are pages
  Descale q_descale, k_descale, v_descale;  // 8 bits only
  // Stored masks: words of each thread, as stored_mask.h says, and of each item where its block 0 would have them.
  const MaskWords* mask_words;
  const int* mask_places;
};

}  // namespace heddle::shared
