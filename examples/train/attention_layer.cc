#include "attention_layer.h"

#include <utility>

#include "heddle/backward.h"

namespace {

using heddle::DType;

/// Columns [first, first + kWidth) of a matrix as [batch, head, character, dimension]: no copy, strides say where.
template <class View, class MatrixType>
View heads_of(MatrixType& matrix, std::size_t first = 0) {
  const auto row = static_cast<std::int64_t>(matrix.columns);
  return {matrix.values.data() + first,
          DType::f32,
          {kBatch, kHeads, kWindow, kHeadDim},
          {row * std::int64_t{kWindow}, kHeadDim, row, 1}};
}
heddle::ConstTensorView read_heads(const Matrix& matrix, std::size_t first = 0) {
  return heads_of<heddle::ConstTensorView>(matrix, first);
}
heddle::TensorView write_heads(Matrix& matrix, std::size_t first = 0) {
  return heads_of<heddle::TensorView>(matrix, first);
}

void add(const Matrix& x, Matrix& y) {
  for (std::size_t i = 0; i < x.values.size(); ++i) y.values[i] += x.values[i];
}

}  // namespace

heddle::AttentionOptions attention_options() {
  const heddle::Capture slopes("slopes", DType::f32, 1), table("table", DType::f32, 2);
  heddle::AttentionOptions options;
  options.score_mod = heddle::mods::t5_bias(table, kBuckets, kWindow, false) +
                      slopes(heddle::leaf::h()) * (heddle::leaf::kv_idx() - heddle::leaf::q_idx());
  options.mask_mod = heddle::mods::causal();
  return options;
}

AttentionLayer::AttentionLayer() : options_(attention_options()) {
  options_.threads = 1;  // a window is too short to share
}

void AttentionLayer::bind(const Parameter& slopes, const Parameter& table) {
  options_.bindings.captures["slopes"] = {slopes.value.values.data(), DType::f32, {kHeads}};
  options_.bindings.captures["table"] = {table.value.values.data(), DType::f32, {kBuckets, kHeads}};
}

AttentionLayer::Result AttentionLayer::forward(const Matrix& qkv, const Parameter& slopes, const Parameter& table) {
  bind(slopes, table);
  Result result{Matrix(qkv.rows, kWidth), Matrix(kBatch * kHeads, kWindow)};
  const heddle::TensorView lse(result.lse.values.data(), DType::f32, {kBatch, kHeads, kWindow});
  heddle::attention_into(read_heads(qkv), read_heads(qkv, kWidth), read_heads(qkv, 2 * kWidth), write_heads(result.o),
                         lse, options_);
  return result;
}

Matrix AttentionLayer::backward(const Matrix& qkv, const Result& result, const Matrix& d_o, Parameter& slopes,
                                Parameter& table) {
  bind(slopes, table);
  Matrix d_qkv(qkv.rows, qkv.columns), d_slopes(1, kHeads), d_table(kBuckets, kHeads);
  heddle::BackwardTensors tensors{
      .q = read_heads(qkv), .k = read_heads(qkv, kWidth), .v = read_heads(qkv, 2 * kWidth), .o = read_heads(result.o)};
  tensors.lse = {result.lse.values.data(), DType::f32, {kBatch, kHeads, kWindow}};
  tensors.d_o = read_heads(d_o);
  tensors.dq = write_heads(d_qkv);
  tensors.dk = write_heads(d_qkv, kWidth);
  tensors.dv = write_heads(d_qkv, 2 * kWidth);
  tensors.d_captures["slopes"] = {d_slopes.values.data(), DType::f32, {kHeads}};
  tensors.d_captures["table"] = {d_table.values.data(), DType::f32, {kBuckets, kHeads}};
  heddle::attention_backward_into(tensors, options_);
  add(d_slopes, slopes.gradient);
  add(d_table, table.gradient);
  return d_qkv;
}
