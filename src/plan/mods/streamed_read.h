// Captures that a kernel may stream. A bias over queries and keys, say, then comes in tiles by TMA beside the keys;
// otherwise the kernel reads each element.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "heddle/expr.h"
#include "heddle/tensor.h"
#include "problem/problem.h"

namespace heddle::plan {

/// A read of a capture of f32, f16 or bf16 whose last index is kv_idx, one of whose others is q_idx, and whose
/// remaining ones, two at most, depend on b and h alone.
struct StreamedRead {
  Expr read;
  std::string capture;
  DType dtype{};
  int q_axis = 0;
  struct Axis {
    int axis;
    Expr index;
  };
  std::vector<Axis> others;

  /// All sequences read the same tiles of that capture.
  bool serves_every_batch(const ConstTensorView& view) const;
};
/// Rows and columns of a capture that tiles may hold, as far as the host knows: q_idx and kv_idx end here.
struct TileReach {
  std::int64_t q = std::numeric_limits<std::int64_t>::max(), kv = q;
};
TileReach tile_reach(const problem::AttentionProblem& problem);
/// The part of the capture in which its tiles are found: [others[1], others[0], q, kv], or 1 for others that there are
/// not.
ConstTensorView in_tiles(const StreamedRead& read, const ConstTensorView& view, const TileReach& reach);

/// The first of a mod; nothing where there is none.
std::optional<StreamedRead> streamed_read(const Expr& mod);

/// Empty when TMA takes that tensor; else why not, a sentence: it has to have a unit last stride, others that are
/// multiples of 16 bytes from 0 on, and an address that 16 divides.
std::string refuses_streaming(const StreamedRead& read, const ConstTensorView& view);
/// Refuses a copy in rows that TMA takes if it has no unit last stride.
std::string refuses_copy(const StreamedRead& read, const ConstTensorView& view);

}  // namespace heddle::plan
