// How a backward sums the gradients of what mods read: plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/differentiate.h"
#include "heddle/backward.h"
#include "problem/problem.h"

namespace heddle::plan {

/// How the place of a read's gradient depends on query and key, within a tile of both.
enum class ReadPlace : std::uint8_t {
  one,       // neither query nor key: the tile's sum
  keys,      // the key alone: sums of columns
  queries,   // the query alone: sums of rows
  key_rows,  // the last index is kv_idx, and no other depends on the key: rows of neighbours
  any,
};

struct ReadGradient {
  bool of_weight = false;     // of the weight mod, else of the score mod
  std::vector<Expr> indices;  // empty: a param, or a capture of rank 0
  Expr slope;                 // of the mod by the read; simplified
  ReadPlace place{};
};

/// The gradient of one capture or param.
struct CaptureSum {
  std::string name;
  bool param = false;
  Dims shape;
  std::int64_t count = 0;           // of elements
  std::vector<ReadGradient> reads;  // none: no mod depends on it smoothly
  // Whether each element of the gradient is a sum over one sequence, one query head or one key alone. With one sequence
  // of_sequence is true, with one kv head of_head.
  bool of_sequence = false, of_head = false, of_key = false;
};

/// The gradients of captures and params that the problem wants, captures first. Bindings: the captures' shapes.
std::vector<CaptureSum> capture_sums(const problem::AttentionProblem& problem, const Bindings& bindings);

/// "d_captures['bias']"
std::string named(const CaptureSum& sum);
/// Where the sum is stored.
const TensorView& gradient_of(const CaptureSum& sum, const BackwardTensors& tensors);

}  // namespace heddle::plan
