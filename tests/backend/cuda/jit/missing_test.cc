// No NVRTC, one that is too old, and files that are none: each in a process of its own.
#include "backend/cuda/jit/jit_case.h"

namespace heddle::cuda::jit {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Missing : public JitCase {
 protected:
  void TearDown() override {
    ::unsetenv("HEDDLE_NVRTC");
    JitCase::TearDown();
  }

  /// The text of compiler_missing() where HEDDLE_NVRTC is `path`; build() must say the same.
  static std::string complaint(const std::string& path, const char* version = "13.0") {
    return Child([&] {
             ::setenv("HEDDLE_NVRTC", path.c_str(), 1);
             ::setenv("FAKE_NVRTC_VERSION", version, 1);
             const std::string missing = compiler_missing();
             if (missing.empty()) return "found " + compiler_version();
             try {
               build(fake_source("k"));
               return std::string("built");
             } catch (const Error& error) {
               if (error.code() != ErrorCode::unsupported) return std::string("another code");
               return missing == error.what() ? missing : "build() says: " + std::string(error.what());
             }
           })
        .answer();
  }
};

TEST_F(Missing, AFileThatIsNotThere) {
  EXPECT_THAT(complaint("/nonexistent/libnvrtc.so.13"),
              AllOf(StartsWith("NVRTC cannot be used: HEDDLE_NVRTC is '/nonexistent/libnvrtc.so.13'"),
                    HasSubstr("No such file or directory")));
}

TEST_F(Missing, AFolderWithoutOne) {
  EXPECT_EQ(complaint(folder_.string()), "NVRTC cannot be used: HEDDLE_NVRTC is '" + folder_.string() +
                                             "'; the folder holds no libnvrtc.so.13 or libnvrtc.so.12 or libnvrtc.so");
}

TEST_F(Missing, AFileThatIsNoLibrary) {
  put(folder_ / "libnvrtc.so.13", "no library");
  EXPECT_THAT(complaint((folder_ / "libnvrtc.so.13").string()), HasSubstr("libnvrtc.so.13"));
}

TEST_F(Missing, ALibraryThatIsNotNvrtc) {
  EXPECT_THAT(complaint(NO_NVRTC), HasSubstr(std::string(NO_NVRTC) + " has no function nvrtcGetErrorString"));
}

TEST_F(Missing, OneThatIsTooOld) {
  for (const char* version : {"12.2", "11.8", "9.9"}) {
    EXPECT_THAT(complaint(FAKE_NVRTC, version),
                HasSubstr(std::string(FAKE_NVRTC) + " is version " + version + "; 12.3 is the oldest accepted"));
  }
  for (const char* version : {"12.3", "12.9", "13.0", "14.1"}) {
    EXPECT_EQ(complaint(FAKE_NVRTC, version), std::string("found ") + version);
  }
}

TEST_F(Missing, OneThatDoesNotSayItsVersion) {
  EXPECT_THAT(complaint(FAKE_NVRTC, "none"), HasSubstr("does not say its version"));
}

TEST_F(Missing, InAFolderTheBestNameIsTaken) {
  fs::create_symlink(FAKE_NVRTC, folder_ / "libnvrtc.so.12");
  EXPECT_EQ(complaint(folder_.string()), "found 13.0");
}

TEST_F(Missing, TheSentenceListsWhereItLooked) {
  const std::string sentence = Child([&] {
                                 ::unsetenv("HEDDLE_NVRTC");
                                 ::setenv("CUDA_HOME", "/nonexistent/toolkit", 1);
                                 return compiler_missing();
                               }).answer();
  if (sentence.empty()) {
    std::printf("this machine has an NVRTC, so nothing was missing\n");
    return;
  }
  EXPECT_THAT(sentence, AllOf(HasSubstr("libnvrtc.so.13"), HasSubstr("the loader's path"),
                              HasSubstr("/nonexistent/toolkit/lib64"), HasSubstr("HEDDLE_NVRTC")));
}

}  // namespace
}  // namespace heddle::cuda::jit
