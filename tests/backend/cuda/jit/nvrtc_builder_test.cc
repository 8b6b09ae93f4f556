// build() over a compiler that does as it is told.
#include <latch>
#include <thread>

#include "backend/cuda/jit/elf_file.h"
#include "backend/cuda/jit/jit_case.h"
#include "backend/cuda/jit/performance_losses.h"
#include "expect_error.h"

namespace heddle::cuda::jit {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

class Build : public JitCase {
 protected:
  Counts before_;

  static void SetUpTestSuite() { ::setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1); }
  void SetUp() override {
    JitCase::SetUp();
    ::setenv("FAKE_NVRTC_COUNT", compilations_file().c_str(), 1);
    before_ = counts();
  }

  fs::path compilations_file() const { return folder_ / "compilations"; }
  std::size_t compilations() const { return get(compilations_file()).size(); }

  void expect_counts(const Counts& expected) const {
    const Counts now = counts();
    EXPECT_EQ(now.compiled - before_.compiled, expected.compiled);
    EXPECT_EQ(now.from_memory - before_.from_memory, expected.from_memory);
    EXPECT_EQ(now.from_disk - before_.from_disk, expected.from_disk);
    EXPECT_EQ(now.rejected - before_.rejected, expected.rejected);
    EXPECT_EQ(compilations(), static_cast<std::size_t>(expected.compiled));
  }
};

/// Throws Rejected, and nothing else.
std::string rejection_of(const Source& source) {
  try {
    build(source);
  } catch (const Rejected& rejected) {
    EXPECT_EQ(rejected.code(), ErrorCode::compile);
    return rejected.what();
  }
  ADD_FAILURE() << "not rejected";
  return "";
}

TEST_F(Build, CompilesOnceThenRemembers) {
  const Source source = fake_source("once");
  const auto compiled = build(source), memory = build(source);
  forget();
  const auto disk = build(source), again = build(source);
  EXPECT_EQ(compiled->from, Cubin::From::compiler);
  EXPECT_EQ(memory->from, Cubin::From::memory);
  EXPECT_EQ(disk->from, Cubin::From::disk);
  EXPECT_EQ(again->from, Cubin::From::memory);
  for (const auto& cubin : {compiled, memory, disk, again}) {
    EXPECT_EQ(text_of(*cubin), source.text);
    EXPECT_EQ(cubin->registers, 40);
    EXPECT_EQ(cubin->spill_bytes, 0);
    EXPECT_EQ(cubin->stack_bytes, 16);
    EXPECT_EQ(cubin->static_shared_bytes, 128);
    EXPECT_THAT(cubin->log, AllOf(StartsWith("ptxas info"), EndsWith("128 bytes smem")));
    EXPECT_EQ(cubin->compile_ms, compiled->compile_ms);
  }
  expect_counts({.compiled = 1, .from_memory = 2, .from_disk = 1});
}

TEST_F(Build, OfOtherSourcesIsAnotherKernel) {
  Source source = fake_source("one");
  build(source);
  source.text += "changed";
  EXPECT_THAT(text_of(*build(source)), EndsWith("changed"));
  source.options.push_back("-DX");
  build(source);
  expect_counts({.compiled = 3});
  EXPECT_THAT(listing(cache()), SizeIs(3));
}

TEST_F(Build, ByManyThreadsCompilesOnce) {
  constexpr int kThreads = 16;
  const Source source = fake_source("shared", "//sleep 100\n");
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      EXPECT_EQ(text_of(*build(source)), source.text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_counts({.compiled = 1, .from_memory = kThreads - 1});
}

TEST_F(Build, OfDifferentKernelsDoesNotWait) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] { EXPECT_NO_THROW(build(fake_source("kernel" + std::to_string(i), "//meet 8\n"))); });
  }
  for (std::thread& thread : threads) thread.join();
  expect_counts({.compiled = 8});
}

TEST_F(Build, FailuresAreEveryThreadsOwnAndNotKept) {
  constexpr int kThreads = 8;
  const Source source = fake_source("broken", "//sleep 100\n//log k.cu(1): error: expected a ';'\n//result 6\n");
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      expect_error([&] { build(source); }, ErrorCode::compile,
                   AllOf(StartsWith("kernel 'broken' does not compile with NVRTC 13.0 ("),
                         HasSubstr("NVRTC_ERROR_COMPILATION\nk.cu(1): error: expected a ';'")));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::size_t compiled = compilations();
  EXPECT_LT(compiled, std::size_t{kThreads}) << "threads that wait do not compile again";
  EXPECT_ANY_THROW(build(source));
  EXPECT_EQ(compilations(), compiled + 1) << "a later call does";
  EXPECT_FALSE(fs::exists(cache()) && !listing(cache()).empty());
}

