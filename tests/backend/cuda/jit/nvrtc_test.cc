// The real compiler. HEDDLE_REQUIRE_NVRTC makes its absence a failure: ./test.sh sets it.
#include "backend/cuda/jit/nvrtc.h"

#include <fmt/format.h>

#include <latch>
#include <random>
#include <thread>

#include "backend/cuda/jit/compiler_log.h"
#include "backend/cuda/jit/cubin_elf.h"
#include "backend/cuda/jit/jit_case.h"
#include "expect_error.h"

namespace heddle::cuda::jit {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class Nvrtc : public JitCase {
 protected:
  void SetUp() override {
    JitCase::SetUp();
    const std::string missing = compiler_missing();
    if (missing.empty()) return;
    if (std::getenv("HEDDLE_REQUIRE_NVRTC") != nullptr) FAIL() << missing;
    GTEST_SKIP() << missing;
  }
};

constexpr const char* kReverse = R"(#include "width.cuh"
extern "C" __global__ void reverse(float* x) {
  __shared__ float shared[kWidth];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = shared[kWidth - 1 - threadIdx.x] * kFactor;
}
)";

Source reverse() {
  return {.name = "reverse",
          .text = kReverse,
          .headers = {{"width.cuh", "#pragma once\n#include \"dir/factor.h\"\nconstexpr int kWidth = 64;\n"},
                      {"dir/factor.h", "#pragma once\nconstexpr float kFactor = FACTOR;\n"}},
          .architecture = "sm_90a",
          .options = {"-DFACTOR=3.0f"}};
}

/// 96 values live across a barrier, in 64 registers a thread.
constexpr const char* kSpilling = R"(
extern "C" __global__ void __launch_bounds__(1024, 1) spilling(float* x) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[(i * 7 % 96) * 1024 + threadIdx.x] = v[i] * v[i * 5 % 96];
}
)";

/// A tensor-core product; with TOUCHED its accumulators are used before it was waited for.
constexpr const char* kProduct = R"(
__device__ __forceinline__ void product(float (&d)[4], unsigned long long a, unsigned long long b) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, 1, 0;"
      " wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b));
}
extern "C" __global__ void __launch_bounds__(128, 1) products(float* x, unsigned long long a, unsigned long long b) {
  float d[4] = {x[0], x[1], x[2], x[3]};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  product(d, a, b);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#ifdef TOUCHED
  x[threadIdx.x + 512] = d[0];
  d[1] += 1.0f;
  product(d, a, b);
#endif
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) x[threadIdx.x * 4 + i] = d[i];
}
)";

TEST_F(Nvrtc, CompilesToAnElfFile) {
  const auto cubin = build(reverse());
  EXPECT_THAT(text_of(*cubin), StartsWith("\177ELF"));
  EXPECT_THAT(text_of(*cubin), HasSubstr("reverse"));
  EXPECT_GT(cubin->registers, 0);
  EXPECT_EQ(cubin->spill_bytes, 0);
  EXPECT_EQ(cubin->stack_bytes, 0);
  EXPECT_EQ(cubin->static_shared_bytes, 256);
  EXPECT_GT(cubin->compile_ms, 0);
  EXPECT_THAT(cubin->log, HasSubstr("Used "));
  forget();
  const auto again = build(reverse());
  EXPECT_EQ(again->from, Cubin::From::disk);
  EXPECT_EQ(again->bytes, cubin->bytes);
}

TEST_F(Nvrtc, PutsItsLogIntoTheError) {
  Source source = reverse();
  source.text += "\nint x = undeclared_name;\n";
  expect_error([&] { build(source); }, ErrorCode::compile,
               AllOf(StartsWith("kernel 'reverse' does not compile with NVRTC"), HasSubstr("NVRTC_ERROR_COMPILATION"),
                     HasSubstr("reverse.cu(9): error: identifier \"undeclared_name\" is undefined")));
  source = reverse();
  source.options.push_back("--no-such-option");
  expect_error([&] { build(source); }, ErrorCode::compile, HasSubstr("--no-such-option"));
  source = reverse();
  source.headers.pop_back();
  expect_error([&] { build(source); }, ErrorCode::compile, HasSubstr("dir/factor.h"));
}

TEST_F(Nvrtc, ReadsNoFilesOfTheFolderItStandsIn) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  put(folder_ / "on_disk.cuh", "constexpr int kOnDisk = 1;\n");
  expect_error(
      [] {
        build({.name = "k", .text = "#include \"on_disk.cuh\"\n__global__ void f() {}\n", .architecture = "sm_90a"});
      },
      ErrorCode::compile, HasSubstr("on_disk.cuh"));
  std::filesystem::current_path(before);
}

