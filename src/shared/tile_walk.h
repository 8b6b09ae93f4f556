// A launch's tiles and the walk over their key blocks: the host's lists, the tiles that CTAs draw, and a producer's
// message to consumers with each block. No kernel family is known here. Host and device code read this file: no
// headers, plain integers only.
#pragma once

namespace heddle::shared {

/// Key blocks [begin, end), in blocks of kv_block keys, each of which at least one warpgroup attends. If tiles descend,
/// block n is the n-th from the last one.
struct KvRun {
  int begin, end;
  int flags;       // of the steps before the last: kStepAttends, kStepPartial, kStepNextUneven
  int last_flags;  // of the last one
};

/// One tile: up to queries() queries of one head against `steps` blocks of keys. Packed: of up to heads() query heads
/// that read the same keys. Copied 16 bytes at a time.
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

/// The producer's word about a key block: its number << kStepFlagBits | kStep... flags.
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

/// The producer's record of a tile, left with its first step.
struct TileOrigin {
  int q_first, head, batch;  // first query; query head, the first one; sequence
  int item;                  // number of its WorkItem in the list
};
inline constexpr unsigned kOriginHead = 4, kOriginBatch = 8, kOriginItem = 12;  // offsets in bytes

/// Where the CTAs of a run draw their tiles: one word. During the run it holds the run's number, shifted by
/// kTicketBits, and below it how many tiles have been drawn; when all are drawn it is 0. Its content before does not
/// matter, but for this run's number: numbers are of one launch, and no finished run leaves its own.
using TicketWord = unsigned long long;
inline constexpr int kTicketBits = 24;
inline constexpr int kMaxTiles = 1 << kTicketBits;

/// The tiles of a launch.
struct TileList {
  const WorkItem* items;  // CTA c begins with item c; the ones from gridDim.x on are drawn, in their order
  int item_count;         // at most kMaxTiles
  TicketWord* tickets;    // not read where there are no more items than CTAs
  TicketWord launch;      // number of this launch, not 0, below 2^(64 - kTicketBits)
  const KvRun* runs;
};

/// The tensors of queries, keys and values, as the producer walks them.
struct WalkedTensors {
  int q_len, kv_len;                    // queries and keys of every sequence; where they differ, of the longest
  int last_block;                       // key block of the last key; where sequences differ each has its own
  int q_batched, k_batched, v_batched;  // 0: the tensor's batch is 1 and serves every sequence
};

/// With lengths on the device: the number of tiles that are left, and the rows that no sequence has.
struct ListedTiles {
  const int* item_count;  // instead of the host's, which is that for the longest sequences
  int sequence_count, q_heads;
  int q_rows;  // of the tensor
  int packed;  // rows of a sequence end where those of the next one begin; else with the tensor
};

/// Queries without a key, up to 64 of one head: o = 0; lse is that of no keys, -inf or the sink, or, past the end of
/// their sequence, -inf.
struct RowFill {
  int row, rows;    // of q, o and lse
  int head, batch;  // query head; sequence
};
struct RowFills {
  const RowFill* fills;
  int count;
  int unattending;  // this many steps come first whose rows lie in their sequence; the others lie past its end
};

}  // namespace heddle::shared
