// Logs as NVRTC 12.3, 12.9 and 13.0 print them.
#include "backend/cuda/jit/compiler_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "backend/cuda/jit/performance_losses.h"

namespace heddle::cuda::jit {
namespace {

constexpr const char* kTwoKernels = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'h' for 'sm_90a'
ptxas info    : Function properties for h
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 1.432 ms
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
ptxas         .     24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 32 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 1.474 ms)";

constexpr const char* kSpilling = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
ptxas         .     1368 bytes stack frame, 1372 bytes spill stores, 1604 bytes spill loads
ptxas info    : Used 64 registers)";

TEST(CompilerLog, TakesTheLargestKernel) {
  EXPECT_EQ(resources_in(kTwoKernels),
            (Resources{.registers = 10, .spill_bytes = 0, .stack_bytes = 32, .static_shared_bytes = 128}));
}

TEST(CompilerLog, WithoutTimesSaysTheRest) {
  const std::string kept = without_times(kTwoKernels);
  EXPECT_THAT(kept, ::testing::Not(::testing::HasSubstr("time")));
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 8);
  EXPECT_EQ(resources_in(kept), resources_in(kTwoKernels));
  EXPECT_EQ(without_times(kept + "\n"), kept);
  EXPECT_EQ(without_times(kSpilling), kSpilling);
  EXPECT_EQ(without_times(""), "");
}

TEST(CompilerLog, AddsStoresAndLoads) {
  EXPECT_EQ(resources_in(kSpilling),
            (Resources{.registers = 64, .spill_bytes = 2976, .stack_bytes = 1368, .static_shared_bytes = 0}));
}

TEST(CompilerLog, CountsTheSpillsOfFunctionsThatWereNotInlined) {
  const std::string log = std::string(kTwoKernels) +
                          "\nptxas info    : Function properties for _Z1gv\n"
                          "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n";
  EXPECT_EQ(resources_in(log).spill_bytes, 8);
}

TEST(CompilerLog, WhatIsNotSaidIsNotKnown) {
  EXPECT_EQ(resources_in(""), Resources{});
  EXPECT_EQ(resources_in("nvrtc: nothing of that"), Resources{});
  EXPECT_EQ(resources_in("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 8 registers"),
            Resources{})
      << "which kernel is it of?";
  EXPECT_FALSE(Resources{}.complete());
}

TEST(CompilerLog, OneKernelOfTwoIsNotEnough) {
  std::string log = kTwoKernels;
  log.replace(log.find("24 bytes stack frame"), 8, "24 words");
  EXPECT_EQ(resources_in(log),
            (Resources{.registers = 10, .spill_bytes = -1, .stack_bytes = -1, .static_shared_bytes = 128}));
  log.replace(log.find("Used 10"), 4, "Held");
  EXPECT_EQ(resources_in(log), Resources{});
}

TEST(CompilerLog, NumbersThatAreNoneAreNotRead) {
  std::string log = kSpilling;
  log.replace(log.find("64 registers"), 2, "99999999999");
  EXPECT_EQ(resources_in(log).registers, -1);
  log = kSpilling;
  log.replace(log.find("1372"), 4, "many");
  EXPECT_EQ(resources_in(log).spill_bytes, -1);
}

constexpr const char* kSerialised =
    "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient "
    "register resources for the wgmma pipeline in the function 'f'";

TEST(PerformanceLosses, AreTheWarningsWithoutTheirPrefix) {
  EXPECT_EQ(performance_losses(std::string(kTwoKernels) + "\n" + kSerialised + "\n"),
            "(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient "
            "register resources for the wgmma pipeline in the function 'f'");
  EXPECT_EQ(performance_losses("ptxas info    : (C7510) a\nptxas warning : (C7514) b"), "(C7510) a; (C7514) b");
}

TEST(PerformanceLosses, EveryReasonByItsWordsAndByItsNumber) {
  for (const PtxasLine& line : kPerformanceLosses) {
    const std::string log = std::string(kTwoKernels) + "\nptxas info    : ";
    EXPECT_EQ(performance_losses(log + line.text()), line.text());
    EXPECT_EQ(performance_losses(log + "(" + line.code + ") new words\n"),
              std::string("(") + line.code + ") new words");
    EXPECT_EQ(performance_losses(log + "(C9911) " + line.words), std::string("(C9911) ") + line.words);
    EXPECT_EQ(performance_losses(log + line.words), line.words) << "without any number";
  }
}

TEST(PerformanceLosses, SerialisedProductsUnderAnyHeading) {
  EXPECT_EQ(performance_losses("ptxas warning : (C9911) Slow: wgmma.mma_async instructions are serialized due to age"),
            "(C9911) Slow: wgmma.mma_async instructions are serialized due to age");
}

TEST(PerformanceLosses, InstructionsThatDoNotFit) {
  for (const char* code : {"C7600", "C7602"}) {
    EXPECT_EQ(performance_losses(std::string("ptxas fatal   : (") + code + ") x"), std::string("(") + code + ") x");
  }
}

TEST(PerformanceLosses, AddedWaitsAreNone) {
  for (const PtxasLine& line : kAddedWaits) {
    EXPECT_EQ(performance_losses(std::string("ptxas info    : ") + line.text()), "");
  }
  EXPECT_EQ(performance_losses("ptxas info    : (C7507) x\nptxas info    : (C7521) x\nptxas info    : (C751) x\n"
                               "ptxas info    : (C75\n(C\n("),
            "");
  EXPECT_EQ(performance_losses(kTwoKernels), "");
}

}  // namespace
}  // namespace heddle::cuda::jit
