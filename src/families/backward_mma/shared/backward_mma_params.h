// backward_mma's parameters: what each run passes to its passes. The kernels around them take BackwardRowsParams, and
// all walk the lists of backward_tiles.h. Read by the launchers and by the kernels themselves: no headers but these,
// plain integers only.
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "shared/backward_lists.h"
#include "shared/mod_values.h"
#include "shared/strided.h"

namespace heddle::shared {

/// Reals of a block of 64 rows and a head: each of row_numbers() of all rows, then the next.
constexpr int portable_numbers(bool lse_rest) { return row_numbers(lse_rest) * kBlockRows; }

/// Which rows the place of a read's gradient depends on. pairs: on both kinds.
enum class ReadRows : int { none, keys, queries, pairs };
inline constexpr const char* kReadRows[] = {"none", "keys", "queries", "pairs"};
constexpr const char* name(ReadRows rows) { return kReadRows[static_cast<int>(rows)]; }

inline constexpr int kMostMmaReads = 16;
inline constexpr int kMostMmaSums = 16;  // gradients of captures and params

/// Words of 64 bits of an element's sum of integers: in f64 a second word has the rest of a part.
constexpr int words_of_integers(int real_bytes) { return real_bytes / 4; }

/// The sum of the gradient of one capture or param: CTAs add to it in any order. Elements are numbered row by row.
struct MmaSum {
  void* reals;    // with integers: of parts that are not finite
  int extent[4];  // 1 past the capture's rank
  // ReadParts::largest and integers:
  unsigned long long* integers;  // words_of_integers() of each element
  unsigned long long* largest;   // magnitude of the largest finite part, bits of a real
  int bits;                      // an element is the sum of less than 2^bits parts
};
/// Parts are multiplied by 2 to this and rounded, so that 2^bits of them have a sum below 2^62. `largest`: of an f32,
/// or with `wide` of an f64, that is finite.
constexpr int integer_exponent(unsigned long long largest, bool wide, int bits) {
  constexpr int kMost = 1000;  // 2 to it, and its inverse, are normal numbers
  const int below = wide ? static_cast<int>(largest >> 52) - 1022 : static_cast<int>(largest >> 23) - 126;
  const int exponent = 62 - bits - below;
  return exponent < kMost ? exponent : kMost;
}

/// The factors of products.
template <class Real>
struct BackwardScales {
  Real scale;        // of a product q.k: scale, times the factor of the score_mod
  Real scale_log2;   // scale * log2(e); normalizer none: scale
  Real score_scale;  // what makes mods' scores of products
};

struct BackwardMmaParams {
  // CTA c computes slice c % slices of part c / slices % parts of item c / slices / parts; all_sequences: it does so
  // for one item of each sequence; these stand beside each other. With lengths on the device the list is that for the
  // longest sequences: a tile, or a step, may lie past the end.
  const BackwardItem* items;
  const QueryRun* runs;   // their blocks are of the steps' rows; `head` is a query head in both passes
  RowsOfTensor rows[2];   // of the tile: k and v, or q and dO
  RowsOfTensor steps[2];  // q and dO, or k and v
  int group;              // query heads that read one head of keys
  int q_heads;
  int padded_blocks;  // device_lengths: of a sequence's queries; below 0 where sequences are packed
  int padded_rows;    // rows of a gradient that are written of a sequence: with padding all; 0: those of the sequence
  BackwardScales<float> scales;
  BackwardScales<double> wide_scales;  // the same, where reals are f64
  const void* numbers;                 // portable_numbers() of each block and head
  float* d_q;                          // adds_d_q: d_q_floats() of each block and head
  RowOutput d_qk, d_v;                 // d_qk without an address: the pass is for its reads alone
  ModValues mod;
  MmaSum sums[kMostMmaSums];
  int sequences;      // all_sequences
  Descales descales;  // config.descaled
};

template <class Real>
constexpr const BackwardScales<Real>& scales_of(const BackwardMmaParams& params) {
  if constexpr (sizeof(Real) == 8) {
    return params.wide_scales;
  } else {
    return params.scales;
  }
}

/// Parameters of the kernels that clear the sums before the passes, and store the gradients after them.
struct MmaSumsParams {
  struct Stored {
    void* data;
    long long stride[4], count;
    MmaSum sum;
  };
  unsigned* memory;  // of all sums
  long long words;   // of 4 bytes, in it: a multiple of 4
  int ctas;          // of each kernel
  Stored stored[kMostMmaSums];
};
inline constexpr int kSumThreads = 256;

/// Columns of 8 bits that a thread copies at once.
inline constexpr int kWidenedRun = 8;
/// A tensor of 8 bits [batch or 1, heads, rows, dim], and its copy of 16 bits [.., heads, rows, pitch].
struct WidenedTensor {
  const void* from;
  void* to;
  long long stride[3];
  int heads, rows, dim, pitch;
  long long runs;  // of kWidenedRun columns, in the copy
};
struct MmaWidenParams {
  WidenedTensor tensors[3];  // q, k, v
  int ctas;
};

}  // namespace heddle::shared
