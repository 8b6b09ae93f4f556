// The lists of a backward if sequences' lengths are in the device's memory: the host lists tiles and blocks of rows for
// the longest possible sequences; before each run the device writes the lists for the lengths of that run. Read by
// the planner, the launcher, and the kernels when NVRTC compiles them: no other headers, plain integers only.
#pragma once

#include "shared/backward_tiles.h"
#include "shared/sequence_span.h"

namespace heddle::shared {

/// Offsets in bytes from the lists' place in the workspace of a run.
struct BackwardListsMemory {
  long long count;   // int: tiles that are left
  long long spans;   // SequenceSpan [sequences + 1]
  long long blocks;  // RowBlock [blocks]
  long long items;   // BackwardItem [tiles]
  long long bytes;
};
constexpr BackwardListsMemory backward_lists_memory(long long sequences, long long blocks, long long tiles) {
  BackwardListsMemory memory{};
  memory.spans = memory.count + 64;
  memory.blocks = memory.spans + (sequences + 1) * static_cast<long long>(sizeof(SequenceSpan));
  memory.items = memory.blocks + blocks * static_cast<long long>(sizeof(RowBlock));
  memory.bytes = memory.items + tiles * static_cast<long long>(sizeof(BackwardItem));
  return memory;
}

/// Number of a sequence's first block of rows. Packed sequences of any lengths never share a block: a sequence skips
/// the blocks of the rows before it, and one more for each sequence before it. blocks_of_padded: below 0 if sequences
/// are packed.
constexpr int first_block_of(int q_begin, int sequence, int blocks_of_padded) {
  return blocks_of_padded >= 0 ? sequence * blocks_of_padded : q_begin / kBlockRows + sequence;
}

/// A gradient of rows as bytes: what no sequence has is filled with zeros.
struct FilledRows {
  char* data;           // null: not asked for
  long long stride[2];  // of heads and rows, in bytes
  int heads, row_bytes;
};

struct BackwardListsParams {
  const SequenceSpan* spans;
  int count;   // sequences
  int packed;  // they stand one behind the other
  int q_rows;  // of the tensor; of a padded sequence
  int kv_rows;
  int padded_blocks;  // of a padded sequence's rows; packed: below 0
  RowBlock* blocks;
  int block_count;
  const BackwardItem* items;  // for the longest sequences
  int item_count;
  const QueryRun* runs;
  int tile_keys;
  int keeps_all;  // no tile is dropped: each keeps its place in the list
  BackwardItem* left;
  int* left_count;           // 0 before
  FilledRows d_q, d_k, d_v;  // packed
};
inline constexpr int kBackwardListThreads = 256;

constexpr int blocks_of_rows(int rows) { return (rows + kBlockRows - 1) / kBlockRows; }

/// Block `block` of a sequence.
constexpr RowBlock row_block_of(const BackwardListsParams& params, const SequenceSpan& span, int sequence, int block) {
  const int first = block * kBlockRows, here = span.q_len - first, padded = params.q_rows - first;
  const int live = here < 0 ? 0 : here < kBlockRows ? here : kBlockRows;
  const int stored = params.packed ? live : padded < kBlockRows ? padded : kBlockRows;
  return {params.packed ? 0 : sequence, (params.packed ? span.q_begin : 0) + first, live, stored};
}

/// Cuts a tile of the host's list to these lengths: the runs up to the last one with queries stay. The walk cuts their
/// ends.
constexpr BackwardItem cut_backward_item(const BackwardListsParams& params, BackwardItem item,
                                         const SequenceSpan& span) {
  const int blocks = span.kv_len > item.kv_tile * params.tile_keys ? blocks_of_rows(span.q_len) : 0;
  const QueryRun* runs = params.runs + item.first_run;
  int steps = 0, last = 0;
  for (int i = 0; i < item.runs; ++i) {
    const int end = runs[i].end < blocks ? runs[i].end : blocks;
    if (end <= runs[i].begin) continue;
    steps += end - runs[i].begin;
    last = i + 1;
  }
  item.steps = steps;
  item.runs = last;
  item.first_block = first_block_of(span.q_begin, item.batch, params.padded_blocks);
  return item;
}

}  // namespace heddle::shared
