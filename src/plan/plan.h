// Plan: how an attention will be computed. Plain data, printable; every tile size and byte count of later stages comes
// from here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/caps.h"
#include "heddle/attention.h"
#include "problem/problem.h"

namespace heddle::plan {

struct Plan {
  BackendChoice backend = BackendChoice::automatic;
  std::string family;  // "cpu_forward", "reference"
  BlockSize tile;      // queries x keys of one kernel step; block masks built for this plan have these blocks
  std::int64_t workspace_bytes = 0;
  int threads = 1;
  std::vector<std::string> rejected;  // alternatives, each with its reason
};

std::string to_string(const Plan& plan);

/// Picks the kernel family and its numbers: the CPU family unless the reference is asked for. `threads` 0: all cores.
Plan choose(const problem::AttentionProblem& problem, BackendChoice wanted, int threads, const device::Caps& caps);

}  // namespace heddle::plan
