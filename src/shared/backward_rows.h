// Numbers of queries that backward_sm90 keeps between its kernels: two of each row, and dQ in f32. Both come in blocks
// of 64 rows of one head, in an order that suits the fragments of tensor cores: a score's row is a key there, and its
// columns are queries (S^T = K Q^T). Thread `lane` of a warp has the columns 8 j + 2 (lane % 4) + e of a block.
// Kernels, and tests on the host, read this file.
#pragma once

namespace heddle::shared {

inline constexpr int kBlockRows = 64;

// A block's numbers: lse in powers of two, then delta. The sixteen of a thread stand in a row, which four floats more
// keep out of the other lanes' banks.
//
// With lse in two words a third part follows, `low`, and the first float between the rows of the first part holds the
// block's flag: some row's lse is so far from 0 that one word has too few digits of it. In such a block p is
// 2^((x - first) unit log2 e - low), x the scores, of which t is `unit` times, and `first` stands where lse does:
// x - first is exact where both are close to each other. In others lse is the sum of both words.
inline constexpr int kLaneRows = 16, kLaneStep = kLaneRows + 4;
inline constexpr int kBlockNumbers = 4 * kLaneStep;  // floats of either
inline constexpr int kBlockBytes = 2 * kBlockNumbers * 4;
inline constexpr int kLowNumbers = kBlockRows, kFlagOffset = kLaneRows;
inline constexpr int kStepFar = 4096;           // the flag, as bits, of a block and of a step of the main kernel
inline constexpr float kLargestNearLse = 1024;  // natural: up to it one word is enough
/// Floats of a block and head, and its bytes.
constexpr int block_numbers(bool lse_rest) { return 2 * kBlockNumbers + (lse_rest ? kLowNumbers : 0); }
constexpr int block_bytes(bool lse_rest) { return 4 * block_numbers(lse_rest); }
/// The slot of a row's number in its block.
constexpr int offset_of_row(int row) { return row % 8 / 2 * kLaneStep + 2 * (row / 8) + row % 2; }
/// The slot at which the numbers of a lane's registers 4 j + e begin.
constexpr int offset_of_lane(int lane) { return lane % 4 * kLaneStep; }
/// The slot of a row's number among the low ones, and the slot of a lane's first four. Four lanes read sixteen floats
/// at a time, so a lane has four more every sixteen floats.
constexpr int low_of_row(int row) { return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2; }
constexpr int low_of_lane(int lane) { return lane % 4 * 4; }

// dQ: of each block and 64 columns one part, as the registers of a warpgroup's accumulator: d[4 j .. 4 j + 3] of its
// thread t at float 4 (128 j + t).
inline constexpr int kPartFloats = 64 * 64, kPartBytes = 4 * kPartFloats;
constexpr int offset_in_part(int row, int column) {
  const int thread = 32 * (row / 16) + 4 * (row % 8) + column % 8 / 2;
  return 4 * (128 * (column / 8) + thread) + 2 * (row % 16 / 8) + column % 2;
}

/// Up to 64 rows of a sequence, of every query head; its number counts the blocks of all sequences.
struct RowBlock {
  int batch;
  int row;     // of q and what has its rows: the first
  int live;    // of them are queries of the sequence
  int stored;  // rows of dq that it fills, with zeros past the live ones
};
static_assert(sizeof(RowBlock) == 16);

}  // namespace heddle::shared
