// Rows that are moved on a GPU: the kernel compiles without spills, and a call is a launch.
#include <fmt/format.h>

#include "backend/cuda/jit/cuda_jit.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "backend/device_code/headers.h"
#include "backend/gpu/move_rows_launch.h"
#include "backend/gpu/texts.h"
#include "heddle/heddle.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

class MoveRows : public LaunchCase {};

TEST_F(MoveRows, CompilesWithoutSpills) {
  using shared::StorageType;
  for (const gpu::MoveTypes& types : {gpu::MoveTypes{StorageType::bf16, StorageType::bf16, false},
                                      {StorageType::e4m3, StorageType::e4m3, false},
                                      {StorageType::f32, StorageType::bf16, false},
                                      {StorageType::f64, StorageType::f32, false},
                                      {StorageType::f32, StorageType::f32, true},
                                      {StorageType::f32, StorageType::bf16, true},
                                      {StorageType::f32, StorageType::f64, true},
                                      {StorageType::f64, StorageType::f64, true}}) {
    const gpu::KernelText text = gpu::move_rows_text(types);
    const auto cubin = jit::build(
        {.name = text.name, .text = text.text, .headers = device_code::cuda_headers(), .architecture = "sm_90a"});
    EXPECT_EQ(cubin->spill_bytes, 0) << text.name;
    EXPECT_EQ(cubin->stack_bytes, 0) << text.name;
    fmt::print("{}: {} registers\n", text.name, cubin->registers);
  }
}

TEST_F(MoveRows, LaunchesOnceACallAndNeverWithoutRows) {
  const Tensor from = Tensor::empty_on(kFirst, DType::f32, {1, 2, 50, 64}),
               to = Tensor::empty_on(kFirst, DType::bf16, {1, 2, 50, 64});
  backend::MoveArguments arguments{.from = from, .to = to, .rows = 50};
  gpu::move_rows(cuda_gpu(), arguments);
  const int launches = fake().launches, modules = fake().modules, waits = fake().synchronizes;
  gpu::move_rows(cuda_gpu(), arguments);
  EXPECT_EQ(fake().launches, launches + 1);
  arguments.rows = 0;
  gpu::move_rows(cuda_gpu(), arguments);
  EXPECT_EQ(fake().launches, launches + 1);
  EXPECT_EQ(fake().modules, modules);
  EXPECT_EQ(fake().synchronizes, waits);
}

}  // namespace
}  // namespace heddle::cuda
