// Keys and values in pages, and the copying of their rows into shared memory by gathering warps. Host and device code
// read this file: no headers, plain integers only.
#pragma once

namespace heddle::shared {

/// A tensor of pages whose rows are gathered. Element strides of page, head and row: multiples of 16 bytes.
struct GatheredTensor {
  const void* data;
  long long stride[3];
};
/// Where each sequence's part of a list of pages begins, and where the last one ends. Null: there is no list.
struct PageStarts {
  const int* data;
  long long stride;  // elements
  int entries;       // of the list, at least 1
};
/// Start i, within the list.
constexpr int page_start(const PageStarts& starts, int i) {
  const int start = starts.data[i * starts.stride];
  return start < 0 ? 0 : start < starts.entries ? start : starts.entries;
}
/// The most keys that a sequence may have: the rows of its part of the list, at most `most`.
constexpr long long keys_in_pages(const PageStarts& starts, int sequence, int page_rows, long long most) {
  const long long pages = static_cast<long long>(page_start(starts, sequence + 1)) - page_start(starts, sequence);
  const long long rows = pages > 0 ? pages * page_rows : 0;
  return rows < most ? rows : most;
}

/// Which page of k and v holds rows [n * page_rows, (n + 1) * page_rows) of a sequence: entry n of its row of a table,
/// or of its part of a list. Entries past its end are not read, but for the first of a sequence without keys; a number
/// that is no page's counts as the nearest page.
struct PageTable {
  const int* data;
  long long stride[2];     // of sequence (a list: 0), and of n; elements
  int pages;               // that k and v have
  PageStarts starts = {};  // of a list
};
/// A list: which entry is a sequence's first one.
constexpr int first_entry(const PageTable& table, int sequence) {
  const int start = page_start(table.starts, sequence);
  return start < table.starts.entries ? start : table.starts.entries - 1;
}

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
