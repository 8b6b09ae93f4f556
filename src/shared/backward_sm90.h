// backward_sm90's tiles and parameters: what each run passes to its kernels beside the tensor maps. Read by the
// planner, by the launcher, and by the kernels when NVRTC compiles them: no headers but these, plain integers only.
#pragma once

#include "shared/backward_rows.h"
#include "shared/mod_values.h"
#include "shared/storage.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

/// Query blocks [begin, end) of one query head, each of which at least one warpgroup's keys attend.
struct QueryRun {
  int begin, end;
  int flags;  // of its steps: kStepAttends, kStepPartial
  int head;   // query head
};
static_assert(sizeof(QueryRun) == 16);

/// One tile.
struct BackwardItem {
  int kv_tile;  // keys from kv_tile * keys() on
  int kv_head, batch;
  int first_run, runs;  // QueryRun[first_run, first_run + runs)
  int steps;            // query blocks in all of them; 0: dk and dv are zeros; below 0, in shared memory: no tile
  int first_block;      // number of the sequence's first RowBlock
  int unused;
};
static_assert(sizeof(BackwardItem) == 32);

/// What the producer leaves with a step's queries.
struct BackwardStep {
  int q_first;  // of the sequence's queries
  int head;     // query head
  int flags;    // kStepAttends, kStepPartial, kStepRagged, kStepLast
  int block;    // number of block and head: RowBlock * q_heads + head
};
static_assert(sizeof(BackwardStep) == 16);

/// What a CTA keeps of its tile in shared memory: the item, and where its sequence stands.
struct BackwardTile {
  BackwardItem item;
  int q_len, kv_len, q_start;
  int kv_begin;                  // its rows of k and v
  int q_end, kv_end, kv_before;  // as SequenceSpan's; only where sequences differ
  int unused;
};
static_assert(sizeof(BackwardTile) == 64);
/// Offsets in it and in BackwardStep, in bytes, for who reads a word at a time (NVRTC has no offsetof).
inline constexpr unsigned kTileKvTile = 0, kTileKvHead = 4, kTileBatch = 8, kTileFirstRun = 12, kTileRuns = 16,
                          kTileSteps = 20, kTileFirstBlock = 24, kTileQLen = 32, kTileKvLen = 36, kTileQStart = 40,
                          kTileKvBegin = 44, kTileQEnd = 48, kTileKvEnd = 52, kTileKvBefore = 56;
inline constexpr unsigned kStepQFirst = 0, kStepHead = 4, kStepFlags = 8, kStepBlock = 12;

/// A gradient of rows: element strides of batch, head and row. Null: not asked for.
struct RowGradient {
  void* data;
  long long stride[3];
};
/// The same, read.
struct RowInput {
  const void* data;
  long long stride[3];
};

/// The main kernel's parameters beside the maps of q, k, v and dO.
struct BackwardSm90Params {
  const BackwardItem* items;
  const QueryRun* runs;
  int tiles, ctas;    // a CTA begins with the tile of its number, and draws others
  unsigned* drawn;    // how many were; 0 when the kernel begins
  Operands operands;  // last_block: not read
  int d_o_batched;
  int q_heads;
  int padded_keys;    // rows of dk and dv that are written of a sequence: with padding all; 0: those of the sequence
  float scale;        // what a product q.k is multiplied by: scale, times the factor of the score_mod
  float scale_log2;   // scale * log2(e); normalizer none: scale
  const float* rows;  // block_numbers() of each block and head
  float* d_q;         // parts: [block and head][panels]
  RowGradient d_k, d_v;
  ModValues mod;
  const int* listed;  // device_lengths: how many tiles there are, instead of `tiles`
  // ordered: of each run, how many tiles add to its blocks before; and of each part of dQ's sums, how many have.
  const int* ranks;
  unsigned* turns;
};

/// The parameters of the kernels before and behind it, which go over blocks of rows.
struct BackwardRowsParams {
  const RowBlock* blocks;
  int q_heads, block_count;
  RowInput o, d_o;  // d_o as the caller stored it
  RowInput lse, d_lse;
  Sinks sinks;
  float* rows;
  float* d_q;
  unsigned* drawn;    // becomes 0
  unsigned* turns;    // ordered: those of a block become 0
  float* sink_parts;  // [block][head]
  RowGradient d_q_out;
  RowGradient d_sinks;  // stride[0]: of heads
  float d_q_scale;
  RowInput lse_rest;  // lse in two words: the second one
  float unit;         // likewise: what steps compare with a row's first number, times it, is t
};
inline constexpr int kRowThreads = 256;

}  // namespace heddle::shared
