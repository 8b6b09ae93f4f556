// Plan: how an attention will be computed. Plain data; every tile size, byte count, form and order of later stages
// comes from here, and no later stage chooses again. A family that is prepared may work out again what follows from
// these alone: lists over the rows of a mask that was updated, a backward's derivatives.
#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/caps.h"
#include "heddle/attention.h"
#include "plan/access/tensor_copies.h"
#include "plan/mods/kernel_mods.h"
#include "plan/tiles/rows_of.h"
#include "plan/tiles/schedule.h"
#include "problem/problem.h"

namespace heddle::plan {

/// The cost model's prediction of one run.
struct Prediction {
  double seconds = 0;
  double flops = 0;  // of the products: 2 (Dqk + Dv) an element that attends (partial blocks count by their area)
  double bytes = 0;  // through memory: each input read once, a mask's stored bits too, each output written once
  // Rates that the seconds were reckoned with, of all cores or multiprocessors together; 0: no single rate.
  double flops_per_second = 0, bytes_per_second = 0;
};

/// The form of each mod, and why: a sentence each; empty without the mod.
struct ModForms {
  std::string score, mask, weight;
  std::string places{};  // which rows and keys kernels find by granules; empty: none
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

struct Family;  // families/table.h

struct Plan {
  const Family* family = nullptr;  // whose kernel this is; choose() writes it
  BlockSize tile;                  // queries x keys of one kernel step
  std::int64_t workspace_bytes = 0;
  int threads = 1;          // CPU
  int device = 0;           // GPU: its index
  int multiprocessors = 0;  // GPU: a launch has no more CTAs; 0: no GPU
  int grid = 0;             // GPU: CTAs of the launch
  std::any family_part{};   // a type of src/families: the configuration of the family's kernels; see part()
  int packed_heads = 0;     // query heads that share a tile of it; 0: tiles are of one
  int packed_queries = 0;   // queries of each of them
  TileOrder order{};        // of its tiles
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
  bool has_alternative = true;           // false: a kernel that spills is taken, since no plan has one that does not
  std::string untried{};                 // the family's kernels have not run on a chip like this one: a sentence
  bool yields = false;                   // plans of other families go before it, unless it is predicted much faster
  std::vector<std::string> rejected;     // alternatives that do not stand before it, each with its reason

  /// The family's part of a plan whose family has a Part. Throws std::bad_any_cast for another family's plan.
  template <class Part>
  const Part& part() const {
    return std::any_cast<const Part&>(family_part);
  }
  template <class Part>
  Part& part() {
    return std::any_cast<Part&>(family_part);
  }
  template <class Part>
  bool has() const {
    return family_part.type() == typeid(Part);
  }
};

/// A plan and the rows it walks.
struct Choice {
  Plan plan;
  std::shared_ptr<const BlockMask> block_mask;  // null: everything attends
};

/// The arguments of planning.
struct Request {
  const problem::AttentionProblem& problem;
  const AttentionTensors& tensors;  // strides, and how far addresses are aligned
  const AttentionOptions& options;
  const device::Machine& machine;
  const BackwardTensors* backward = nullptr;  // of a backward; `tensors` has what it shares with its forward
};

}  // namespace heddle::plan
