// A test that compiles kernels into a folder of its own. Skipped without NVRTC, unless HEDDLE_REQUIRE_NVRTC asks for
// it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "backend/cuda/jit/cuda_jit.h"

namespace heddle::cuda {

class OwnKernels : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "heddle-kernels-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    ::setenv("HEDDLE_CACHE_DIR", name.c_str(), 1);
    jit::forget();
    const std::string missing = jit::compiler_missing();
    if (missing.empty()) return;
    if (std::getenv("HEDDLE_REQUIRE_NVRTC") != nullptr) FAIL() << missing;
    GTEST_SKIP() << missing;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

 private:
  std::filesystem::path folder_;
};

}  // namespace heddle::cuda
