// The tiles of a backward, and what the kernels take that go over blocks of rows before and behind it. Read by the
// planner, by the launchers, and by the kernels themselves: no headers but these, plain integers only.
#pragma once

#include "shared/backward_rows.h"
#include "shared/storage.h"
#include "shared/strided.h"

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
  int share;            // share_word(): the CTA walks some of the tile's steps; 0: all
};
static_assert(sizeof(BackwardItem) == 32);

/// A tile whose steps several CTAs share has an item for each of them. Each CTA leaves its sums of dK and dV at a place
/// of its own, and the last one adds up all of them, in the order of the steps. `place`: of the tile's first share.
constexpr int share_word(int place, int number, int shares) { return place << 16 | number << 8 | shares; }
constexpr int shares_of(int word) { return word & 255; }
constexpr int number_of_share(int word) { return word >> 8 & 255; }
constexpr int first_place_of(int word) { return word >> 16; }
inline constexpr int kMostShares = 8, kMostSharePlaces = 32767;

/// The parameters of the kernels before and behind it, which go over blocks of rows.
struct BackwardRowsParams {
  const RowBlock* blocks;
  int q_heads, block_count;
  RowInput o, d_o;  // d_o as the caller stored it
  RowInput lse, d_lse;
  Sinks sinks;
  float* rows;
  float* d_q;
  unsigned* drawn;  // becomes 0
  unsigned* turns;  // ordered: those of a block become 0
  // If dQ's sums are a ring: ring_units units of it and ring_counts counters become 0.
  long long ring_units, ring_counts;
  unsigned* ring_counters;
  // Tiles that CTAs share: as many counters become 0.
  long long share_counts;
  unsigned* share_counters;
  float* sink_parts;  // [block][head]
  RowOutput d_q_out;
  RowOutput d_sinks;  // stride[0]: of heads
  float d_q_scale;
  RowInput lse_rest;  // lse in two words: the second one
  float unit;         // likewise: what steps compare with a row's first number, times it, is t
  double unit_f64;    // the same, where reals are f64: lse, numbers of rows, sinks and their parts are f64 then
};
inline constexpr int kRowThreads = 256;

}  // namespace heddle::shared