TEST_F(Nvrtc, RejectsAKernelThatSpills) {
  try {
    build({.name = "spilling", .text = kSpilling, .architecture = "sm_90a"});
    ADD_FAILURE() << "not rejected";
  } catch (const Rejected& rejected) {
    EXPECT_THAT(rejected.what(),
                testing::ContainsRegex("kernel 'spilling' is rejected: [1-9][0-9]* bytes are spilled\nptxas"));
  }
}

TEST_F(Nvrtc, TakesAKernelThatSpillsIfItHasNoAlternative) {
  const auto cubin = build({.name = "spilling", .text = kSpilling, .architecture = "sm_90a", .has_alternative = false});
  EXPECT_THAT(text_of(*cubin), StartsWith("\177ELF"));
  EXPECT_GT(cubin->spill_bytes, 0);
  EXPECT_GT(cubin->stack_bytes, 0);
}

TEST_F(Nvrtc, TakesAKernelThatSpillsNoMoreThanIsBearable) {
  Source source{.name = "spilling", .text = kSpilling, .architecture = "sm_90a", .has_alternative = false};
  const int spilled = build(source)->spill_bytes;
  source.has_alternative = true;
  source.bearable_spill_bytes = spilled;
  EXPECT_EQ(build(source)->spill_bytes, spilled);
  source.bearable_spill_bytes = spilled - 1;
  EXPECT_THROW(build(source), Rejected);
}

TEST_F(Nvrtc, RejectsAKernelThatSerialisesItsProducts) {
  Source source{.name = "products", .text = kProduct, .architecture = "sm_90a"};
  EXPECT_EQ(performance_losses(build(source)->log), "");
  source.options = {"-DTOUCHED"};
  try {
    build(source);
    ADD_FAILURE() << "not rejected";
  } catch (const Rejected& rejected) {
    EXPECT_THAT(rejected.what(),
                testing::ContainsRegex("kernel 'products' is rejected: .C75[0-9][0-9]. Potential "
                                       "Performance Loss: wgmma.mma_async instructions are serialized"));
  }
  source.has_alternative = false;
  EXPECT_NE(performance_losses(build(source)->log), "");
}

TEST_F(Nvrtc, SaysTheSameInItsLogAndInTheCubin) {
  for (const Source& source : {reverse(), Source{.name = "spilling", .text = kSpilling, .architecture = "sm_90a"},
                               Source{.name = "products", .text = kProduct, .architecture = "sm_90a"}}) {
    const Compilation compilation = compile(source, true);
    ASSERT_EQ(compilation.result, 0) << compilation.log;
    const Resources log = resources_in(compilation.log), elf = resources_of(compilation.code);
    ASSERT_TRUE(log.complete()) << compilation.log;
    ASSERT_TRUE(elf.complete()) << source.name;
    EXPECT_EQ(log.registers, elf.registers) << source.name;
    EXPECT_EQ(log.stack_bytes, elf.stack_bytes) << source.name;
    EXPECT_EQ(log.spill_bytes > 0, elf.spill_bytes > 0) << source.name;
    // The system's own kilobyte may be counted.
    EXPECT_THAT(elf.static_shared_bytes - log.static_shared_bytes, testing::AnyOf(0, 1024)) << source.name;
    EXPECT_THAT(compilation.assembly, HasSubstr(".target sm_90a")) << source.name;
  }
}

TEST_F(Nvrtc, CubinsWithDamageAreReadWithoutHarm) {
  const std::vector<char> cubin = compile(reverse(), false).code;
  std::mt19937 random(3);
  for (std::size_t i = 0; i < cubin.size(); i += 1 + random() % 16) {
    const auto cut = std::make_unique<char[]>(i);
    std::copy_n(cubin.begin(), i, cut.get());
    resources_of({cut.get(), i});
    std::vector<char> damaged = cubin;
    for (int change = 0; change < 4; ++change) damaged[random() % damaged.size()] = static_cast<char>(random());
    damaged[i] = static_cast<char>(0xff);
    resources_of(damaged);
  }
}

TEST_F(Nvrtc, CompilesForSeveralThreadsAtOnce) {
  constexpr int kThreads = 8;
  const Counts before = counts();
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      Source source = reverse();
      source.options = {fmt::format("-DFACTOR={}.0f", 2 + i % 3)};
      EXPECT_EQ(build(source)->static_shared_bytes, 256);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counts().compiled - before.compiled, 3);
  EXPECT_EQ(counts().from_memory - before.from_memory, kThreads - 3);
}

TEST_F(Nvrtc, CompilesInSeveralProcesses) {
  std::vector<Child> children;
  for (int i = 0; i < 4; ++i) {
    children.emplace_back([] { return std::to_string(build(reverse())->static_shared_bytes); });
  }
  for (Child& child : children) EXPECT_EQ(child.answer(), "256");
  EXPECT_EQ(build(reverse())->from, Cubin::From::disk);
}

}  // namespace
}  // namespace heddle::cuda::jit
