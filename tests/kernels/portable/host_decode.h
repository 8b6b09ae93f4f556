// Kernels of decode_mma, compiled by the host's compiler and run there: planned for a GPU that is not there, launched
// over tensors of the host.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/attention_case.h"

namespace heddle::test {

/// How a case is run.
struct DecodeRun {
  std::string_view gpu = "a100";  // of known_gpus.h, that is planned for
  int candidate = 0;              // which of the plans; past their end: the last
  bool by_warpgroups = false;     // of those whose products are warpgroups', if there are any
  bool of_two_kernels = false;    // of those that have a kernel of shared keys besides, if there are any
  std::optional<int> gangs{};     // instead of the planned ones
  bool lengths_there = false;     // the kernel reads lengths and starts as it would from the device's memory
  int runs = 1;                   // in the same workspace
  /// Keys and values that the mask's bounds leave out are NaN, and none of their bytes is read. The mask's bounds rest
  /// on no capture.
  bool poisons = false;
  unsigned seed = 0;  // of the order in which threads run, where there is no case
};

/// How the cases of a grid are run: each value of a list is dealt about equally often.
struct DecodeGrid {
  int count = 0;           // of cases, of which cases_on_host() are taken
  std::uint64_t seed = 0;  // of what is dealt
  std::vector<std::string_view> gpus = {"h200"};
  std::vector<int> candidates = {0};
  std::vector<int> gangs = {1, 2, 3, 5, 9};
  std::vector<int> lengths_there = {0, 1};  // as bools
  std::vector<int> runs = {1, 2};
  bool by_warpgroups = false;
  bool of_two_kernels = false;
  bool batch_invariant = false;
  bool poisons = false;  // but for masks that rest on a capture
};

/// Plans, compiles, runs, and expects everything that each run owes. Throws Error(unsupported) where the family refuses
/// the case.
void run_decode_on_host_and_judge(AttentionCase& c, const DecodeRun& run);

/// Such runs of the cases that `draw` gives.
void run_decode_grid_on_host(const DecodeGrid& grid, const std::function<CaseSpec()>& draw);

/// Plans, compiles and runs, and gives the kernel's name. Throws likewise.
std::string run_decode_on_host(const AttentionTensors& tensors, const AttentionOptions& options, const DecodeRun& run);

}  // namespace heddle::test
