#include "reliability/gpu_calls.h"

#include <array>
#include <cstdlib>
#include <memory>

#include "backend/cuda/driver/fake_driver.h"
#include "heddle/heddle.h"
#include "reliability/drawn_arguments.h"

namespace heddle::test {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

// The log of a kernel that is made well, and all kernels of the text, without code (jit/fake_nvrtc.cc).
constexpr const char* kWellMade =
    "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
    "//log ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "//log ptxas info    : Used 168 registers, used 1 barriers\n//kernels\n";

struct GpuCall {
  std::int64_t heads, q_rows, kv_rows, dim;
  DType dtype;
  std::string score, mask;
  bool backward;
};

Tensor there(DType dtype, const Dims& shape) { return Tensor::empty_on(kGpu, dtype, shape); }

Symbols symbols() {
  Symbols names;
  names.params["window"] = ExprType::i32;
  return names;
}

AttentionOptions options_of(const GpuCall& call, std::int32_t window) {
  AttentionOptions options;
  options.score_mod = parse(call.score, symbols());
  options.mask_mod = parse(call.mask, symbols());
  options.bindings.params["window"] = window;
  return options;
}

template <class Tensors>
void plan_and_run(const GpuCall& call, const Tensors& tensors) {
  AttentionPlan plan(tensors, options_of(call, 20));
  const Tensor workspace = there(DType::u8, {plan.workspace_bytes()});
  plan.run(tensors, {.workspace = workspace.data()});
  plan.update(options_of(call, 30).bindings);
  plan.run(tensors, {.workspace = workspace.data()});
}

void make(const GpuCall& call) {
  const Dims of_q = {1, call.heads, call.q_rows, call.dim}, of_k = {1, 1, call.kv_rows, call.dim};
  const Tensor q = there(call.dtype, of_q), k = there(call.dtype, of_k), v = there(call.dtype, of_k),
               o = there(call.dtype, of_q), lse = there(DType::f32, {1, call.heads, call.q_rows});
  const AttentionTensors tensors{.q = q, .k = k, .v = v, .o = o, .lse = lse.view()};
  if (!call.backward) {
    plan_and_run(call, tensors);
    attention_into(tensors, options_of(call, 20));  // by the plan cache
    return;
  }
  const Tensor dq = there(call.dtype, of_q), dk = there(call.dtype, of_k), dv = there(call.dtype, of_k);
  plan_and_run(
      call,
      BackwardTensors{
          .q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = q, .dq = dq.view(), .dk = dk.view(), .dv = dv.view()});
}

}  // namespace

void take_fake_gpu() {
  ::setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
  ::setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1);
  ::setenv("FAKE_NVRTC_LINES", kWellMade, 1);
  ::setenv("HEDDLE_HOST_MASKS", "1", 1);  // the fake's kernels find no rows
}

Call draw_on_gpu(std::mt19937_64& random, const CallSettings&) {
  constexpr std::array kDims = {32, 64, 128};
  const std::string number = std::to_string(drawn(random, 1, 1'000'000));
  const GpuCall call{.heads = drawn(random, 1, 4),
                     .q_rows = drawn(random, 1, 300),
                     .kv_rows = drawn(random, 1, 300),
                     .dim = kDims[random() % kDims.size()],
                     .dtype = drawn(random, 0, 1) == 0 ? DType::bf16 : DType::f16,
                     .score = "score + " + number + ".0 / f32(1 + abs(q_idx - kv_idx))",
                     .mask = "abs(q_idx - kv_idx) < window",
                     .backward = drawn(random, 0, 2) == 0};
  return [call] {
    make(call);
    return std::uint64_t{1};
  };
}

GpuHeld gpu_held() {
  const cuda::FakeDriver* const fake = cuda::fake_driver(FAKE_DRIVER);
  if (fake == nullptr) return {};
  return {.allocations = fake->allocations - fake->frees,
          .modules = fake->modules - fake->unloads,
          .wrong = fake->wrong_frees};
}

}  // namespace heddle::test
