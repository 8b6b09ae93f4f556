// The folder of kernels: where it is, what is trusted in it, what happens when it cannot be used, and its bound.
#include "backend/jit/disk_cache.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>

#include "backend/cuda/jit/jit_case.h"

namespace heddle::jit {
namespace {

namespace fs = std::filesystem;
using cuda::jit::Child;
using cuda::jit::JitCase;
using cuda::jit::text_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string key(int i) {
  std::string key(32, '0');
  key.back() = static_cast<char>('a' + i);
  return key;
}

Record record(const std::string& bytes = "cubin") {
  Record record;
  record.code.bytes.assign(bytes.begin(), bytes.end());
  record.code.registers = 40;
  return record;
}

class DiskCacheCase : public JitCase {
 protected:
  fs::path file(int i = 0) const { return cache() / (key(i) + ".kernel"); }

  /// Stores and loads; what the cache then says, without its first line.
  static std::string troubles_of_a_round() {
    DiskCache disk;
    disk.store(key(0), record());
    const bool loaded = disk.load(key(0)).has_value();
    std::string notes = disk.notes();
    return (loaded ? "kept: " : "lost: ") + notes.substr(notes.find('\n') + 1);
  }

  /// The file is not trusted, a note says why, and the next store puts it right.
  void expect_replaced(const std::string& why) const {
    DiskCache disk;
    EXPECT_FALSE(disk.load(key(0))) << why;
    EXPECT_THAT(disk.notes(), HasSubstr(file().string() + " " + why));
    disk.store(key(0), record());
    EXPECT_TRUE(disk.load(key(0))) << why;
  }
};

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST_F(DiskCacheCase, KeepsKernels) {
  DiskCache disk;
  EXPECT_FALSE(disk.load(key(0)));
  disk.store(key(0), record("one"));
  disk.store(key(1), record("two"));
  EXPECT_EQ(text_of(disk.load(key(0)).value().code), "one");
  EXPECT_EQ(text_of(disk.load(key(1)).value().code), "two");
  EXPECT_EQ(disk.notes(), "kernel cache: " + cache().string() + ", at most 1024 MiB\n");
}

TEST_F(DiskCacheCase, IsForItsUserAlone) {
  ::setenv("HEDDLE_CACHE_DIR", (folder_ / "deep" / "er").c_str(), 1);
  const mode_t before = ::umask(0);
  DiskCache disk;
  disk.store(key(0), record());
  ::umask(before);
  EXPECT_EQ(mode_of(folder_ / "deep" / "er"), 0700u);
  EXPECT_EQ(mode_of(folder_ / "deep"), 0700u);
  EXPECT_EQ(mode_of(folder_ / "deep" / "er" / (key(0) + ".kernel")), 0600u);
  EXPECT_THAT(listing(folder_ / "deep" / "er"), ElementsAre(key(0) + ".kernel"));
}

TEST_F(DiskCacheCase, StandsWhereTheEnvironmentSays) {
  const auto folder = [] {
    const std::string notes = DiskCache().notes();
    return notes.substr(0, notes.find(','));
  };
  const std::string home = ::getenv("HOME") == nullptr ? "" : ::getenv("HOME");
  ::setenv("HOME", "/the/home", 1);
  ::setenv("XDG_CACHE_HOME", "/the/xdg", 1);
  ::setenv("HEDDLE_CACHE_DIR", "relative", 1);
  EXPECT_EQ(folder(), "kernel cache: " + (fs::current_path() / "relative").string());
  ::setenv("HEDDLE_CACHE_DIR", "/the/cache", 1);
  EXPECT_EQ(folder(), "kernel cache: /the/cache");
  ::unsetenv("HEDDLE_CACHE_DIR");
  EXPECT_EQ(folder(), "kernel cache: /the/xdg/heddle");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(folder(), "kernel cache: /the/home/.cache/heddle");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(folder(), "kernel cache: /the/home/.cache/heddle");
  ::unsetenv("HOME");
  EXPECT_EQ(DiskCache().notes(),
            "kernel cache: none on disk; HEDDLE_CACHE_DIR, XDG_CACHE_HOME and HOME name no folder\n");
  EXPECT_EQ(troubles_of_a_round(), "lost: ");
  if (!home.empty()) ::setenv("HOME", home.c_str(), 1);
}

TEST_F(DiskCacheCase, DamagedFilesAreReplaced) {
  DiskCache().store(key(0), record());
  const std::string whole = get(file());
  put(file(), "");
  expect_replaced("is 0 bytes long, less than a header; compiled again");
  put(file(), whole.substr(0, whole.size() - 1));
  expect_replaced("is cut short");
  put(file(), whole + "x");
  expect_replaced("is 1 bytes too long");
  put(file(), "x" + whole.substr(1));
  expect_replaced("is no kernel of this cache");
  std::string flipped = whole;
  flipped.back() ^= 1;
  put(file(), flipped);
  expect_replaced("does not match its checksum");
  DiskCache().store(key(1), record());
  fs::copy_file(file(1), file(), fs::copy_options::overwrite_existing);
  expect_replaced("holds another kernel");
}

TEST_F(DiskCacheCase, FilesThatAreNoneOfOursAreReplaced) {
  DiskCache().store(key(0), record());
  const std::string whole = get(file());

  fs::permissions(file(), fs::perms::others_write, fs::perm_options::add);
  expect_replaced("others may write to it (mode 602)");
  EXPECT_EQ(mode_of(file()), 0600u);

  put(folder_ / "elsewhere", whole);
  fs::remove(file());
  fs::create_symlink(folder_ / "elsewhere", file());
  expect_replaced("is a symbolic link");
  EXPECT_EQ(get(folder_ / "elsewhere"), whole) << "the link was replaced, not what it led to";

  fs::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  expect_replaced("is no regular file");

  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(file().c_str(), 12345, 12345), 0);
    expect_replaced("belongs to user 12345, not to user 0");
  }
}

