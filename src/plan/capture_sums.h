// How a backward sums the gradients of what mods read: plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/differentiate.h"
#include "heddle/backward.h"
#include "plan/mods/kv_start.h"
#include "plan/mods/places.h"
#include "problem/problem.h"

namespace heddle::plan {

/// How the element that a read's gradient belongs to depends on query and key, within a tile of both.
enum class ReadDependence : std::uint8_t {
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
  ReadDependence dependence{};
  // An index outside reads nothing, because an `at` took its fill or a branch was not taken: nothing is added. Else the
  // indices are inside, or the nearest element inside is read.
  bool skips_outside = false;
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
/// `places`: those that the kernel's mods have; indices and slopes read q_idx and kv_idx as positions, too.
std::vector<CaptureSum> capture_sums(const problem::AttentionProblem& problem, const Bindings& bindings,
                                     const Places& places = {});

/// A read as kernels compute it: by position (mods/kv_start.h), and simplified.
struct SummedRead {
  int sum = 0;  // its number among the capture_sums()
  bool of_weight = false;
  std::vector<Expr> indices;
  Expr slope;
  bool skips_outside = false;  // as ReadGradient says
};
SummedRead summed_read(int sum, const ReadGradient& read, const problem::AttentionProblem& problem,
                       const KvStart& start);

/// All expressions of reads, for a layout of their captures and params. Read: derived from SummedRead.
template <class Read>
std::vector<Expr> expressions_of(const std::vector<Read>& reads) {
  std::vector<Expr> all;
  for (const SummedRead& read : reads) {
    all.push_back(read.slope);
    all.insert(all.end(), read.indices.begin(), read.indices.end());
  }
  return all;
}

/// "d_captures['bias']"
std::string named(const CaptureSum& sum);
/// Where the sum is stored.
const TensorView& gradient_of(const CaptureSum& sum, const BackwardTensors& tensors);

}  // namespace heddle::plan
