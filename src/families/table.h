// The table of kernel families, and all that planning and preparing ask of it: which families compute a problem on its
// device, in which order their plans are tried, and the kernel of a plan.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"
#include "plan/setting.h"

namespace heddle::plan {

struct Family {
  std::string_view name;
  BackendChoice backend;
  problem::Pass pass;
  /// With batch_invariant it goes before the families that take any number of queries. Else predicted times decide.
  bool of_few_queries = false;
  /// Empty if the family takes the problem; else a sentence that names the given value and the accepted ones. Null: it
  /// takes all problems.
  std::string (*refuses)(const Request&) = nullptr;
  /// The plans that would do, best first, at least one. Throws Error(unsupported) where nothing fits.
  std::vector<Choice> (*candidates)(const Request&, const RowsOf&);
  /// More of them, which the model has no reason to put first but a measurement may. Null: none.
  std::vector<Choice> (*variants)(const Request&, const RowsOf&) = nullptr;
  /// The lists of a plan's tiles. Null: its launches upload none.
  TileSchedule (*schedule)(const Plan&, const Request&, const BlockMask*) = nullptr;
  /// explain()'s lines about a plan's kernel. Null: none.
  std::vector<Setting> (*settings)(const Plan&) = nullptr;
  /// Says that the family's kernels have not run on a chip like the request's, and where they have run: a sentence.
  /// Empty, or a null pointer: they have.
  std::string (*untried)(const Request&, const Plan&) = nullptr;
  /// The kernel of a plan. Throws backend::Rejected when it is not acceptable but that of another plan may be.
  std::unique_ptr<backend::Kernel> (*prepare)(const backend::PrepareArguments&);
};

/// The families of this build, of every backend and pass; those of one backend and pass in order of preference.
std::span<const Family> families();

/// The family of that name; null: the backend has none.
const Family* family_of(std::string_view name, BackendChoice backend);

/// The plans that would do, best first, at least one: the engine takes the next where the first cannot be prepared.
/// Automatic is the backend of the tensors' device. Throws Error(unsupported), with the reason of each family, when
/// there is none: never a family on another device. With `variants` the list ends with plans that are only worth
/// measuring.
std::vector<Choice> choose(const Request& request, const RowsOf& rows_of, bool variants = false);

/// The plan with the lists of its tiles over these rows: made anew where it has none.
Plan with_schedule(Plan plan, const Request& request, const BlockMask* block_mask);

/// The kernel of a plan, over the lists of its tiles. Throws backend::Rejected when it is not acceptable but that of
/// another plan may be.
std::unique_ptr<backend::Kernel> prepare_kernel(const Plan& plan, const BlockMask* block_mask, const Request& request,
                                                const Bindings& bindings);

}  // namespace heddle::plan
