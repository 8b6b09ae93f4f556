// Keys and values in pages, and the copying of their rows into shared memory by gathering warps. Host and device code
// read this file: no headers, plain integers only.
#pragma once

namespace heddle::shared {

/// A tensor of pages whose rows are gathered. Element strides of page, head and row: multiples of 16 bytes.
struct GatheredTensor {
  const void* data;
  long long stride[3];
};
/// Which page of k and v holds rows [n * page_rows, (n + 1) * page_rows) of a sequence. Entries past its end are not
/// read, but for the first of a sequence without keys; what is no page's number counts as the nearest that is.
struct PageTable {
  const int* data;
  long long stride[2];  // of sequence, and of n; elements
  int pages;            // that k and v have
};

inline constexpr int kGatherNothing = -1, kGatherK = 0, kGatherV = 1;
struct Pages {
  GatheredTensor gathered[2];  // by kGatherK, kGatherV
  PageTable table;             // where k and v are pages
};

/// The producer's order to the gathering warps: rows of one tensor, for one buffer.
struct GatherOrder {
  int tensor;          // kGatherK, kGatherV; or kGatherNothing: the warps may end
  unsigned to, full;   // addresses of the buffer and of the barrier that says when it is filled
  int sequence, head;  // of that tensor
  int row, rows;       // the first one, of the sequence; and how many there are from it on: the others are zeros. At
                       // most 0: all are
  int count;           // slot 0 only: orders given so far
};
static_assert(sizeof(GatherOrder) == 32);  // written 16 bytes at a time
inline constexpr unsigned kOrderTensor = 0, kOrderTo = 4, kOrderFull = 8, kOrderSequence = 12, kOrderHead = 16,
                          kOrderRow = 20, kOrderRows = 24, kOrderCount = 28;  // offsets in bytes
inline constexpr int kGatherOrders = 4;                                       // as many orders may wait
inline constexpr int kGatherRows = 16;                                        // rows that a warp copies at once

}  // namespace heddle::shared