TEST_F(Build, FailuresHaveTheirCodes) {
  expect_error([] { build(fake_source("a", "//result 1\n")); }, ErrorCode::out_of_memory,
               HasSubstr("ran out of memory"));
  expect_error([] { build(fake_source("b", "//result 7\n")); }, ErrorCode::unsupported,
               HasSubstr("does not find libnvrtc-builtins.so.13.0"));
  expect_error([] { build(fake_source("c", "//result 5\n")); }, ErrorCode::compile, HasSubstr("NVRTC_ERROR"));
  expect_error([] { build({.name = "d", .text = "//result 0\n", .architecture = "sm_90a"}); }, ErrorCode::compile,
               HasSubstr("neither the log nor the machine code"));
  expect_error([] { build({.name = "e", .text = std::string("a\0b", 3), .architecture = "sm_90a"}); },
               ErrorCode::internal, HasSubstr("e holds a zero byte"));
  expect_error([] { build({.name = "f", .text = "kernel f"}); }, ErrorCode::internal,
               HasSubstr("kernel 'f' has no architecture"));
}

constexpr const char* kSpills =
    "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
    "//log ptxas         .     8 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
    "//log ptxas info    : Used 168 registers\n";
constexpr const char* kSerialises = "//log ptxas info    : (C7512) Potential Performance Loss: serialized\n";

TEST_F(Build, RejectsKernelsThatSpill) {
  const std::string sentence = rejection_of({.name = "spilling", .text = kSpills, .architecture = "sm_90a"});
  EXPECT_THAT(sentence, StartsWith("kernel 'spilling' is rejected: 20 bytes are spilled\nptxas info"));
  EXPECT_THAT(sentence, HasSubstr("12 bytes spill stores")) << "the log is in the sentence";
}

/// A source whose kernel nothing replaces.
Source without_alternative(Source source) {
  source.has_alternative = false;
  return source;
}

TEST_F(Build, TakesAKernelThatSpillsIfItHasNoAlternative) {
  const Source family = {.name = "k", .text = kSpills, .architecture = "sm_90a"}, only = without_alternative(family);
  const auto cubin = build(only);
  EXPECT_EQ(text_of(*cubin), kSpills);
  EXPECT_EQ(cubin->registers, 168);
  EXPECT_EQ(cubin->spill_bytes, 20);
  EXPECT_EQ(cubin->stack_bytes, 8);
  EXPECT_THAT(cubin->log, HasSubstr("12 bytes spill stores"));
  const auto both =
      build(without_alternative({.name = "l", .text = std::string(kSerialises) + kSpills, .architecture = "sm_90a"}));
  EXPECT_EQ(both->spill_bytes, 20);
  EXPECT_THAT(both->log, HasSubstr("(C7512)"));
}

TEST_F(Build, KeepsBothVerdictsOnOneText) {
  const Source family = {.name = "k", .text = kSpills, .architecture = "sm_90a"}, only = without_alternative(family);
  for (const Cubin::From from : {Cubin::From::compiler, Cubin::From::disk}) {
    EXPECT_THAT(rejection_of(family), HasSubstr("20 bytes are spilled"));
    const auto cubin = build(only);
    EXPECT_EQ(cubin->from, from);
    EXPECT_EQ(cubin->spill_bytes, 20);
    EXPECT_THAT(rejection_of(family), HasSubstr("20 bytes are spilled"));
    EXPECT_EQ(build(only)->from, Cubin::From::memory);
    forget();
  }
  EXPECT_THAT(listing(cache()), SizeIs(2));
  expect_counts({.compiled = 2, .from_memory = 2, .from_disk = 1, .rejected = 4});
}

/// There is no machine code to take.
TEST_F(Build, RejectsWhatDoesNotFitTheRegistersInAnyCase) {
  EXPECT_THAT(
      rejection_of(without_alternative(
          {.name = "m", .text = "//log ptxas fatal : (C7602) needs 300\n//result 6\n", .architecture = "sm_90a"})),
      StartsWith("kernel 'm' is rejected: (C7602) needs 300\n"));
}

TEST_F(Build, RejectsKernelsThatSerialise) {
  EXPECT_THAT(rejection_of(fake_source("k", kSerialises)),
              StartsWith("kernel 'k' is rejected: (C7512) Potential Performance Loss: serialized\n"));
  EXPECT_THAT(rejection_of({.name = "l", .text = std::string(kSerialises) + kSpills, .architecture = "sm_90a"}),
              StartsWith("kernel 'l' is rejected: 20 bytes are spilled; (C7512) Potential"));
  EXPECT_THAT(
      rejection_of(
          {.name = "m", .text = "//log ptxas fatal : (C7602) needs 300\n//result 6\n", .architecture = "sm_90a"}),
      StartsWith("kernel 'm' is rejected: (C7602) needs 300\n"));
}

