// Sequences whose lengths are in the device's memory: what host and device pass each other to find their spans and to
// list the tiles that they leave, before each run of an attention kernel. The host lists tiles and rows of key blocks
// for the longest sequences that there may be; the device drops the tiles and cuts the rows that lie past an end. Read
// by the planner, the launcher, and the kernels when NVRTC compiles them: no other headers, plain integers only.
#pragma once

#include "shared/paging.h"
#include "shared/sequence_span.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

inline constexpr long long kLineBytes = 64;  // what is written by several CTAs stands in a line of its own

/// Offsets in the workspace of a run, in bytes.
struct SequencesMemory {
  long long tickets;  // TicketWord
  long long count;    // int: tiles that are left
  long long spans;    // SequenceSpan [sequences + 1]: the last one begins where the tensor of queries ends
  long long items;    // WorkItem [tiles]
  long long bytes;
};
constexpr SequencesMemory sequences_memory(long long sequences, long long tiles) {
  SequencesMemory memory{};
  memory.count = kLineBytes;
  memory.spans = memory.count + kLineBytes;
  memory.items = memory.spans + (sequences + 1) * static_cast<long long>(sizeof(SequenceSpan));
  memory.bytes = memory.items + tiles * static_cast<long long>(sizeof(WorkItem));
  return memory;
}

/// One integer a sequence, or their sums; null: not given.
struct LengthsView {
  const void* data;
  long long stride;  // in elements
  int is_i64;
};

struct SequencesParams {
  LengthsView q, kv;    // lengths, or packed cumulative ones
  LengthsView kv_used;  // packed: how many keys of each sequence count
  LengthsView q_start;
  PageStarts page_starts;  // of keys in listed pages of page_rows rows
  int page_rows;
  int q_packed, kv_packed;  // keys in pages are not, though queries may be
  int count;                // sequences
  int q_rows, kv_rows;      // of the tensors
  int max_q_len, max_kv_len;
  SequenceSpan* spans;
  // Tiles, for the longest sequences.
  const WorkItem* items;
  int item_count;
  const KvRun* runs;
  const unsigned* steps_before;  // of each run, and of their end: key blocks in all runs before it, modulo 2^32
  int kv_block, tile_queries;    // keys of a step, queries of a tile
  int warpgroups;
  int descending;
  WorkItem* left;
  int* left_count;
};

inline constexpr int kSpanThreads = 1024;  // of the one CTA that finds the spans
inline constexpr int kListThreads = 256;   // of a CTA that lists as many tiles
/// Up to this number of tiles the CTA that finds the spans lists them, too: a launch less. A guess, not measured.
inline constexpr int kListedAtOnce = 2 * kSpanThreads;

constexpr long long clamped(long long x, long long least, long long most) {
  return x < least ? least : x > most ? most : x;
}

constexpr int larger_row(int x, int y) { return x < y ? y : x; }

/// Rows [begin, end) of a packed tensor, or of a padded sequence.
struct RowSpan {
  int begin, end;
};

/// The rows of a sequence. They lie inside the tensors whatever `start` is, even without keys: TMA loads a block of
/// keys for each tile.
constexpr SequenceSpan span_of(const SequencesParams& params, RowSpan q, RowSpan kv, long long start) {
  SequenceSpan span{};
  span.q_begin = q.begin;
  span.q_len = static_cast<int>(clamped(q.end - q.begin, 0, params.max_q_len));
  span.q_end = span.q_begin + span.q_len;
  span.kv_begin = kv.begin;
  span.kv_len = static_cast<int>(clamped(kv.end - kv.begin, 0, params.max_kv_len));
  // An empty sequence still loads one box: row 0 of the tensor. Its scores are masked.
  span.kv_end = span.kv_len > 0 ? span.kv_begin + span.kv_len : 1;
  span.kv_before = params.max_kv_len - (span.kv_len > 0 ? span.kv_len : 1);
  constexpr long long kLast = 0x7fffffff;
  const int last_row = span.q_len > 0 ? span.q_len - 1 : 0;
  span.q_start = static_cast<int>(clamped(start, -kLast - 1, kLast - last_row));
  return span;
}

/// How many of the `count` runs, which are in order, end at or before `block`.
constexpr int runs_before(const KvRun* runs, int count, int block) {
  int least = 0;
  for (int most = count; least < most;) {
    const int middle = least + (most - least) / 2;
    if (runs[middle].end <= block) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return least;
}

/// Cuts a tile of the host's list to kv_len keys: its runs, and the other words of its item. If nothing is left, the
/// tile keeps one block that no warpgroup attends, so that its rows are filled.
constexpr WorkItem cut_item(const SequencesParams& params, WorkItem item, int kv_len) {
  const auto blocks_of = [&](int keys) { return (keys + params.kv_block - 1) / params.kv_block; };
  const int all = blocks_of(params.max_kv_len), here = blocks_of(kv_len);
  // If tiles descend, blocks are counted from the last one of the longest sequence.
  const int first = params.descending ? all - here : 0, end = params.descending ? all : here;
  const KvRun* runs = params.runs + item.first_run;
  const unsigned* steps_before = params.steps_before + item.first_run;
  const int skipped = runs_before(runs, item.runs, first);
  int steps = 0;
  if (skipped < item.runs && runs[skipped].begin < end) {
    // Whole runs first, then the part of the next one.
    const int whole = runs_before(runs, item.runs, end);
    steps = static_cast<int>(steps_before[whole] - steps_before[skipped]);
    if (whole < item.runs && runs[whole].begin < end) steps += end - runs[whole].begin;
    if (runs[skipped].begin < first) steps -= first - runs[skipped].begin;
  }
  item.first_run += skipped;
  item.steps = steps;
  if (steps > 0) {
    item.run = runs[skipped];
    if (item.run.begin < first) item.run.begin = first;
  } else {
    const int block = first < all ? first : all - 1;
    item.steps = 1;
    item.run = {block, block + 1, 0, 0};
  }
  const int everyone = (1 << params.warpgroups) - 1;
  item.before = (item.run.flags & everyone) == everyone ? 0 : kStepNextUneven;
  return item;
}

}  // namespace heddle::shared
