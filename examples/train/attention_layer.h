// Causal attention whose score has two learned terms, forward and backward through Heddle.
//
//   t = score + slopes[h] (kv_idx - q_idx) + table[bucket of q_idx - kv_idx, h]
//
// The buckets are T5's: one for each distance below 8, and eight that grow with the logarithm up to the window's
// length.
#pragma once

#include "heddle/heddle.h"
#include "layers.h"

inline constexpr std::size_t kBatch = 4, kWindow = 64;  // windows of text in a step, characters in each
inline constexpr std::size_t kHeads = 2, kHeadDim = 16, kWidth = kHeads * kHeadDim;
inline constexpr std::size_t kBuckets = 16;

/// The layer's mods: t, causal. The captures `slopes` [kHeads] and `table` [kBuckets, kHeads] are yet to be bound.
heddle::AttentionOptions attention_options();

class AttentionLayer {
 public:
  AttentionLayer();

  /// qkv [kBatch * kWindow, 3 * kWidth]: q, k and v of all heads side by side.
  struct Result {
    Matrix o;    // [kBatch * kWindow, kWidth]
    Matrix lse;  // [kBatch * kHeads, kWindow]
  };
  Result forward(const Matrix& qkv, const Parameter& slopes, const Parameter& table);
  /// Returns the gradient of qkv, and adds those of slopes and table to theirs.
  Matrix backward(const Matrix& qkv, const Result& result, const Matrix& d_o, Parameter& slopes, Parameter& table);

 private:
  void bind(const Parameter& slopes, const Parameter& table);

  heddle::AttentionOptions options_;
};
