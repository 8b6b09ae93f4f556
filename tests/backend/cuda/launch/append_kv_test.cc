// append_kv of a GPU's tensors: the kernel compiles without spills, a launch a call, one module a device; and what it
// refuses.
#include <fmt/format.h>

#include "backend/cuda/jit/cuda_jit.h"
#include "backend/device_code/headers.h"
#include "backend/gpu/texts.h"
#include "expect_error.h"
#include "heddle/heddle.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

class AppendKv : public LaunchCase {
 protected:
  Tensor k_ = Tensor::empty_on(kFirst, DType::bf16, {2, 3, 5, 64}),
         cache_ = Tensor::empty_on(kFirst, DType::e4m3, {2, 3, 50, 64}),
         values_ = Tensor::empty_on(kFirst, DType::e4m3, {2, 3, 50, 64}),
         lengths_ = Tensor::empty_on(kFirst, DType::i32, {2});

  void append(void* stream = nullptr) const {
    append_kv({.k = k_, .k_cache = cache_, .v = k_, .v_cache = values_.view()},
              {.kv_lengths = lengths_, .stream = stream});
  }
};

TEST_F(AppendKv, CompilesWithoutSpills) {
  using enum shared::StorageType;
  for (const gpu::AppendTypes& types : {gpu::AppendTypes{bf16, bf16, bf16, mixed, mixed},
                                        {bf16, e4m3, e5m2, bf16, f32},
                                        {f16, f16, f16, f16, f16},
                                        {f32, f64, bf16, e4m3, f64},
                                        {e4m3, e4m3, e4m3, mixed, mixed}}) {
    const gpu::KernelText text = gpu::append_kv_text(types);
    const auto cubin = jit::build(
        {.name = text.name, .text = text.text, .headers = device_code::cuda_headers(), .architecture = "sm_90a"});
    EXPECT_EQ(cubin->spill_bytes, 0);
    fmt::print("{}: {} registers, {} bytes of stack, {:.0f} ms\n", text.name, cubin->registers, cubin->stack_bytes,
               cubin->compile_ms);
  }
}

TEST_F(AppendKv, LaunchesOnceACallFromOneModule) {
  append();
  const int launches = fake().launches, modules = fake().modules, waits = fake().synchronizes;
  const FakeStream stream;
  append(stream.handle());
  append();
  EXPECT_EQ(fake().launches, launches + 2);
  EXPECT_EQ(fake().modules, modules);
  EXPECT_EQ(fake().synchronizes, waits);
  const FakeStream elsewhere(kSecond);
  expect_error([&] { append(elsewhere.handle()); }, ErrorCode::device, testing::HasSubstr("launching append_kv"));
}

TEST_F(AppendKv, RefusesWhatIsElsewhere) {
  const int launches = fake().launches;
  const Tensor own = lengths_;
  lengths_ = Tensor::zeros(DType::i32, {2});
  expect_error([&] { append(); }, ErrorCode::invalid_argument,
               "kv_lengths is on the CPU; cuda:0 is accepted, where k is");
  lengths_ = Tensor::adopt({own.data(), DType::i32, {2}, kSecond}, nullptr);
  expect_error([&] { append(); }, ErrorCode::invalid_argument,
               "kv_lengths is on cuda:1; cuda:0 is accepted, where k is");
  const Tensor host = Tensor::zeros(DType::i32, {2});
  lengths_ = Tensor::adopt({host.data(), DType::i32, {2}, kFirst}, nullptr);
  expect_error([&] { append(); }, ErrorCode::invalid_argument,
               "kv_lengths is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted");
  EXPECT_EQ(fake().launches, launches);
}

}  // namespace
}  // namespace heddle::cuda