TEST_F(Build, TheErrorHasThePtxasLineOfEachReason) {
  for (const PtxasLine& line : kPerformanceLosses) {
    const std::string sentence = rejection_of(fake_source("k", "//log ptxas info    : " + line.text() + "\n"));
    EXPECT_THAT(sentence, StartsWith("kernel 'k' is rejected: " + line.text() + "\n"));
    EXPECT_THAT(sentence, HasSubstr("\nptxas info    : " + line.text() + "\n")) << "the log is in the sentence";
  }
  for (const PtxasLine& line : kAddedWaits) {
    EXPECT_THAT(build(fake_source("k", "//log ptxas info    : " + line.text() + "\n"))->log, HasSubstr(line.words));
  }
}

TEST_F(Build, OneByteOfSpillsIsEnough) {
  const auto source = [](const char* stores, const char* loads) {
    return Source{.name = "k",
                  .text = std::string("//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n") +
                          "//log ptxas         .     8 bytes stack frame, " + stores + " bytes spill stores, " + loads +
                          " bytes spill loads\n//log ptxas info    : Used 168 registers, used 9 barriers\n",
                  .architecture = "sm_90a"};
  };
  EXPECT_THAT(rejection_of(source("1", "0")), StartsWith("kernel 'k' is rejected: 1 bytes are spilled\n"));
  EXPECT_THAT(rejection_of(source("0", "4")), StartsWith("kernel 'k' is rejected: 4 bytes are spilled\n"));
  EXPECT_EQ(build(source("0", "0"))->stack_bytes, 8) << "a stack without spills is none";
}

TEST_F(Build, TakesFromTheCubinWhatTheLogDoesNotSay) {
  const auto source_of = [&](const std::string& name, std::uint32_t stack, const std::string& log) {
    const std::vector<char> cubin =
        elf({{".nv.info", attribute(0x2f, 1, 96) + attribute(0x11, 1, stack)}, {".nv.shared.f", "", 512}});
    put(folder_ / name, {cubin.begin(), cubin.end()});
    return Source{.name = name, .text = log + "//cubin " + (folder_ / name).string() + "\n", .architecture = "sm_90a"};
  };
  const auto cubin = build(source_of("silent", 0, ""));
  EXPECT_EQ(cubin->registers, 96);
  EXPECT_EQ(cubin->static_shared_bytes, 512);
  EXPECT_EQ(cubin->stack_bytes, 0);
  EXPECT_EQ(cubin->spill_bytes, 0) << "without a stack there are none";
  EXPECT_THAT(
      rejection_of(source_of("stack", 24, "")),
      StartsWith("kernel 'stack' is rejected: the log does not say what is spilled, and 24 bytes of stack may"));
  EXPECT_EQ(build(without_alternative(source_of("stack", 24, "")))->spill_bytes, 24);
  EXPECT_EQ(build(source_of("half", 0,
                            "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
                            "//log ptxas info    : Used 40 registers, 128 bytes smem\n"))
                ->registers,
            40)
      << "the log goes first";
}

TEST_F(Build, RemembersRejectionsInMemoryAndOnDisk) {
  const Source source = fake_source("k", kSerialises);
  const std::string sentence = rejection_of(source);
  EXPECT_EQ(rejection_of(source), sentence);
  forget();
  EXPECT_EQ(rejection_of(source), sentence);
  expect_counts({.compiled = 1, .rejected = 3});
}

TEST_F(Build, DoesNotTrustADamagedFile) {
  const Source source = fake_source("k");
  build(source);
  const fs::path file = cache() / listing(cache()).at(0);
  const std::string whole = get(file);
  // Bytes in turn (kernel_record_test.cc takes every bit); the kernel is the same each time, and the file whole again.
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    put(file, i % 2 == 0 ? damaged : whole.substr(0, i));
    forget();
    const auto cubin = build(source);
    ASSERT_EQ(cubin->from, Cubin::From::compiler) << i;
    ASSERT_EQ(text_of(*cubin), source.text) << i;
  }
  EXPECT_THAT(cache_notes(), HasSubstr(file.string()));
  forget();
  EXPECT_EQ(build(source)->from, Cubin::From::disk);
}

TEST_F(Build, WorksWithoutACacheFolder) {
  put(cache(), "a file");
  const Source source = fake_source("k");
  EXPECT_EQ(build(source)->from, Cubin::From::compiler);
  EXPECT_EQ(build(source)->from, Cubin::From::memory);
  EXPECT_THAT(cache_notes(), HasSubstr("cannot be used: Not a directory; kernels are not kept"));
}

TEST_F(Build, ForgetWhileOthersBuildHarmsNobody) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      const Source good = fake_source("good" + std::to_string(i % 2)), bad = fake_source("bad", "//result 6\n");
      for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(text_of(*build(good)), good.text);
        EXPECT_THROW(build(bad), Error);
        if (round % 5 == i % 5) forget();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace heddle::cuda::jit