TEST_F(DiskCacheCase, FoldersThatCannotBeTrustedAreNotUsed) {
  fs::create_directory(cache());
  fs::permissions(cache(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_THAT(troubles_of_a_round(),
              testing::MatchesRegex("lost: kernel cache: .*/cache others may write to it .mode 7.5.; "
                                    "kernels are not kept\n"));
  EXPECT_THAT(listing(cache()), IsEmpty());
  if (::geteuid() == 0) {
    fs::permissions(cache(), fs::perms::owner_all, fs::perm_options::replace);
    ASSERT_EQ(::chown(cache().c_str(), 12345, 12345), 0);
  } else {
    ::setenv("HEDDLE_CACHE_DIR", "/usr", 1);
  }
  EXPECT_THAT(troubles_of_a_round(), HasSubstr(" belongs to user "));
}

TEST_F(DiskCacheCase, OwnLinksToOwnFoldersAreFollowed) {
  fs::create_directory(folder_ / "real");
  fs::permissions(folder_ / "real", fs::perms::owner_all, fs::perm_options::replace);
  fs::create_symlink(folder_ / "real", cache());
  EXPECT_EQ(troubles_of_a_round(), "kept: ");
  if (::geteuid() == 0) {
    ASSERT_EQ(::lchown(cache().c_str(), 12345, 12345), 0);
    fs::permissions(folder_, fs::perms::all, fs::perm_options::replace);
    EXPECT_EQ(
        Child([&] {
          if (::seteuid(54321) != 0) return std::string("seteuid");
          return troubles_of_a_round();
        }).answer(),
        "lost: kernel cache: " + cache().string() + " is a symbolic link of another user; kernels are not kept\n");
  }
}

TEST_F(DiskCacheCase, AFileInTheFoldersPlaceIsNoError) {
  put(cache(), "a file");
  EXPECT_EQ(troubles_of_a_round(),
            "lost: kernel cache: " + cache().string() + " cannot be used: Not a directory; kernels are not kept\n");
  ::setenv("HEDDLE_CACHE_DIR", (cache() / "below").c_str(), 1);
  EXPECT_THAT(troubles_of_a_round(), HasSubstr("below cannot be used: Not a directory"));
  EXPECT_EQ(get(cache()), "a file");
}

/// Runs as a user who is bound by file modes.
std::string as_nobody(const fs::path& folder, const std::function<std::string()>& work) {
  if (::geteuid() != 0) return Child(work).answer();
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    EXPECT_EQ(::lchown(entry.path().c_str(), 65534, 65534), 0);
  }
  fs::permissions(folder, fs::perms::all, fs::perm_options::replace);
  return Child([&] { return ::seteuid(65534) == 0 ? work() : "seteuid"; }).answer();
}

TEST_F(DiskCacheCase, AFolderThatCannotBeWrittenIsStillRead) {
  DiskCache().store(key(0), record());
  fs::permissions(cache(), fs::perms::owner_write, fs::perm_options::remove);
  EXPECT_EQ(as_nobody(folder_,
                      [&] {
                        DiskCache disk;
                        disk.store(key(1), record());
                        return std::string(disk.load(key(0)) ? "read " : "") + (disk.load(key(1)) ? "wrote " : "") +
                               disk.notes();
                      }),
            "read kernel cache: " + cache().string() + ", at most 1024 MiB\nkernel cache: " + file(1).string() +
                " cannot be written: Permission denied\n");
  fs::permissions(cache(), fs::perms::owner_write, fs::perm_options::add);
}

TEST_F(DiskCacheCase, AFolderThatCannotBeMadeIsNoError) {
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms::owner_write, fs::perm_options::remove);
  ::setenv("HEDDLE_CACHE_DIR", (folder_ / "closed" / "cache").c_str(), 1);
  EXPECT_EQ(as_nobody(folder_, [] { return troubles_of_a_round(); }),
            "lost: kernel cache: " + (folder_ / "closed" / "cache").string() +
                " cannot be used: Permission denied; kernels are not kept\n");
}

