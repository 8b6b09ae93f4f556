// hipRTC, the judge and the cache, over the fake hipRTC (clang 19), each test in a process of its own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "backend/amd/jit/amd_jit.h"
#include "backend/cuda/driver/in_child.h"
#include "heddle/error.h"

namespace heddle::amd {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

jit::Source source(const std::string& body, const std::string& architecture = "gfx1100") {
  return {.name = "kernel",
          .text = "#include \"a.cuh\"\nextern \"C\" __attribute__((global)) void k(float* x) {" + body + "}\n",
          .headers = {{"a.cuh", "#pragma once\ninline constexpr int kA = 7;\n"}},
          .architecture = architecture};
}

class AmdJit : public testing::Test {
 protected:
  fs::path folder_;
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "heddle-amd-jit-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string in_process(const std::function<std::string()>& report) const {
    return in_child([&]() -> std::string {
      setenv("HEDDLE_HIPRTC", FAKE_HIPRTC, 0);
      setenv("HEDDLE_CACHE_DIR", (folder_ / "cache").c_str(), 1);
      setenv("FAKE_HIPRTC_COUNT", (folder_ / "count").c_str(), 1);
      try {
        return report();
      } catch (const jit::Rejected& rejected) {
        return fmt::format("rejected: {}", rejected.what());
      } catch (const Error& error) {
        return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
      }
    });
  }
  std::uintmax_t compilations() const {
    std::error_code none;
    const auto size = fs::file_size(folder_ / "count", none);
    return none ? 0 : size;
  }
};

std::string built(const jit::Source& wanted) {
  const auto code = builder().build(wanted);
  return fmt::format("{}, {} registers, {} LDS", jit::name(code->from), code->registers > 0 ? "some" : "no",
                     code->static_shared_bytes);
}

const char* const kBody =
    "__attribute__((shared)) static float y[64]; const int i = __builtin_amdgcn_workitem_id_x(); y[i] = x[i]; "
    "__builtin_amdgcn_s_barrier(); x[i] = y[i ^ kA];";

TEST_F(AmdJit, CompilesOnceAMachine) {
  const auto twice = [] {
    const std::string first = built(source(kBody));
    return first + "; " + built(source(kBody));
  };
  EXPECT_EQ(in_process(twice), "compiled, some registers, 256 LDS; from memory, some registers, 256 LDS");
  EXPECT_EQ(in_process(twice), "from the disk cache, some registers, 256 LDS; from memory, some registers, 256 LDS");
  EXPECT_EQ(compilations(), 1U);
}

TEST_F(AmdJit, CompilesAgainWhatTheCacheLost) {
  const auto once = [] {
    const std::string first = built(source(kBody));
    return first + "\n" + builder().cache_notes();
  };
  in_process(once);
  for (const auto& entry : fs::directory_iterator(folder_ / "cache")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file << "damage";
  }
  EXPECT_THAT(in_process(once),
              AllOf(StartsWith("compiled"), HasSubstr("does not match its checksum; compiled again")));
  EXPECT_THAT(in_process(once), StartsWith("from the disk cache"));
}

TEST_F(AmdJit, KeysKnowTheChip) {
  EXPECT_EQ(in_process([] {
              return fmt::format("{}", builder().key_of(source(kBody)) != builder().key_of(source(kBody, "gfx1201")));
            }),
            "true");
}

// A hipRTC may end the process over a chip that it does not know: it is asked first.
TEST_F(AmdJit, AsksBeforeItCompilesForAChip) {
  setenv("FAKE_HIPRTC_ABORTS", "1", 1);
  EXPECT_THAT(in_process([] { return built(source(kBody, "gfx1300")); }),
              MatchesRegex(fmt::format("{}: hipRTC 6.0 \\(.*\\) does not compile for gfx1300; it compiles for gfx1030, "
                                       "gfx1100, gfx1201, gfx90a, gfx942; HEDDLE_HIPRTC may name a newer one",
                                       static_cast<int>(ErrorCode::unsupported))));
  unsetenv("FAKE_HIPRTC_ABORTS");
  EXPECT_EQ(compilations(), 0U);
}

TEST_F(AmdJit, SaysWhyThereIsNoCompiler) {
  setenv("HEDDLE_HIPRTC", "/nonexistent/libhiprtc.so.6", 1);
  EXPECT_THAT(in_process([] { return compiler_missing(); }),
              StartsWith("hipRTC cannot be used: HEDDLE_HIPRTC is '/nonexistent/libhiprtc.so.6'"));
  setenv("HEDDLE_HIPRTC", FAKE_HSA, 1);
  EXPECT_THAT(in_process([] { return built(source(kBody)); }), HasSubstr("has no function hiprtcVersion"));
  unsetenv("HEDDLE_HIPRTC");
}

