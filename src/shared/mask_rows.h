// mask_rows: what host and device pass each other to find the rows of block masks on a GPU. Read by the launcher and by
// the kernels when NVRTC compiles them: no other headers, plain integers only.
#pragma once

#include "shared/mod_values.h"

namespace heddle::shared {

/// The least and the largest of a group of a capture's elements: integers, or the bits of floats. Floats with a NaN
/// among them have NaN for both.
struct ZoneCell {
  int lo, hi;
};
inline constexpr int kZoneGroup = 64;  // elements of the smallest groups: a quarter of a byte an element

/// The groups of one capture along one axis. Each combination of the other axes' indices (a slice) has a tree of
/// 2 * groups cells: cell i joins the cells 2 i and 2 i + 1, the smallest groups stand at groups + g, and cell 0 is not
/// used.
struct MaskZone {
  ZoneCell* cells;
  ModCapture tensor;
  int rank, axis;
  int groups, slices;
};

/// One score matrix whose rows are wanted, and the values that its sequence gives the leaves.
struct MaskMatrix {
  int b, h;
  int first_row;  // of blocks, among all rows
  int columns;    // blocks of keys
  int q_len, kv_len, q_start;
  int q_token, kv_token;  // what is added to q_idx and kv_idx
};

/// Key blocks [begin, end) of one row; kind 0: partial, 1: full. As BlockMask's Run.
struct MaskRun {
  int begin, end, kind;
};

inline constexpr int kMaskThreads = 128;  // of a CTA, which finds one row
inline constexpr int kMaskSuper = 32;     // blocks of keys that are asked about together: a warp's
/// Blocks of keys whose classes a CTA holds at a time.
inline constexpr int kMaskWindow = kMaskSuper * 32;
inline constexpr int kScanThreads = 1024;

struct MaskRowsParams {
  const MaskMatrix* matrices;  // by ascending first_row
  int matrix_count, rows;
  long long q_block, kv_block;  // elements of a block
  long long* offset;            // [rows + 1]: runs of row r are [offset[r], offset[r + 1])
  MaskRun* runs;
  long long capacity;  // of runs: more are counted, but not written
  MaskZone zones[kModCaptures];
  int zone_count;
  ModValues mod;  // of each sequence, but for its lengths
};

}  // namespace heddle::shared
