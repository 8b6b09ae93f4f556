// Every case that a GPU is to compute (backward_specs.h) has a kernel: of a plan's choices NVRTC accepts one, without
// spills and serialised products. By default a few cases, drawn by HEDDLE_TEST_SEED; under HEDDLE_TEST_FULL all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "heddle/error.h"
#include "kernels/cuda/backward_capture_specs.h"
#include "kernels/cuda/compile_table.h"
#include "kernels/cuda/planned_backward.h"
#include "sample.h"

namespace heddle::test {
namespace {

class CompileListedBackward : public cuda::CompileTable {};

/// Kernels of far scores at wide head dimensions with a row's lse in two words may spill a little: with head dimensions
/// 64 and 256 and an added term each planned one does. The library then takes one that spills, and explain() says so.
constexpr int kFewSpills = 128;
bool spills_little(const std::vector<cuda::jit::Source>& sources) {
  int spilled = 0;
  for (const cuda::jit::Source& source : sources) {
    spilled = std::max(spilled, cuda::jit::build(jit::with_alternative(source, false))->spill_bytes);
  }
  return spilled <= kFewSpills;
}

/// Why NVRTC refuses the choice's kernels; empty: it does not.
std::string refused(const std::vector<cuda::jit::Source>& sources) {
  static std::set<std::string> accepted;
  for (const cuda::jit::Source& source : sources) {
    if (accepted.contains(source.text)) continue;
    try {
      cuda::jit::build(source);
      accepted.insert(source.text);
    } catch (const Error& error) {
      return error.what();
    }
  }
  return {};
}

void expect_kernel(const BackwardSpecs& at) {
  AttentionCase attention_case(at.spec);
  BackwardCase backward_case(attention_case, at.backward);
  SCOPED_TRACE(backward_case.text());
  const BackwardTensors tensors = backward_case.tensors();
  const PlannedBackward planned = plan_backward(tensors, attention_case.options(), at.spec.device_lengths);
  std::string reason;
  for (const plan::Choice& choice : planned.choices) {
    reason = refused(sources_of(planned, choice, tensors, attention_case.options()));
    if (reason.empty()) return;
  }
  const bool far_and_wide = at.spec.far != 0 && std::max(at.spec.qk_dim, at.spec.v_dim) > 128;
  if (far_and_wide && spills_little(sources_of(planned, planned.choices.back(), tensors, attention_case.options()))) {
    return;
  }
  ADD_FAILURE() << reason;
}

TEST_F(CompileListedBackward, HasKernels) {
  std::uint64_t number = 0;
  for (const BackwardList& list : {one_tile(),
                                   ragged_ends(),
                                   masked(),
                                   grouped(),
                                   scored(),
                                   weighted(),
                                   normalized(),
                                   sequences(),
                                   in_granules(),
                                   lengths_there(),
                                   captured_by_keys(),
                                   captured_by_rows(),
                                   captured_by_pairs(),
                                   deterministic(),
                                   sunk(),
                                   shared_tiles(),
                                   dims_types_and_layouts(),
                                   wide_tiles(),
                                   widened(masked()),
                                   widened(grouped()),
                                   widened(scored()),
                                   widened(weighted()),
                                   widened(normalized()),
                                   widened(sequences()),
                                   widened(in_granules()),
                                   widened(sunk()),
                                   wide_dims_types_and_layouts(),
                                   far_scores(),
                                   far_rows(),
                                   far_reads(),
                                   wide_far()}) {
    for (const BackwardSpecs& at : list) {
      if (is_kernel_drawn(number++, 40)) expect_kernel(at);
    }
  }
}

}  // namespace
}  // namespace heddle::test
