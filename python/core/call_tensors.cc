#include "call_tensors.h"

namespace heddle::python {

AttentionTensors tensors_of(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const GivenOut& o,
                            const GivenOut& lse, bool with_lse, const GivenOut& max_scores, const GivenOut& lse_rest) {
  AttentionTensors tensors{.q = const_view_of(q, "q"), .k = const_view_of(k, "k"), .v = const_view_of(v, "v"), .o = {}};
  const ConstTensorView &q_view = tensors.q, &v_view = tensors.v;
  const bool has_shapes = q_view.rank() == 4 && v_view.rank() == 4;  // the library refuses others by name
  if (o) {
    tensors.o = view_of(*o, "out");
  } else {
    const bool is_f8 = q_view.dtype == DType::e4m3 || q_view.dtype == DType::e5m2;
    Dims shape;
    if (has_shapes) shape = {q_view.shape[0], q_view.shape[1], q_view.shape[2], v_view.shape[3]};
    tensors.o = TensorView(nullptr, is_f8 ? DType::bf16 : q_view.dtype, shape, q_view.device);
  }
  if (lse) {
    tensors.lse = view_of(*lse, "lse");
  } else if (with_lse) {
    Dims shape;
    if (has_shapes) shape = {q_view.shape[0], q_view.shape[1], q_view.shape[2]};
    tensors.lse = TensorView(nullptr, q_view.dtype == DType::f64 ? DType::f64 : DType::f32, shape, q_view.device);
  }
  if (max_scores) tensors.max_scores = view_of(*max_scores, "max_scores");
  if (lse_rest) tensors.lse_rest = view_of(*lse_rest, "lse_rest");
  return tensors;
}

}  // namespace heddle::python
