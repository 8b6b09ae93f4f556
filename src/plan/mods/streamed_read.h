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

/// A read of an f32, f16 or bf16 capture whose last index is kv_idx. One other index is q_idx; the remaining ones, two
/// at most, depend on b and h alone.
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
/// The part of the capture that holds its tiles: [others[1], others[0], q, kv], with 1 for missing others.
ConstTensorView in_tiles(const StreamedRead& read, const ConstTensorView& view, const TileReach& reach);

/// The first streamed read of a mod; nothing if it has none.
std::optional<StreamedRead> streamed_read(const Expr& mod);

/// Empty when TMA takes that tensor; else why not, a sentence. TMA needs a unit last stride, other strides that are
/// multiples of 16 bytes and not negative, and an address that 16 divides.
std::string refuses_streaming(const StreamedRead& read, const ConstTensorView& view);
/// Refuses a copy in rows that TMA takes if it has no unit last stride.
std::string refuses_copy(const StreamedRead& read, const ConstTensorView& view);

}  // namespace heddle::plan
