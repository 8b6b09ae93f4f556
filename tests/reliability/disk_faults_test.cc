// Each system call by which files are written and read fails, is interrupted, does half of its work, or is the last one
// of its process: for tensor files, the kernel cache and records of tuning.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "backend/jit/disk_cache.h"
#include "heddle/heddle.h"
#include "reliability/calls.h"
#include "reliability/failing_calls.h"
#include "reliability/scratch_folder.h"
#include "sample.h"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

std::vector<int> errors() {
  if (takes_all()) return {ENOSPC, EIO, EINTR, EMFILE, EACCES, EROFS, ENOMEM};
  return {ENOSPC, EINTR};
}
constexpr const char* kCalls[] = {"kernels", "tuning records"};

class DiskFaults : public testing::Test {
 protected:
  ScratchFolder scratch_;

  /// Saves `length` ones over what is there.
  void save(std::int64_t length) const {
    save_npy(scratch_.path() / "t.npy", Tensor::zeros(DType::u8, {length}));
    save_safetensors(scratch_.path() / "t.safetensors", {{{"t", Tensor::zeros(DType::u8, {length})}}, {}});
    save_text(scratch_.path() / "t.txt", std::string(static_cast<std::size_t>(length), 'x'));
  }
  /// The lengths of what is there, each read whole.
  std::vector<std::int64_t> lengths() const {
    return {load_npy(scratch_.path() / "t.npy").count(),
            load_safetensors(scratch_.path() / "t.safetensors").tensors.at("t").count(),
            static_cast<std::int64_t>(fs::file_size(scratch_.path() / "t.txt"))};
  }
  static std::size_t descriptors() { return ScratchFolder::listing("/proc/self/fd").size(); }

  /// Waits for a child that runs `work`; its status.
  template <class Work>
  static int status_of_child(Work&& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      work();
      std::_Exit(0);
    }
    int status = -1;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
};

TEST_F(DiskFaults, TensorFilesStayWhole) {
  const std::size_t open = descriptors();
  int failed = 0, borne = 0;
  for (const int error : errors()) {
    for (std::int64_t at = 0;; ++at) {
      SCOPED_TRACE(std::string(std::strerror(error)) + " at system call " + std::to_string(at));
      save(1000);
      bool met = false, threw = false;
      {
        const InterveningCall intervening(at, {Intervention::fails, error});
        try {
          save(2000);
        } catch (const Error& refused) {
          threw = true;
          EXPECT_EQ(refused.code(), ErrorCode::io) << refused.what();
          EXPECT_NE(std::string(refused.what()).find(std::strerror(error)), std::string::npos) << refused.what();
        }
        met = InterveningCall::met();
      }
      if (!met) break;
      const long call = InterveningCall::system_call();
      if (call == SYS_write || call == SYS_fsync || call == SYS_close || call == SYS_rename) {
        EXPECT_TRUE(threw || error == EINTR) << "the disk may lack bytes of the file, and nothing says so";
      }
      ++(threw ? failed : borne);
      EXPECT_FALSE(threw && error == EINTR) << "an interrupted call is made again";
      for (const std::int64_t length : lengths()) EXPECT_TRUE(length == 2000 || (threw && length == 1000)) << length;
      EXPECT_EQ(ScratchFolder::listing(scratch_.path()).size(), 3U) << "something was left behind";
      EXPECT_EQ(descriptors(), open);
      if (HasFailure()) return;
    }
  }
  std::printf("%d failed calls were told, %d borne\n", failed, borne);
  EXPECT_GT(failed, 15);
}