TEST_F(DiskCacheCase, AFullDiskIsNoError) {
  const auto fill = [&] {
    DiskCache disk;
    disk.store(key(0), record());
    disk.store(key(1), record(std::string(1 << 20, 'x')));
    std::string left;
    for (const std::string& name : listing(cache())) left += name + " ";
    return std::string(disk.load(key(0)) ? "kept " : "") + left + disk.notes();
  };
  const std::string start = "kept " + key(0) + ".kernel kernel cache: " + cache().string() +
                            ", at most 1024 MiB\nkernel cache: " + file(1).string() + " cannot be written: ";
  EXPECT_EQ(Child([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{1 << 16, 1 << 16};
              return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 ? fill() : "setrlimit";
            }).answer(),
            start + "File too large\n");
  // On a disk that is really full, where this process may mount one.
  fs::remove_all(cache());
  fs::create_directory(cache());
  const std::string answer =
      Child([&] {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("none", cache().c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0) {
          return std::string("cannot mount");
        }
        return fill();
      }).answer();
  if (answer == "cannot mount") {
    std::printf("no disk was filled: this process may mount none\n");
  } else {
    EXPECT_EQ(answer, start + "No space left on device\n");
  }
}

TEST_F(DiskCacheCase, GrowsToItsBoundOnly) {
  ::setenv("HEDDLE_CACHE_BYTES", "4K", 1);
  DiskCache disk;
  const Record kilobyte = record(std::string(1000, 'x'));  // three fit, with their headers
  const auto age = [&](int i, int hours) {
    fs::last_write_time(file(i), fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  put((fs::create_directory(cache()), cache() / "other"), std::string(10000, 'x'));
  fs::permissions(cache(), fs::perms::owner_all, fs::perm_options::replace);
  for (int i = 0; i < 3; ++i) {
    disk.store(key(i), kilobyte);
    age(i, 10 - i);
  }
  EXPECT_TRUE(disk.load(key(0))) << "used now, so it is not the oldest any more";
  disk.store(key(3), kilobyte);
  EXPECT_THAT(listing(cache()), ElementsAre(file(0).filename(), file(2).filename(), file(3).filename(), "other"));
  age(0, 5);
  age(2, 4);
  disk.store(key(4), record(std::string(3500, 'x')));
  EXPECT_THAT(listing(cache()), ElementsAre(file(4).filename(), "other")) << "and other files stay";
  EXPECT_EQ(disk.notes(), "kernel cache: " + cache().string() + ", at most 0 MiB\n");

  disk.store(key(5), record(std::string(5000, 'x')));
  EXPECT_THAT(listing(cache()), ElementsAre(file(4).filename(), "other"));
  EXPECT_THAT(disk.notes(), HasSubstr(file(5).string() + " would be 5104 bytes long, more than the cache's 4096"));
}

TEST_F(DiskCacheCase, WhatADeadProcessLeftBehindGoes) {
  fs::create_directory(cache());
  fs::permissions(cache(), fs::perms::owner_all, fs::perm_options::replace);
  put(cache() / ".writing-1-0-12345678", "old");
  fs::last_write_time(cache() / ".writing-1-0-12345678", fs::file_time_type::clock::now() - std::chrono::hours(2));
  put(cache() / ".writing-2-0-12345678", "perhaps still written");
  DiskCache().store(key(0), record());
  EXPECT_THAT(listing(cache()), ElementsAre(".writing-2-0-12345678", file().filename()));
}

TEST_F(DiskCacheCase, ABoundThatIsNoneIsSaid) {
  ::setenv("HEDDLE_CACHE_BYTES", "much", 1);
  EXPECT_THAT(DiskCache().notes(), HasSubstr("HEDDLE_CACHE_BYTES is 'much'"));
  EXPECT_THAT(DiskCache().notes(), HasSubstr("at most 1024 MiB"));
}

TEST_F(DiskCacheCase, NotesDoNotGrowWithoutEnd) {
  DiskCache disk;
  disk.store(key(0), record());
  for (int i = 0; i < 26; ++i) {
    put(file(i), "damaged");
    EXPECT_FALSE(disk.load(key(i)));
    EXPECT_FALSE(disk.load(key(i))) << "noted once";
  }
  const std::string notes = disk.notes();
  EXPECT_EQ(std::count(notes.begin(), notes.end(), '\n'), 18);
  EXPECT_THAT(notes, HasSubstr("kernel cache: and 20 more\n"));
}

TEST_F(DiskCacheCase, AFolderThatGoesAwayIsMadeAgain) {
  DiskCache disk;
  disk.store(key(0), record());
  fs::remove_all(cache());
  EXPECT_FALSE(disk.load(key(0)));
  disk.store(key(0), record());
  EXPECT_TRUE(disk.load(key(0)));
}

}  // namespace
}  // namespace heddle::jit
