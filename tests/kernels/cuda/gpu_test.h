// Shared by test programs of the GPU: the skip where there is none, and how many of their cases run.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_case.h"
#include "sample.h"
#include "scoped_environment.h"

namespace heddle::test {

/// Skipped, with the reason, where no GPU is. Forwards take forward_sm90, if the environment names no other family:
/// the planner gives few queries to another.
class GpuTest : public testing::Test {
  static const char* family() {
    const char* given = std::getenv("HEDDLE_FAMILY");
    return given != nullptr && *given != '\0' ? given : gpu_backend() == BackendChoice::cuda ? "forward_sm90" : nullptr;
  }
  const ScopedVariable family_{"HEDDLE_FAMILY", family()};

 protected:
  void SetUp() override {
    if (const std::string reason = gpu_missing(); !reason.empty()) GTEST_SKIP() << reason;
    before_ = asked_kernels();
  }
  /// A case whose kernel the compiler refuses takes another kernel. A case that HEDDLE_FAMILY's family refuses does not
  /// run. The test fails if these are many, because it then says little.
  void TearDown() override {
    const AskedKernels now = asked_kernels();
    const int asked = now.asked - before_.asked, refused = now.refused - before_.refused,
              dropped = now.dropped - before_.dropped, planned = now.planned - before_.planned,
              left_out = now.left_out - before_.left_out;
    if (refused > 0) std::printf("%d of %d cases took another kernel than the one asked for\n", refused, asked);
    if (dropped > 0) std::printf("%d cases ask for tiles of forward_sm90; HEDDLE_FAMILY takes others\n", dropped);
    if (left_out > 0) std::printf("%d of %d cases did not run: the family refuses them\n", left_out, planned);
    EXPECT_LE(2 * refused, asked);
    EXPECT_LE(2 * left_out, planned);
  }

 private:
  AskedKernels before_{};
};

/// HEDDLE_TEST_REDUCED: few and small cases, for compute-sanitizer.
inline bool reduced() { return is_reduced(); }

/// All, or every nth where the tests are reduced.
inline std::vector<CaseSpec> some_if_reduced(const std::vector<CaseSpec>& specs, std::size_t nth = 7) {
  std::vector<CaseSpec> some;
  for (std::size_t i = 0; i < specs.size(); i += reduced() ? nth : 1) some.push_back(specs[i]);
  return some;
}

/// These, side by side, against the reference.
inline void run_all(const std::vector<CaseSpec>& specs, std::size_t nth_if_reduced = 7) {
  for_each_spec(some_if_reduced(specs, nth_if_reduced), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

/// run_all(); then again the cases with pages, which are now read where they lie.
inline void run_all_and_in_place(std::vector<CaseSpec> specs, std::size_t nth_if_reduced = 7) {
  run_all(specs, nth_if_reduced);
  if (gpu_backend() == BackendChoice::cpu) return;
  std::erase_if(specs, [](const CaseSpec& spec) {
    const bool gathers = spec.page_rows % 8 != 0;
    return spec.page_rows == 0 || (gathers && spec.tile && spec.tile->q == 192);  // three warpgroups do not
  });
  const ScopedVariable nothing("HEDDLE_COPY_BYTES", "0");
  run_all(specs, nth_if_reduced);
}

}  // namespace heddle::test
