// merge_states of a GPU's tensors: the kernel compiles without spills, a launch a call, one module a device; and what
// it refuses.

#include <fmt/format.h>

#include "backend/cuda/jit/cuda_jit.h"
#include "backend/device_code/headers.h"
#include "backend/gpu/texts.h"
#include "expect_error.h"
#include "heddle/heddle.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

class MergeStates : public LaunchCase {
 protected:
  const Dims shape_{2, 3, 50, 64}, rows_{2, 3, 50};
  Tensor a_ = Tensor::empty_on(kFirst, DType::f32, shape_), b_ = Tensor::empty_on(kFirst, DType::bf16, shape_),
         o_ = Tensor::empty_on(kFirst, DType::bf16, shape_), lse_a_ = Tensor::empty_on(kFirst, DType::f32, rows_),
         lse_b_ = Tensor::empty_on(kFirst, DType::f64, rows_), lse_ = Tensor::empty_on(kFirst, DType::f32, rows_);

  void merge(const ConstTensorView& part, void* stream = nullptr) const {
    merge_states(std::vector<ConstTensorView>{a_, part}, std::vector<ConstTensorView>{lse_a_, lse_b_}, o_, lse_.view(),
                 stream);
  }
};

TEST_F(MergeStates, CompilesWithoutSpills) {
  using shared::StorageType;
  for (const auto& [parts, output] : {std::pair(StorageType::f64, StorageType::f64),
                                      {StorageType::f32, StorageType::bf16},
                                      {StorageType::bf16, StorageType::e4m3},
                                      {StorageType::e4m3, StorageType::f32},
                                      {StorageType::mixed, StorageType::f16}}) {
    const gpu::KernelText text = gpu::merge_states_text(parts, output);
    const auto cubin = jit::build(
        {.name = text.name, .text = text.text, .headers = device_code::cuda_headers(), .architecture = "sm_90a"});
    EXPECT_EQ(cubin->spill_bytes, 0);
    fmt::print("{} registers, {} bytes of stack, {:.0f} ms\n", cubin->registers, cubin->stack_bytes, cubin->compile_ms);
  }
}

TEST_F(MergeStates, LaunchesOnceACallFromOneModule) {
  merge(b_);
  const int launches = fake().launches, modules = fake().modules, waits = fake().synchronizes;
  const FakeStream stream;
  merge(b_, stream.handle());
  merge(b_);
  EXPECT_EQ(fake().launches, launches + 2);
  EXPECT_EQ(fake().modules, modules);
  EXPECT_EQ(fake().synchronizes, waits);
  const FakeStream elsewhere(kSecond);
  expect_error([&] { merge(b_, elsewhere.handle()); }, ErrorCode::device, testing::HasSubstr("launching merge_states"));
}

TEST_F(MergeStates, RefusesWhatIsElsewhereOrTooMuch) {
  const int launches = fake().launches;
  const Tensor host = Tensor::empty(DType::bf16, shape_), other = Tensor::empty_on(kSecond, DType::bf16, shape_);
  expect_error([&] { merge(host); }, ErrorCode::invalid_argument,
               "o is on cuda:0 and o_parts[1] on the CPU; one device for all is accepted");
  expect_error([&] { merge(other); }, ErrorCode::invalid_argument,
               "o is on cuda:0 and o_parts[1] on cuda:1; one device for all is accepted");
  const ConstTensorView lies(host.data(), DType::bf16, shape_, host.view().strides, kFirst);
  expect_error([&] { merge(lies); }, ErrorCode::invalid_argument,
               "o_parts[1] is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted");
  const std::vector<ConstTensorView> parts(65, a_), sums(65, lse_a_);
  expect_error([&] { merge_states(parts, sums, o_); }, ErrorCode::unsupported,
               "o_parts has 65 parts; on a GPU up to 64 are accepted (merge some of them first)");
  EXPECT_EQ(fake().launches, launches);
}

}  // namespace
}  // namespace heddle::cuda