TEST_F(DiskFaults, ReadingIsToldOrRepeated) {
  save(1000);
  const std::size_t open = descriptors();
  for (const int error : errors()) {
    for (std::int64_t at = 0;; ++at) {
      SCOPED_TRACE(std::string(std::strerror(error)) + " at system call " + std::to_string(at));
      const InterveningCall intervening(at, {Intervention::fails, error});
      try {
        EXPECT_EQ(load_npy(scratch_.path() / "t.npy").count(), 1000);
        EXPECT_EQ(load_safetensors(scratch_.path() / "t.safetensors").tensors.at("t").count(), 1000);
      } catch (const Error& refused) {
        EXPECT_EQ(refused.code(), ErrorCode::io) << refused.what();
        EXPECT_NE(error, EINTR) << refused.what();
      }
      if (!InterveningCall::met()) break;
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(descriptors(), open);
}

TEST_F(DiskFaults, CachesNeverFailACall) {
  const std::size_t open = descriptors();
  for (const char* const name : kCalls) {
    const Call call = drawn_call(name, 1, {.threads = 1, .folder = scratch_.path()});
    const std::uint64_t expected = call();
    for (const int error : errors()) {
      for (const bool there : {true, false}) {
        for (std::int64_t at = 0;; ++at) {
          SCOPED_TRACE(std::string(name) + ": " + std::strerror(error) + " at system call " + std::to_string(at));
          if (!there) fs::remove_all(scratch_.cache());
          bool met = false;
          {
            const InterveningCall intervening(at, {Intervention::fails, error});
            const std::uint64_t got = call();
            EXPECT_TRUE(got == expected || got == 0);
            met = InterveningCall::met();
          }
          EXPECT_EQ(call(), expected);
          for (const std::string& left : ScratchFolder::listing(scratch_.cache())) EXPECT_NE(left[0], '.') << left;
          EXPECT_EQ(descriptors(), open);
          if (!met || HasFailure()) break;
        }
      }
    }
  }
}

TEST_F(DiskFaults, AFullDiskIsBorneForTheWholeCall) {
  for (const char* const name : kCalls) {
    const Call call = drawn_call(name, 1, {.threads = 1, .folder = scratch_.path()});
    const std::uint64_t expected = call();
    for (const int error : {ENOSPC, EROFS, EIO}) {
      fs::remove_all(scratch_.cache());
      for (std::int64_t at = 0; at < 12; ++at) {
        const InterveningCall intervening(at, {Intervention::fails, error}, true);
        const std::uint64_t got = call();
        EXPECT_TRUE(got == expected || got == 0) << name << ": " << std::strerror(error) << " from system call " << at;
      }
      EXPECT_EQ(call(), expected);
    }
  }
}

TEST_F(DiskFaults, ReadsAndWritesOfOneByteAreContinued) {
  for (const char* const name : {"files", "kernels", "tuning records"}) {
    const Call call = drawn_call(name, 1, {.threads = 1, .folder = scratch_.path()});
    const std::uint64_t expected = call();
    fs::remove_all(scratch_.cache());
    const InterveningCall intervening(0, {Intervention::reads_little}, true);
    EXPECT_EQ(call(), expected) << name;
    EXPECT_EQ(call(), expected) << name;
  }
}

TEST_F(DiskFaults, AProcessThatDiesLeavesTensorFilesWhole) {
  int deaths = 0;
  for (const auto what : {Intervention::dies_before, Intervention::dies_after}) {
    for (std::int64_t at = 0;; ++at) {
      SCOPED_TRACE("dies at system call " + std::to_string(at));
      save(1000);
      const int status = status_of_child([&] {
        const InterveningCall intervening(at, {what});
        save(2000);
      });
      if (WIFEXITED(status)) {
        EXPECT_EQ(WEXITSTATUS(status), 0);
        break;
      }
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      ++deaths;
      for (const std::int64_t length : lengths()) EXPECT_TRUE(length == 1000 || length == 2000) << length;
      // A file has a name of its own only between the last two calls.
      for (const std::string& name : ScratchFolder::listing(scratch_.path())) {
        if (name.starts_with(".heddle-")) fs::remove(scratch_.path() / name);
      }
      EXPECT_EQ(ScratchFolder::listing(scratch_.path()).size(), 3U);
      save(1000);
    }
  }
  std::printf("%d deaths\n", deaths);
  EXPECT_GT(deaths, 20);
}

TEST_F(DiskFaults, AProcessThatDiesLeavesCachesThatServe) {
  int deaths = 0;
  for (const char* const name : kCalls) {
    const Call call = drawn_call(name, 1, {.threads = 1, .folder = scratch_.path()});
    const std::uint64_t expected = call();
    for (const auto what : {Intervention::dies_before, Intervention::dies_after}) {
      for (std::int64_t at = 0;; ++at) {
        SCOPED_TRACE(std::string(name) + " dies at system call " + std::to_string(at));
        fs::remove_all(scratch_.cache());
        const int status = status_of_child([&] {
          const InterveningCall intervening(at, {what});
          call();
        });
        if (WIFEXITED(status)) {
          EXPECT_EQ(WEXITSTATUS(status), 0);
          break;
        }
        ++deaths;
        EXPECT_EQ(call(), expected);
        // A later process removes what was left behind, once it is old.
        for (const auto& entry : fs::directory_iterator(scratch_.cache())) {
          fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(2));
        }
        fs::remove(scratch_.cache() / "gone");
        std::string trouble;
        EXPECT_EQ(drawn_call(name, 1 + static_cast<std::uint64_t>(at), {.threads = 1, .folder = scratch_.path()})(),
                  drawn_call(name, 1 + static_cast<std::uint64_t>(at), {.threads = 1, .folder = scratch_.path()})());
      }
    }
  }
  std::printf("%d deaths\n", deaths);
  EXPECT_GT(deaths, 30);
}

std::string key(int i) {
  std::string key(32, '0');
  key.back() = static_cast<char>('a' + i);
  return key;
}

TEST_F(DiskFaults, TimesAheadOfTheClockAreNoReasonToStay) {
  const ScopedVariable bound("HEDDLE_CACHE_BYTES", "4K");
  jit::DiskCache disk;
  jit::Record kilobyte;  // three fit, with their headers
  kilobyte.code.bytes.assign(1000, 'x');
  const auto ahead = fs::file_time_type::clock::now() + std::chrono::hours(24 * 365);
  for (int i = 0; i < 3; ++i) disk.store(key(i), kilobyte);
  fs::last_write_time(scratch_.cache() / (key(0) + ".kernel"), ahead);
  std::ofstream(scratch_.cache() / ".writing-1-0-12345678") << "x";
  fs::last_write_time(scratch_.cache() / ".writing-1-0-12345678", ahead);
  disk.store(key(3), kilobyte);
  EXPECT_EQ(ScratchFolder::listing(scratch_.cache()),
            (std::vector<std::string>{key(1) + ".kernel", key(2) + ".kernel", key(3) + ".kernel"}));
  EXPECT_TRUE(disk.load(key(1)));
}

TEST_F(DiskFaults, RecordsOfTuningTakeAwayWhatWasLeftBehind) {
  const Call call = drawn_call("tuning records", 1, {.threads = 1, .folder = scratch_.path()});
  call();
  std::ofstream(scratch_.cache() / ".writing-1-0-12345678") << "x";
  fs::last_write_time(scratch_.cache() / ".writing-1-0-12345678",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  call();
  EXPECT_EQ(ScratchFolder::listing(scratch_.cache()).size(), 1U);
}

/// Processes that store and load the same kernels in one folder, whose bound has room for half of them.
TEST_F(DiskFaults, ManyProcessesShareOneCache) {
  const ScopedVariable bound("HEDDLE_CACHE_BYTES", "6K");
  constexpr int kProcesses = 4;
  const int rounds = is_reduced() ? 100 : 400;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(120);
      std::mt19937 random(static_cast<unsigned>(i));
      jit::DiskCache disk;
      for (int round = 0; round < rounds; ++round) {
        const int number = static_cast<int>(random() % 10);
        jit::Record record;
        record.code.bytes.assign(900, static_cast<char>(number));
        if (const auto found = disk.load(key(number)); found && found->code.bytes != record.code.bytes) std::_Exit(2);
        disk.store(key(number), record);
      }
      const std::string notes = disk.notes();
      if (std::count(notes.begin(), notes.end(), '\n') == 1) std::_Exit(0);
      std::fputs(notes.c_str(), stderr);
      std::_Exit(3);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  for (const std::string& name : ScratchFolder::listing(scratch_.cache()))
    EXPECT_TRUE(name.ends_with(".kernel")) << name;
}

}  // namespace
}  // namespace heddle::test
