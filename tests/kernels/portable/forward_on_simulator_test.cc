// The portable forward on AMD's chips: compiled by clang, executed by the simulator, judged by the one criterion.
// Nothing may be wrong with a run: no missing wait, race, access out of bounds, undefined value or duplicate store.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/portable/simulated_kernel.h"

namespace heddle::test {
namespace {

using shared::FragmentKind;

struct Chip {
  const char* name;
  FragmentKind fragments;
};

struct Shape {
  std::int64_t q_rows, kv_rows, dim, group;
  int candidate = 0;
  std::optional<int> splits{};
};

class ForwardOnSimulator : public ::testing::TestWithParam<Chip> {};
INSTANTIATE_TEST_SUITE_P(, ForwardOnSimulator,
                         ::testing::Values(Chip{"gfx1100", FragmentKind::gfx11}, Chip{"gfx1201", FragmentKind::gfx12},
                                           Chip{"gfx90a", FragmentKind::gfx9}, Chip{"gfx942", FragmentKind::gfx9}),
                         [](const auto& chip) { return std::string(chip.param.name); });

struct Types {
  DType q, k, v;
};

void run_and_judge(const Shape& shape, const Types& types, std::uint64_t seed, FragmentKind fragments) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.q_rows = shape.q_rows;
  spec.kv_rows = shape.kv_rows;
  spec.qk_dim = spec.v_dim = shape.dim;
  spec.q_dtype = types.q, spec.k_dtype = types.k, spec.v_dtype = types.v;
  spec.group = shape.group;
  spec.kv_heads = 1;
  spec.batch = 1;
  AttentionCase attention_case(spec);
  const char* const chip = ForwardOnSimulator::GetParam().name;
  HostRun run;
  run.fragments = fragments;
  run.candidate = shape.candidate;
  run.splits = shape.splits;
  run.execute = [&](const KernelLaunch& launch) { run_on_chip(chip, launch); };
  run_on_host_and_judge(attention_case, run);
}

TEST_P(ForwardOnSimulator, IsRight) {
  const Shape shapes[] = {{64, 64, 64, 1},   {100, 77, 64, 1},    {33, 200, 64, 4},      {1, 300, 64, 4, 0, 2},
                          {130, 65, 128, 1}, {130, 65, 40, 1, 1}, {70, 100, 64, 1, 1, 3}};
  std::uint64_t seed = 0;
  for (const Shape& shape : shapes) {
    const DType type = ++seed % 2 == 0 ? DType::bf16 : DType::f16;
    run_and_judge(shape, {type, type, type}, seed, GetParam().fragments);
  }
}

// They become f16 as they are loaded.
TEST_P(ForwardOnSimulator, IsRightIn8Bits) {
  const FragmentKind matrix = GetParam().fragments;
  run_and_judge({40, 70, 64, 1}, {DType::bf16, DType::e4m3, DType::e5m2}, 8, matrix);
  run_and_judge({2, 130, 128, 4, 0, 2}, {DType::e4m3, DType::e5m2, DType::e4m3}, 9, matrix);
  run_and_judge({20, 40, 43, 1}, {DType::e5m2, DType::e4m3, DType::e4m3}, 10, matrix);
  // Where there are no matrix instructions.
  run_and_judge({17, 40, 43, 1}, {DType::bf16, DType::e4m3, DType::e5m2}, 11, FragmentKind::fma);
}

}  // namespace
}  // namespace heddle::test
