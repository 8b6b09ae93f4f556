// backward_sm90's steps and parameters: what each run passes to its kernels beside the tensor maps. Read by the
// planner, by the launcher, and by the kernels when NVRTC compiles them: no headers but these, plain integers only.
#pragma once

#include "families/backward_sm90/shared/d_q_ring_params.h"
#include "shared/backward_tiles.h"
#include "shared/mod_values.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

/// The producer's record of a step's queries.
struct BackwardStep {
  int q_first;  // of the sequence's queries
  int head;     // query head
  int flags;    // kStepAttends, kStepPartial, kStepRagged, kStepLast
  int block;    // number of block and head: RowBlock * q_heads + head
};
static_assert(sizeof(BackwardStep) == 16);

/// A CTA's record of its tile in shared memory: the item, and where its sequence stands.
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
                          kTileSteps = 20, kTileFirstBlock = 24, kTileShare = 28, kTileQLen = 32, kTileKvLen = 36,
                          kTileQStart = 40, kTileKvBegin = 44, kTileQEnd = 48, kTileKvEnd = 52, kTileKvBefore = 56;
inline constexpr unsigned kStepQFirst = 0, kStepHead = 4, kStepFlags = 8, kStepBlock = 12;

/// Where CTAs that share a tile leave their sums, and count themselves.
struct SharedSums {
  float* sums;         // [place][warpgroup][dV, dK][gradient_columns / 8][128 threads][4]
  unsigned* counters;  // [place][warpgroup][dV, dK][warp]; 0 when the kernel begins
};

/// The main kernel's parameters beside the maps of q, k, v and dO.
struct BackwardSm90Params {
  const BackwardItem* items;
  const QueryRun* runs;
  int tiles, ctas;        // a CTA begins with the tile of its number, and draws others
  unsigned* drawn;        // how many were; 0 when the kernel begins
  WalkedTensors tensors;  // last_block: not read
  int d_o_batched;
  int q_heads;
  int padded_keys;    // rows of dk and dv that are written of a sequence: with padding all; 0: those of the sequence
  float scale;        // what a product q.k is multiplied by: scale, times the factor of the score_mod
  float scale_log2;   // scale * log2(e); normalizer none: scale
  const float* rows;  // block_numbers() of each block and head
  float* d_q;         // parts: [block and head][panels]; ring: [slot][unit][panels]
  RowOutput d_k, d_v;
  ModValues mod;
  const int* listed;  // device_lengths: how many tiles there are, instead of `tiles`
  // ordered: of each run, how many tiles add to its blocks before; and of each part of dQ's sums, how many have.
  const int* ranks;
  unsigned* turns;
  DqRing ring;
  SharedSums shares;
};

}  // namespace heddle::shared
