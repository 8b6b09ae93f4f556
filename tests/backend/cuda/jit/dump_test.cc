// HEDDLE_DUMP, over a compiler and a disassembler that do as they are told.
#include <nlohmann/json.hpp>

#include "backend/cuda/jit/jit_case.h"
#include "expect_error.h"

namespace heddle::cuda::jit {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class Dump : public JitCase {
 protected:
  std::string path_;

  static void SetUpTestSuite() { ::setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1); }
  void SetUp() override {
    JitCase::SetUp();
    ::setenv("HEDDLE_DUMP", dumps().c_str(), 1);
    path_ = ::getenv("PATH");
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("CUDA_HOME");
    JitCase::TearDown();
  }

  fs::path dumps() const { return folder_ / "some" / "dumps"; }
  /// The dump of the only kernel there.
  std::string dumped(const std::string& suffix) const {
    for (const std::string& name : listing(dumps())) {
      if (name.ends_with(suffix)) return get(dumps() / name);
    }
    return "no such file";
  }
  nlohmann::json json() const { return nlohmann::json::parse(dumped(".json")); }

  /// A disassembler, first in PATH.
  void install_nvdisasm(const std::string& script) const {
    fs::create_directories(folder_ / "toolkit" / "bin");
    put(folder_ / "toolkit" / "bin" / "nvdisasm", "#!/bin/sh\n" + script + "\n");
    fs::permissions(folder_ / "toolkit" / "bin" / "nvdisasm", fs::perms::owner_all);
    ::setenv("PATH", ((folder_ / "toolkit" / "bin").string() + ":" + path_).c_str(), 1);
  }
};

TEST_F(Dump, KeepsEverythingOfAKernel) {
  install_nvdisasm("echo disassembled $1; cat \"$2\"");
  Source source = fake_source("a kernel/of two");
  source.text = "#include \"used.cuh\"\n" + source.text;
  source.headers = {{"used.cuh", "int used;\n"}, {"other.cuh", "int other;\n"}};
  source.options = {"-DX=1"};
  build(source);
  const std::string stem = "a_kernel_of_two-" + key_of(source);
  EXPECT_THAT(listing(dumps()),
              ElementsAre(stem + ".cu", stem + ".cubin", stem + ".json", stem + ".log", stem + ".ptx", stem + ".sass"));
  EXPECT_THAT(dumped(".cu"), HasSubstr("// a kernel/of two, with NVRTC 13.0\n// options: --gpu-architecture=sm_90a"));
  EXPECT_THAT(dumped(".cu"), HasSubstr("headers, each in the place of its first mention: used.cuh\n"));
  EXPECT_THAT(dumped(".cu"), HasSubstr("int used;"));
  EXPECT_THAT(dumped(".cu"), testing::EndsWith("kernel a kernel/of two\n"));
  EXPECT_EQ(dumped(".cubin"), source.text);
  EXPECT_EQ(dumped(".ptx"), "// PTX of " + source.text.substr(0, source.text.size() - 1));
  EXPECT_THAT(dumped(".log"), HasSubstr("Used 40 registers"));
  EXPECT_EQ(dumped(".sass"), "disassembled -c\n" + source.text);
  EXPECT_EQ(json()["name"], "a kernel/of two");
  EXPECT_EQ(json()["key"], key_of(source));
  EXPECT_EQ(json()["options"].back(), "-DX=1");
  EXPECT_EQ(json()["registers"], 40);
  EXPECT_EQ(json()["spill_bytes"], 0);
  EXPECT_EQ(json()["stack_bytes"], 16);
  EXPECT_EQ(json()["static_shared_bytes"], 128);
  EXPECT_EQ(json()["rejected"], nullptr);
  EXPECT_EQ(json()["from"], "compiler");
}

TEST_F(Dump, KeepsKernelsFromDiskToo) {
  const Source source = fake_source("k");
  ::unsetenv("HEDDLE_DUMP");
  build(source);
  forget();
  ::setenv("HEDDLE_DUMP", dumps().c_str(), 1);
  EXPECT_EQ(build(source)->from, Cubin::From::disk);
  EXPECT_THAT(dumped(".ptx"), HasSubstr("// PTX of"));
  EXPECT_EQ(dumped(".cubin"), source.text);
  EXPECT_EQ(json()["from"], "disk");
}

TEST_F(Dump, KeepsWhatIsRejectedAndWhatDoesNotCompile) {
  EXPECT_THROW(build(fake_source("k", "//log (C7512) serialized\n")), Rejected);
  EXPECT_EQ(json()["rejected"], "(C7512) serialized");
  EXPECT_THAT(dumped(".cubin"), HasSubstr("kernel k"));
  fs::remove_all(dumps());
  EXPECT_THROW(build(fake_source("k", "//log expected a ';'\n//result 6\n")), Error);
  EXPECT_THAT(dumped(".log"), HasSubstr("expected a ';'"));
  EXPECT_EQ(json()["result"], "NVRTC_ERROR_COMPILATION");
  EXPECT_EQ(json().count("registers"), 0u);
}

TEST_F(Dump, ShowsWhatAKernelWithoutAlternativeSpills) {
  build({.name = "k",
         .text = "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
                 "//log ptxas         .     8 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
                 "//log ptxas info    : Used 168 registers\n",
         .architecture = "sm_90a",
         .has_alternative = false});
  EXPECT_EQ(json()["rejected"], nullptr);
  EXPECT_EQ(json()["spill_bytes"], 20);
  EXPECT_THAT(dumped(".log"), HasSubstr("12 bytes spill stores"));
}

TEST_F(Dump, DoesWithoutADisassembler) {
  install_nvdisasm("echo half; exit 3");
  EXPECT_NO_THROW(build(fake_source("k")));
  EXPECT_EQ(dumped(".sass"), "no such file") << "one that fails leaves nothing";
  ::setenv("CUDA_HOME", (folder_ / "toolkit").c_str(), 1);
  ::setenv("PATH", "/nonexistent:relative:", 1);
  put(folder_ / "toolkit" / "bin" / "nvdisasm", "#!/bin/sh\necho found\n");
  EXPECT_NO_THROW(build(fake_source("l")));
  EXPECT_EQ(dumped(".sass"), "found\n");
}

TEST_F(Dump, ThatCannotBeWrittenIsAnError) {
  put(folder_ / "some", "a file");
  const Source source = fake_source("k");
  expect_error([&] { build(source); }, ErrorCode::io,
               "HEDDLE_DUMP asks for kernels to be kept, but " + dumps().string() + " cannot be used: Not a directory");
  ::unsetenv("HEDDLE_DUMP");
  EXPECT_NO_THROW(build(source)) << "the kernel is none the worse";
}

}  // namespace
}  // namespace heddle::cuda::jit