TEST_F(AmdJit, ShowsTheCompilersLog) {
  EXPECT_THAT(in_process([] { return built(source("*x = no_such_thing;")); }),
              AllOf(StartsWith(fmt::format("{}: kernel 'kernel' does not compile with hipRTC 6.0",
                                           static_cast<int>(ErrorCode::compile))),
                    HasSubstr("for gfx1100: HIPRTC_ERROR_COMPILATION"), HasSubstr("no_such_thing")));
}

const char* const kScratch = "volatile float y[40]; for (int i = 0; i < 40; ++i) y[i] = x[i]; *x = y[(int)*x];";

TEST_F(AmdJit, RejectsScratchMemory) {
  const auto report = [] { return built(source(kScratch)); };
  EXPECT_THAT(in_process(report), AllOf(StartsWith("rejected: kernel 'kernel' is rejected: a thread needs 1"),
                                        HasSubstr("bytes of scratch memory")));
  EXPECT_THAT(in_process(report), StartsWith("rejected"));
  EXPECT_EQ(compilations(), 1U);
}

/// 200 values live across a barrier, in 64 registers a thread.
jit::Source spilling_source() {
  jit::Source spilling = source(
      "x += __builtin_amdgcn_workitem_id_x(); float y[200];\n"
      "#pragma unroll\n"
      "for (int i = 0; i < 200; ++i) y[i] = x[i * 64];\n"
      "__builtin_amdgcn_s_barrier();\n"
      "#pragma unroll\n"
      "for (int i = 0; i < 200; ++i) x[i * 7 % 200 * 64] = y[i] * y[i * 5 % 200];\n");
  spilling.text.insert(spilling.text.find("__attribute__((global))"), "__attribute__((amdgpu_num_vgpr(64))) ");
  return spilling;
}

TEST_F(AmdJit, RejectsSpills) {
  EXPECT_THAT(
      in_process([] { return built(spilling_source()); }),
      testing::ContainsRegex("^rejected: kernel 'kernel' is rejected: [1-9][0-9]* vector registers are spilled"));
}

// The figures stay what they are, and the cache keeps both verdicts.
TEST_F(AmdJit, TakesSpillsAndScratchMemoryIfThereIsNoAlternative) {
  const auto only = [](jit::Source source) {
    source.has_alternative = false;
    const auto code = builder().build(source);
    return fmt::format("{}, {}, {}", jit::name(code->from), code->spill_bytes > 0 ? "spills" : "no spills",
                       code->stack_bytes > 0 ? "scratch" : "no scratch");
  };
  const auto scratch = [&] { return only(source(kScratch)); };
  const auto spills = [&] { return only(spilling_source()); };
  const auto family = [] { return built(source(kScratch)); };
  EXPECT_THAT(in_process(family), StartsWith("rejected"));
  EXPECT_EQ(in_process(scratch), "compiled, no spills, scratch");
  EXPECT_THAT(in_process(family), StartsWith("rejected"));
  EXPECT_EQ(in_process(scratch), "from the disk cache, no spills, scratch");
  EXPECT_EQ(compilations(), 2U);
  EXPECT_EQ(in_process(spills), "compiled, spills, scratch");
}

// A launch would not know how much scratch memory to give.
TEST_F(AmdJit, RejectsAStackWithoutAFixedSizeInAnyCase) {
  EXPECT_THAT(in_process([] {
                jit::Source endless = source("*x = deep(x, 3);");
                endless.text.insert(endless.text.find("extern"),
                                    "__attribute__((device, noinline)) float deep(float* x, int n) {"
                                    "  return n > *x ? *x : x[n] * deep(x + n, n + 1) + deep(x, n + 2); }\n");
                endless.has_alternative = false;
                return built(endless);
              }),
              StartsWith("rejected: kernel 'kernel' is rejected: its stack has no fixed size"));
}

TEST_F(AmdJit, DumpsWhatPeopleRead) {
  const std::string dumps = (folder_ / "dump").string();
  in_process([&] {
    setenv("HEDDLE_DUMP", dumps.c_str(), 1);
    return built(source(kBody));
  });
  std::vector<std::string> suffixes;
  for (const auto& entry : fs::directory_iterator(dumps)) suffixes.push_back(entry.path().extension());
  EXPECT_THAT(suffixes, testing::IsSupersetOf({".hip", ".log", ".json", ".hsaco"}));
}

}  // namespace
}  // namespace heddle::amd
