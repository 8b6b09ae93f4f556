// A valid attention call, for tests to spoil.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "heddle/attention.h"
#include "problem/check_run.h"

namespace heddle::test {

template <class T>
Tensor tensor_of(DType dtype, std::initializer_list<T> values) {
  Tensor tensor = Tensor::empty(dtype, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.data()));
  return tensor;
}
inline Tensor i32s(std::initializer_list<std::int32_t> values) { return tensor_of(DType::i32, values); }
inline Tensor i64s(std::initializer_list<std::int64_t> values) { return tensor_of(DType::i64, values); }
inline Tensor f32s(std::initializer_list<float> values) { return tensor_of(DType::f32, values); }

/// q [2, 4, 6, 16], k [2, 2, 8, 16], v [2, 2, 8, 24], o [2, 4, 6, 24], lse [2, 4, 6].
struct Call {
  AttentionTensors tensors;
  AttentionOptions options;

  explicit Call(DType dtype = DType::f32) {
    const bool fp8 = dtype == DType::e4m3 || dtype == DType::e5m2;
    q(dtype, {2, 4, 6, 16});
    k(dtype, {2, 2, 8, 16});
    v(dtype, {2, 2, 8, 24});
    o(fp8 ? DType::bf16 : dtype, {2, 4, 6, 24});
    lse(dtype == DType::f64 ? DType::f64 : DType::f32, {2, 4, 6});
  }
  /// One packed batch of 6 queries and 8 keys in three sequences.
  static Call packed() {
    Call call;
    call.q(DType::f32, {1, 4, 6, 16});
    call.k(DType::f32, {1, 2, 8, 16});
    call.v(DType::f32, {1, 2, 8, 24});
    call.o(DType::f32, {1, 4, 6, 24});
    call.lse(DType::f32, {1, 4, 6});
    call.options.cu_seqlens_q = call.keep(i32s({0, 2, 2, 6}));
    call.options.cu_seqlens_kv = call.keep(i32s({0, 3, 3, 8}));
    return call;
  }

  void q(DType dtype, const Dims& shape) { tensors.q = keep(Tensor::zeros(dtype, shape)); }
  void k(DType dtype, const Dims& shape) { tensors.k = keep(Tensor::zeros(dtype, shape)); }
  void v(DType dtype, const Dims& shape) { tensors.v = keep(Tensor::zeros(dtype, shape)); }
  void o(DType dtype, const Dims& shape) { tensors.o = keep(Tensor::zeros(dtype, shape)); }
  void lse(DType dtype, const Dims& shape) { tensors.lse = keep(Tensor::zeros(dtype, shape)); }
  void without_lse() { tensors.lse.reset(); }
  void capture(const std::string& name, const Tensor& tensor) { options.bindings.captures[name] = keep(tensor); }

  problem::AttentionProblem validate() const { return problem::validate(tensors, options); }
  /// Makes a call's checks: planning's, then a run's.
  void validate_all() const {
    const problem::AttentionProblem problem = validate();
    problem::validate_run(problem, problem::PlannedTensors(tensors), tensors, options, options.bindings);
  }

  TensorView keep(const Tensor& tensor) {
    kept_.push_back(tensor);
    return tensor;
  }

 private:
  std::vector<Tensor> kept_;
};

}  // namespace heddle::test
