// AttentionPlan on a GPU: masks that read captures and params, and updates, which bring other values.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "expect_error.h"
#include "kernels/cuda/gpu_plan_cases.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

TEST_F(GpuPlan, FollowsItsParamsWhenUpdated) {
  GpuCase c(spec_of_plan(31, "window_by_params"));
  AttentionPlan plan(c.tensors(), c.options());
  Bindings wide = c.options().bindings;
  wide.params["before"] = 222;
  expect_error([&] { plan.run(c.tensors(), {.workspace = c.workspace(), .bindings = &wide}); },
               ErrorCode::invalid_argument, HasSubstr("before"));
  plan.update(wide);
  c.options().bindings = wide;
  c.upload();
  plan.run(c.tensors(), {.workspace = c.workspace()});
  c.download();
  judge(c.host());
}

TEST_F(GpuPlan, DrawsTilesThatAnUpdateLetsAttend) {
  CaseSpec spec = many_tiles(35);
  spec.mask = "";
  GpuCase c(spec);
  c.options().mask_mod = leaf::q_idx() < param("limit", ExprType::i32);
  c.options().bindings.params["limit"] = 0;
  AttentionPlan plan(c.tensors(), c.options());
  EXPECT_EQ(plan.workspace_bytes(), 64);
  c.options().bindings.params["limit"] = 100;
  plan.update(c.options().bindings);
  c.upload();
  plan.run(c.tensors(), {.workspace = c.workspace()});
  c.download();
  judge(c.host());
}

TEST_F(GpuPlan, ReadsCapturesOfMasksThere) {
  GpuCase c(spec_of_plan(32, "documents"));
  const Tensor ids = Tensor::adopt(TensorView(const_cast<void*>(c.options().bindings.captures["ids"].data), DType::i64,
                                              c.options().bindings.captures["ids"].shape),
                                   nullptr)
                         .to(kGpu);
  AttentionOptions on_gpu = c.options();
  on_gpu.bindings.captures["ids"] = ids;
  const AttentionPlan plan(c.tensors(), on_gpu);
  c.upload();
  plan.run(c.tensors(), {.workspace = c.workspace()});
  c.download();
  judge(c.host());
}

/// Documents of another layout in the same memory.
void change_documents(std::vector<std::int64_t>& ids, std::int64_t length) {
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i) / length;
}

// A mask's bits stay the planned ones until an update, which brings others without a compilation: with other rows of
// blocks, more partial ones than before, and captures elsewhere.
TEST_F(GpuPlan, FollowsCapturesOfItsMaskWhenUpdated) {
  for (const char* stored : {"256M", "0"}) {
    const ScopedVariable limit("HEDDLE_MASK_BYTES", stored);
    GpuCase c(spec_of_plan(34, "documents"));
    const Dims shape = c.options().bindings.captures["ids"].shape;
    std::vector<std::int64_t> ids(static_cast<std::size_t>(shape[0]));
    c.options().bindings.captures["ids"] = {ids.data(), DType::i64, shape};
    AttentionOptions there = c.options();
    const cuda::DeviceMemory first(0, ids.size() * sizeof ids[0]), second(0, ids.size() * sizeof ids[0]);
    const auto place = [&](const cuda::DeviceMemory& memory, std::int64_t length) {
      change_documents(ids, length);
      cuda::copy_and_wait(0, memory.data(), ids.data(), memory.bytes());
      there.bindings.captures["ids"] = {memory.data(), DType::i64, shape, kGpu};
    };
    place(first, 50);
    AttentionPlan plan(c.tensors(), there);
    EXPECT_THAT(plan.explain(), HasSubstr(*stored == '0' ? "are found in each run" : "partial blocks are stored"));
    const auto run = [&] {
      c.upload();
      plan.run(c.tensors(), {.workspace = c.workspace()});
      c.download();
      judge(c.host());
    };
    run();
    const std::int64_t compiled = cuda::jit::counts().compiled;
    for (const auto& [memory, length] : {std::pair(&first, std::int64_t{7}), {&second, std::int64_t{100}}}) {
      place(*memory, length);
      plan.update(there.bindings);
      run();
    }
    EXPECT_EQ(cuda::jit::counts().compiled, compiled);
  }
}

}  // namespace
}  // namespace heddle::test
