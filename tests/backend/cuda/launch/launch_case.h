// Attention in the memory of the fake driver's devices (driver/fake_driver.h): what whole plans hand to the driver. The
// driver runs no kernel, so the compiler is one that makes kernels without code (jit/fake_nvrtc.cc). With
// HEDDLE_TEST_FULL it is the real one.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/driver/fake_driver.h"
#include "heddle/attention.h"

namespace heddle::cuda {

inline constexpr Device kFirst{DeviceKind::cuda, 0}, kSecond{DeviceKind::cuda, 1};

/// Lines for jit/fake_nvrtc.cc: the log of a kernel that is made well.
inline constexpr const char* kFigures =
    "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
    "//log ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "//log ptxas info    : Used 168 registers, used 1 barriers\n";

/// The fake, and a folder for the kernels that this program compiles. HEDDLE_REQUIRE_NVRTC makes the compiler's absence
/// a failure: ./test.sh sets it.
class LaunchCase : public testing::Test {
 protected:
  void SetUp() override;
};

const FakeDriver& fake();
/// Requests to driver and compiler so far, launches left out: "7 allocations, 5 frees, ...".
std::string work_done();
/// The latest of forward_sm90.
const FakeLaunch& last_launch();

/// Tensors of one attention. The defaults are of few tiles, each of which has a CTA of its own.
struct Call {
  std::int64_t batch = 2, q_heads = 4, kv_heads = 2, q_rows = 150, kv_rows = 130, dim = 128;
  std::int64_t v_dim = 0;                                     // of v and o; 0: dim
  std::int64_t column_gap = 0;                                // unused elements behind each row's columns
  bool rows_first = false;                                    // B x S x H x D, else B x H x S x D
  bool q_shared = false, k_shared = false, v_shared = false;  // batch 1, of which every batch entry reads
  bool with_lse = true;
  DType dtype = DType::bf16;
  std::optional<DType> o_dtype{};  // else dtype
  Device device = kFirst;
};
class CallTensors {
 public:
  explicit CallTensors(const Call& call = {});
  const AttentionTensors& tensors() const { return tensors_; }
  void* workspace() const { return workspace_.data(); }

 private:
  TensorView allocate(const Call& call, DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                      std::int64_t dim);

  std::vector<Tensor> owned_;
  AttentionTensors tensors_;
  Tensor workspace_;
};
/// More tiles than a device has multiprocessors: they are drawn, for which a run needs its workspace.
Call many_tiles();

/// A mask that reads a capture, and params of both types.
AttentionOptions masked_options(const ConstTensorView& ids);

/// Facts from a plan's explain_json().
struct Planned {
  unsigned grid, threads, shared_bytes;
  int rows, kv_block;
};
Planned planned(const AttentionPlan& plan);

/// Plans, and runs once.
const FakeLaunch& launch_of(const CallTensors& call, const AttentionOptions& options = {});

/// Runs once in a workspace of the plan's size.
const FakeLaunch& run_in(Tensor& workspace, const AttentionPlan& plan, const AttentionTensors& tensors);

/// A stream of its own on a device. The fake keeps nothing of it that would have to be freed.
class FakeStream {
 public:
  explicit FakeStream(const Device& device = kFirst);
  CUstream handle() const { return handle_; }

 private:
  CUstream handle_ = nullptr;
};

}  // namespace heddle::cuda
