// With several NVRTCs, the one whose kernels the driver loads is taken; very old ones are named.
#include <cstdio>

#include "backend/libraries/printed_by.h"
#include "backend/cuda/jit/jit_case.h"
#include "backend/cuda/jit/nvrtc.h"

namespace heddle::cuda::jit {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(LibraryNames, OfTheDriversMajorVersionOrAnOlderOneComeFirst) {
  for (const int version : {0, 13000, 13020, 14000}) {
    EXPECT_THAT(library_names(version).first, ElementsAre("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"));
    EXPECT_THAT(library_names(version).second, IsEmpty());
  }
  for (const int version : {12000, 12090}) {
    EXPECT_THAT(library_names(version).first, ElementsAre("libnvrtc.so.12"));
    EXPECT_THAT(library_names(version).second, ElementsAre("libnvrtc.so.13", "libnvrtc.so"));
  }
}

/// Output of open_compiler in that environment ("NAME='value' ..."), with `arguments`.
std::string open_compiler(const std::string& environment, const std::string& arguments) {
  const std::string command =
      "env -u HEDDLE_NVRTC HEDDLE_CUDA_DRIVER='" FAKE_DRIVER "' " + environment + " '" OPEN_COMPILER "' " + arguments;
  return printed_by(command);
}

class DriverVersion : public JitCase {
 protected:
  /// The fake NVRTC under that path below the test's folder. Returns the whole path.
  std::string put_nvrtc(const std::string& file) const {
    const fs::path path = folder_ / file;
    fs::create_directories(path.parent_path());
    fs::create_symlink(FAKE_NVRTC, path);
    return path.string();
  }
  /// Which file is taken where the loader looks into the folders `new` and `old` first.
  std::string taken(const std::string& environment, const std::string& arguments) const {
    return open_compiler(
        "LD_LIBRARY_PATH='" + (folder_ / "new").string() + ":" + (folder_ / "old").string() + "' " + environment,
        arguments);
  }
};

TEST_F(DriverVersion, AnOlderOneStandsBeforeOneTooNew) {
  const std::string newer = put_nvrtc("new/libnvrtc.so.13"), older = put_nvrtc("old/libnvrtc.so.12");
  EXPECT_EQ(taken("", ""), newer) << "no driver is known";
  EXPECT_EQ(taken("FAKE_CUDA_VERSION=13000", "driver"), newer);
  EXPECT_EQ(taken("FAKE_CUDA_VERSION=12040", "driver"), older);
  EXPECT_THAT(taken("FAKE_CUDA_VERSION=12040 FAKE_NVRTC_VERSION=12.2", "driver"), Not(older)) << "it is too old";
}

TEST_F(DriverVersion, WhatTheUserNamesIsTaken) {
  const std::string newer = put_nvrtc("new/libnvrtc.so.13"), older = put_nvrtc("old/libnvrtc.so.12");
  EXPECT_EQ(taken("FAKE_CUDA_VERSION=12040 HEDDLE_NVRTC='" + newer + "'", "driver"), newer);
  EXPECT_EQ(taken("FAKE_CUDA_VERSION=12040 HEDDLE_NVRTC='" + (folder_ / "new").string() + "'", "driver"), newer);
  EXPECT_EQ(taken("FAKE_CUDA_VERSION=13000 HEDDLE_NVRTC='" + older + "'", "driver"), older);
}

TEST_F(DriverVersion, OneOfLongAgoIsTooOldNotMissing) {
  for (const char* name : {"libnvrtc.so.11.2", "libnvrtc.so.11"}) {
    const std::string old = put_nvrtc(std::string(name) + "/lib64/" + name);
    const std::string folder = fs::path(old).parent_path().string();
    const std::string words = old + " is version 11.8; 12.3 is the oldest accepted";
    EXPECT_EQ(open_compiler("FAKE_NVRTC_VERSION=11.8 HEDDLE_NVRTC='" + folder + "'", ""),
              "NVRTC cannot be used: HEDDLE_NVRTC is '" + folder + "'; " + words);
    const std::string text =
        open_compiler("FAKE_NVRTC_VERSION=11.8 CUDA_HOME='" + fs::path(folder).parent_path().string() + "'", "");
    if (text.starts_with("/")) continue;  // this machine has a newer one
    EXPECT_THAT(text, AllOf(StartsWith("NVRTC was found but cannot be used: "), HasSubstr(words)));
  }
}

}  // namespace
}  // namespace heddle::cuda::jit
