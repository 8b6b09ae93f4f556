// dq that is added to what the caller's tensor holds: attention writes it elsewhere first.
#pragma once

#include "context/rows_of_keys.h"
#include "heddle/tensor.h"

namespace heddle::context {

class QueryGradients {
 public:
  /// Room for dq of q, a group's, in f32 (f64 for f64), on its device; that of the groups before ends.
  QueryGradients(const ConstTensorView& q, KeptMemory& memory);

  /// The tensor that attention writes.
  const TensorView& view() const { return view_; }
  /// Adds it to dq, of the group's heads. On a GPU it enqueues on the stream.
  void add_to(const TensorView& dq, void* stream) const;

 private:
  TensorView view_;
};

}  // namespace heddle::context
