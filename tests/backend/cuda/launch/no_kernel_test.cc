// Planning where there is no compiler, or one that makes no kernel, each in a process of its own.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "backend/cuda/driver/in_child.h"
#include "heddle/error.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// The compiler of this process; the fake of jit/fake_nvrtc.cc obeys `lines`.
void set_compiler(const char* nvrtc, const std::string& lines) {
  setenv("HEDDLE_NVRTC", nvrtc, 1);
  setenv("FAKE_NVRTC_LINES", lines.c_str(), 1);
  const std::string cache = fmt::format("{}/{}", std::getenv("HEDDLE_CACHE_DIR"), getpid());  // keeps verdicts, too
  setenv("HEDDLE_CACHE_DIR", cache.c_str(), 1);
}

/// The error of planning, its code's number in front.
std::string error_of_plan() {
  const CallTensors call;
  try {
    AttentionPlan(call.tensors(), {});
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
  }
  return "nothing was thrown";
}

/// The error of planning where HEDDLE_NVRTC is `nvrtc`. `modules`: how many must have been loaded. Nothing may stay on
/// the device.
std::string planning_error(const char* nvrtc, const std::string& lines = "", int modules = 0) {
  return in_child([&]() -> std::string {
    set_compiler(nvrtc, lines);
    const std::string sentence = error_of_plan();
    if (fake().allocations != fake().frees || fake().modules != fake().unloads || fake().pushes != fake().pops ||
        fake().modules != modules || fake().copies != 0 || fake().launches != 0) {
      return fmt::format("{} launches, {}; {}", fake().launches.load(), work_done(), sentence);
    }
    return sentence;
  });
}
std::string coded(ErrorCode code, const std::string& sentence) {
  return fmt::format("{}: {}", static_cast<int>(code), sentence);
}

TEST(LaunchWithoutKernel, NoCompiler) {
  EXPECT_THAT(
      planning_error("/nonexistent/libnvrtc.so.13"),
      StartsWith(coded(ErrorCode::unsupported, "NVRTC cannot be used: HEDDLE_NVRTC is '/nonexistent/libnvrtc.so.13'")));
}

TEST(LaunchWithoutKernel, OneThatDoesNotCompile) {
  EXPECT_THAT(planning_error(FAKE_NVRTC, "//result 6\n//log forward_sm90.cu(9): error: no such thing\n"),
              AllOf(StartsWith(coded(ErrorCode::compile, "kernel 'forward_sm90")),
                    HasSubstr("NVRTC_ERROR_COMPILATION\nforward_sm90.cu(9): error: no such thing")));
}

TEST(LaunchWithoutKernel, NoneThatIsMade) {
  EXPECT_THAT(planning_error(FAKE_NVRTC, "//result 6\n//log (C7602) no pipeline\n"),
              AllOf(StartsWith(coded(ErrorCode::compile, "the compiler makes none of the planned kernels well:")),
                    HasSubstr("forward_sm90 with tile 128 x 128: kernel"),
                    HasSubstr("forward_sm90 with tile 192 x 80: kernel"), HasSubstr("(C7602) no pipeline")));
}

// If every planned kernel is slow, the first one is taken all the same, and explain() says so.
TEST(LaunchWithoutKernel, NoneThatIsMadeWell) {
  const std::string text = in_child([] {
    set_compiler(FAKE_NVRTC, std::string(kFigures) + "//log (C7512) serialized\n//kernels\n");
    const CallTensors call;
    return AttentionPlan(call.tensors(), {}).explain();
  });
  EXPECT_THAT(text, HasSubstr("the compiler makes no planned kernel well; this one is right, but slow"));
  EXPECT_THAT(text, HasSubstr("forward_sm90 with tile 128 x 128: kernel"));
  EXPECT_THAT(text, HasSubstr("(C7512) serialized"));
}

// Kernels beside attention have no alternative.
TEST(LaunchWithoutKernel, KernelsBesideAttentionMaySpill) {
  const std::string text = in_child([] {
    set_compiler(FAKE_NVRTC,
                 "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
                 "//log ptxas         .     8 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
                 "//log ptxas info    : Used 168 registers\n//kernels\n");
    const Tensor part = Tensor::empty_on(kFirst, DType::f32, {1, 2, 5, 64}),
                 o = Tensor::empty_on(kFirst, DType::f32, {1, 2, 5, 64}),
                 lse = Tensor::empty_on(kFirst, DType::f32, {1, 2, 5});
    merge_states(std::vector<ConstTensorView>{part, part}, std::vector<ConstTensorView>{lse, lse}, o);
    return fmt::format("{} launched; {}", fake().launches.load(), error_of_plan());
  });
  EXPECT_EQ(text, "1 launched; nothing was thrown");
}

TEST(LaunchWithoutKernel, MachineCodeThatIsNone) {
  EXPECT_EQ(planning_error(FAKE_NVRTC, kFigures),
            coded(ErrorCode::device,
                  "loading a kernel of NVRTC 13.0 into a driver of CUDA 13.0: CUDA_ERROR_FAKE (as the fake says)"));
}

TEST(LaunchWithoutKernel, MachineCodeOfAnotherKernel) {
  const auto file = std::filesystem::path(std::getenv("HEDDLE_CACHE_DIR")) / "other.cubin";
  std::ofstream(file) << "good, but no forward_sm90";
  EXPECT_EQ(planning_error(FAKE_NVRTC, fmt::format("{}//cubin {}\n", kFigures, file.string()), 1),
            coded(ErrorCode::device, "looking for the kernel 'forward_sm90': CUDA_ERROR_FAKE (as the fake says)"));
}

}  // namespace
}  // namespace heddle::cuda
