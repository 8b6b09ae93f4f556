// Plan: how an attention will be computed. Plain data, printable; every tile size and byte count of later stages comes
// from here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/caps.h"
#include "heddle/attention.h"
#include "problem/problem.h"
#include "shared/copied_rows.h"
#include "shared/forward_sm90.h"

namespace heddle::plan {

/// What the cost model expects of one run.
struct Prediction {
  double seconds = 0;
  double flops = 0;  // of the products: 2 (Dqk + Dv) an element that attends (partial blocks count by their area)
  double bytes = 0;  // through memory: each input read once, a mask's stored bits too, each output written once
};

/// In which order the CTAs of a GPU draw tiles: heads in sections of so many bytes of keys and values, in L2 together
/// with the queries and what the next section loads, in each the longest tiles first; and the shortest of all at the
/// end. Measured (bench_forward_sm90_variants): sections of 4 to 32 MB are within 2 % of each other; on causal masks
/// the last share gains 2 to 10 % over none, and half of it 1 % less.
struct TileOrder {
  std::int64_t section_bytes = 16'000'000;
  double last_share = 0.12;   // of all work, in the tiles that come last
  bool batch_inside = false;  // the same tile of all sequences, then the next: they read the same of a streamed capture
};

/// A tensor that each run first copies into its workspace, row after row, and reads there.
struct TensorCopy {
  Dims shape;                    // of pages: sequences, heads, keys of the longest, columns
  std::array<bool, 3> shared{};  // the first three axes: one entry serves all
  std::int64_t row_bytes = 0;    // from a row to the next: 16 divides it
  bool paged = false;            // the table says where rows are
  shared::CopiedSpan span{};     // of padded sequences the rows that they have
  std::int64_t offset = 0;       // in the workspace

  /// Entries of one of the first three axes that there are in memory.
  std::int64_t stored(int axis) const { return shared[static_cast<std::size_t>(axis)] ? 1 : shape[axis]; }
  std::int64_t bytes() const { return stored(0) * stored(1) * stored(2) * row_bytes; }
};
using TensorCopies = std::array<std::optional<TensorCopy>, 4>;  // of q, k, v and the capture that is streamed
inline constexpr std::size_t kCopiedCapture = 3;

struct Plan {
  BackendChoice backend = BackendChoice::automatic;
  std::string family;  // "cpu_forward", "reference", "forward_sm90"
  BlockSize tile;      // queries x keys of one kernel step
  std::int64_t workspace_bytes = 0;
  int threads = 1;                                  // CPU
  int device = 0;                                   // CUDA: its index
  int multiprocessors = 0;                          // CUDA: a launch has no more CTAs
  int grid = 0;                                     // CUDA: CTAs of the launch
  std::optional<shared::ForwardSm90Config> sm90{};  // family forward_sm90
  int packed_heads = 0;                             // query heads that share a tile of it; 0: tiles are of one
  TileOrder order{};                                // of its tiles
  std::optional<Prediction> predicted{};
  std::string mask{};  // where reads or long work decide it: whether its bits are stored, or why not
  TensorCopies copies{};
  std::vector<std::string> access{};  // of tensors that TMA does not bring from where they are: how, and why
  std::vector<std::string> rejected;  // alternatives that do not stand before it, each with its reason
};

std::string to_string(const Plan& plan);

/// A plan and the rows it walks.
struct Choice {
  Plan plan;
  std::shared_ptr<const BlockMask> block_mask;  // null: everything attends
};

/// Gives the mask's rows in blocks of that size: the caller's own rows where these fit, else rows built from mask_mod;
/// null where everything attends.
using RowsOf = std::function<std::shared_ptr<const BlockMask>(BlockSize)>;

/// The plans that would do, best first, at least one: a backend that cannot prepare the first takes the next. Automatic
/// is the backend of the tensors' device. Throws Error(unsupported), with the reason of each family, when there is
/// none: never a family on another device.
std::vector<Choice> choose(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                           const AttentionOptions& options, const device::Machine& machine, const RowsOf& rows_of);

}  // namespace heddle::plan
