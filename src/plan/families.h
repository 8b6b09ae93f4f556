// The table of kernel families.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace heddle::plan {

struct Family {
  std::string_view name;  // Plan::family
  BackendChoice backend;
  problem::Pass pass;
  /// Empty when the family takes the problem; else why not: a sentence that names what is not taken and what is.
  std::string (*refuses)(const Request&);
  /// The plans that would do, best first, at least one. Throws Error(unsupported) where nothing fits.
  std::vector<Choice> (*candidates)(const Request&, const RowsOf&);
  /// The lists of a plan's tiles. Null: its launches upload none.
  TileSchedule (*schedule)(const Plan&, const Request&, const BlockMask*);
};

/// Of every backend and pass; of one, the preferred first.
std::span<const Family> families();

}  // namespace heddle::plan
