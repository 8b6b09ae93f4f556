// Tensors that an attention kernel reads from copies, since their strides, address or pages are none of TMA's, or their
// pages small: what host and device pass each other to copy their rows into the workspace, before each run. Read by the
// launcher, and by the kernel when NVRTC compiles it: no other headers, plain integers only.
#pragma once

#include "shared/paging.h"
#include "shared/sequence_span.h"

namespace heddle::shared {

/// Which rows of a sequence there are to copy; where sequences do not differ all.
enum class CopiedSpan : int { all, queries, keys };

/// One tensor, and its copy: [sequences, heads, rows], rows one after the other, filled up with zeros to 16 bytes.
struct CopiedRows {
  const char* from;
  char* to;
  long long from_step[3];      // bytes from a sequence (or page), head, row to the next
  long long to_row_step;       // and from a row of the copy: 16 divides it
  int sequences, heads, rows;  // of the copy
  int row_bytes;               // bytes of one row
  int width;                   // 16, 8, 4, 2 or 1 bytes: they divide every row's address and row_bytes
  CopiedSpan span;
  int paged;  // rows stand where the table says
  long long shares;
};

struct CopiedRowsParams {
  CopiedRows tensors[4];
  long long shares;               // of all
  const SequenceSpan* sequences;  // where they differ and are padded; else all rows are copied
  PageTable page_table;
  int page_rows;
};

inline constexpr int kCopyThreads = 256;  // of a CTA
inline constexpr int kCopyRows = 64;      // of a head in a share, which one CTA copies
inline constexpr int kCopyCtas = 4;       // of a multiprocessor, whose registers hold no more

constexpr long long copied_shares_of_head(long long rows) { return (rows + kCopyRows - 1) / kCopyRows; }
constexpr long long copied_shares(long long sequences, long long heads, long long rows) {
  return sequences * heads * copied_shares_of_head(rows);
}

}  // namespace heddle::shared
