// A folder of its own for each test, an environment that points there, child processes, and sources for the fake NVRTC.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"

namespace heddle::cuda::jit {

class JitCase : public testing::Test {
 protected:
  std::filesystem::path folder_;

  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "heddle-jit-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* variable : {"HEDDLE_DUMP", "HEDDLE_CACHE_BYTES", "XDG_CACHE_HOME", "FAKE_NVRTC_COUNT"})
      ::unsetenv(variable);
    ::setenv("HEDDLE_CACHE_DIR", cache().c_str(), 1);
    forget();
  }

  void TearDown() override {
    forget();
    std::filesystem::remove_all(folder_);
  }

  std::filesystem::path cache() const { return folder_ / "cache"; }

  static void put(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  static std::string get(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  static std::vector<std::string> listing(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

/// A process that runs `work` and ends; says what it returned, or how it ended. Empty: all is well.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    int pipe[2];
    if (::pipe(pipe) != 0) std::abort();
    process_ = ::fork();
    if (process_ == 0) {
      ::close(pipe[0]);
      std::string answer;
      try {
        answer = work();
      } catch (const std::exception& error) {
        answer = std::string("threw: ") + error.what();
      }
      const bool written = ::write(pipe[1], answer.data(), answer.size()) == static_cast<ssize_t>(answer.size());
      ::_exit(written ? 0 : 1);
    }
    ::close(pipe[1]);
    output_ = pipe[0];
  }
  Child(Child&& other) noexcept : process_(other.process_), output_(std::exchange(other.output_, -1)) {}
  Child& operator=(Child&&) = delete;

  std::string answer() {
    std::string text;
    char part[4096];
    for (ssize_t size; (size = ::read(output_, part, sizeof part)) > 0;)
      text.append(part, static_cast<std::size_t>(size));
    ::close(output_);
    int status = 0;
    ::waitpid(process_, &status, 0);
    return status == 0 ? text : text + " (ended with status " + std::to_string(status) + ")";
  }

 private:
  pid_t process_;
  int output_ = -1;
};

/// A source that the fake NVRTC compiles to an accepted kernel, with `more` lines in front.
inline Source fake_source(const std::string& name, const std::string& more = "") {
  return {.name = name,
          .text = more +
                  "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
                  "//log ptxas         .     16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                  "//log ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem\n"
                  "kernel " +
                  name + "\n",
          .architecture = "sm_90a"};
}

inline std::string text_of(const Cubin& cubin) { return {cubin.bytes.begin(), cubin.bytes.end()}; }

}  // namespace heddle::cuda::jit
