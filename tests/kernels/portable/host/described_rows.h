// Rows of a tensor [batch, heads, rows, head_dim] as the stand-in for TMA finds them: what the host's kernels have in
// place of cuda::tensor_map_before_ends().
#pragma once

namespace heddle::test {

struct DescribedRows {
  const char* data;
  long long row, head, batch;  // bytes from one to the next
  int row_bytes, longest, box_rows;
};
static_assert(sizeof(DescribedRows) <= 128);

}  // namespace heddle::test
