// Tensors of rows, as kernels take them. Read by the launchers and by the kernels: no headers, plain integers only.
#pragma once

namespace heddle::shared {

/// A tensor of rows: element strides of batch (of pages: page), head and row. Stride 0: all share one.
struct RowsOfTensor {
  const void* data;
  long long stride[3];
};

/// A gradient of rows: element strides of batch, head and row. Null: not asked for.
struct RowOutput {
  void* data;
  long long stride[3];
};
/// A tensor by rows that is read.
struct RowInput {
  const void* data;
  long long stride[3];
};

}  // namespace heddle::shared
