// Plan: how an attention will be computed. Plain data; every tile size, byte count, form and list of later stages comes
// from here, and no later stage works one out again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/caps.h"
#include "heddle/attention.h"
#include "plan/access/tensor_copies.h"
#include "plan/cpu_backward_split.h"
#include "plan/mods/kernel_mods.h"
#include "plan/tiles/schedule.h"
#include "problem/problem.h"
#include "shared/backward_mma_config.h"
#include "shared/backward_sm90_config.h"
#include "shared/forward_mma_config.h"
#include "shared/forward_sm90_config.h"

namespace heddle::plan {

/// The cost model's prediction of one run.
struct Prediction {
  double seconds = 0;
  double flops = 0;  // of the products: 2 (Dqk + Dv) an element that attends (partial blocks count by their area)
  double bytes = 0;  // through memory: each input read once, a mask's stored bits too, each output written once
};

/// The form of each mod, and why: a sentence each; empty without the mod.
struct ModForms {
  std::string score, mask, weight;
};

/// Kernels that were measured on this machine, by the names that tune/ gives them.
struct Tuned {
  struct Time {
    std::string kernel;
    double seconds = 0;
  };
  bool now = false;         // while this was planned; else before
  Time chosen;              // this plan's
  std::vector<Time> times;  // the fastest first
  std::string planned;      // the one that the planner's model put first
};

/// The kernels of backward_mma: its passes in the order of their launches, and what the kernels around them are.
struct BackwardMmaKernels {
  std::vector<shared::BackwardMmaConfig> passes;
  shared::BackwardMmaRows rows;
};

struct Plan {
  BackendChoice backend = BackendChoice::automatic;
  std::string family;  // a name of the table (families.h)
  BlockSize tile;      // queries x keys of one kernel step
  std::int64_t workspace_bytes = 0;
  int threads = 1;                                            // CPU
  int device = 0;                                             // GPU: its index
  int multiprocessors = 0;                                    // GPU: a launch has no more CTAs; 0: no GPU
  int grid = 0;                                               // GPU: CTAs of the launch
  std::optional<shared::ForwardSm90Config> forward_sm90{};    // family forward_sm90
  std::optional<shared::BackwardSm90Config> backward_sm90{};  // family backward_sm90
  std::optional<CpuBackwardSplit> cpu_backward{};             // family cpu_backward
  std::optional<shared::ForwardMmaConfig> forward_mma{};      // family forward_mma
  std::optional<BackwardMmaKernels> backward_mma{};           // family backward_mma
  int packed_heads = 0;    // query heads that share a tile of it; 0: tiles are of one
  int packed_queries = 0;  // queries of each of them
  TileOrder order{};       // of its tiles
  std::optional<Prediction> predicted{};
  std::optional<Tuned> tuned{};  // where a measurement chose it
  std::string tuning_trouble{};  // why a measurement was not made, read or kept: a sentence
  KernelMods mods{};             // GPU: what its kernel computes of the mods, and in which form
  ModForms forms{};              // the same as sentences
  /// GPU: the lists that the launch uploads. In the first of several choices, and wherever with_schedule() was;
  /// dropped when a kernel was prepared from them.
  std::shared_ptr<const TileSchedule> schedule{};
  TensorCopies copies{};
  std::vector<std::string> access{};     // of tensors that TMA does not bring from where they are: how, and why
  std::vector<std::string> gradients{};  // of captures, params and sinks: how each is summed
  std::string untried{};                 // the family's kernels have not run on a chip like this one: a sentence
  std::vector<std::string> rejected;     // alternatives that do not stand before it, each with its reason
};

/// A plan and the rows it walks.
struct Choice {
  Plan plan;
  std::shared_ptr<const BlockMask> block_mask;  // null: everything attends
};

/// Gives the mask's rows in blocks of that size: the caller's own rows if they fit, else rows built from mask_mod. Null
/// if everything attends.
using RowsOf = std::function<std::shared_ptr<const BlockMask>(BlockSize)>;

/// The arguments of planning.
struct Request {
  const problem::AttentionProblem& problem;
  const AttentionTensors& tensors;  // strides, and how far addresses are aligned
  const AttentionOptions& options;
  const device::Machine& machine;
  const BackwardTensors* backward = nullptr;  // of a backward; `tensors` has what it shares with its forward
};

/// The plans that would do, best first, at least one: a backend that cannot prepare the first takes the next. Automatic
/// is the backend of the tensors' device. Throws Error(unsupported), with the reason of each family, when there is
/// none: never a family on another device.
/// With `variants` the list ends with plans that are only worth measuring.
std::vector<Choice> choose(const Request& request, const RowsOf& rows_of, bool variants = false);

/// The plan with the lists of its tiles over these rows: made anew where it has none.
Plan with_schedule(Plan plan, const Request& request, const BlockMask* block_mask);

}  // namespace heddle::plan
