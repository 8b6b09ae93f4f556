// Files on the disk: what is there after a success, and after each failure.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "expect_error.h"
#include "files/byte_sink.h"
#include "files/byte_source.h"
#include "files/golden.h"
#include "files/memory_files.h"
#include "files/safetensors.h"
#include "heddle/files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

class Disk : public testing::Test {
 protected:
  fs::path folder_;
  Tensor tensor_ = Tensor::zeros(DType::f32, {2, 3});

  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "heddle-disk-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    static_cast<float*>(tensor_.data())[5] = 4.5f;
  }

  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all, fs::perm_options::add);
    fs::remove_all(folder_);
  }

  static void put(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  static std::string get(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  void cannot_write(const fs::path& path, const std::string& why) const {
    const std::string sentence = "cannot write " + path.string() + ": " + why;
    expect_error([&] { save_npy(path, tensor_); }, ErrorCode::io, sentence);
    expect_error([&] { save_safetensors(path, {{{"t", tensor_}}, {}}); }, ErrorCode::io, sentence);
    expect_error([&] { save_text(path, std::string(4096, 'x')); }, ErrorCode::io, sentence);
  }

  static void cannot_read(const fs::path& path, const std::string& why) {
    const std::string sentence = "cannot read " + path.string() + ": " + why;
    expect_error([&] { load_npy(path); }, ErrorCode::io, sentence);
    expect_error([&] { load_safetensors(path); }, ErrorCode::io, sentence);
  }
};

/// File permissions do not bind root, so these tests act as another user.
class WithoutPrivileges {
 public:
  WithoutPrivileges() { switched_ = ::geteuid() == 0 && ::seteuid(65534) == 0; }
  ~WithoutPrivileges() {
    if (switched_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  static bool bound() { return ::geteuid() != 0; }

 private:
  bool switched_ = false;
};

TEST_F(Disk, RoundTrip) {
  save_npy(folder_ / "t.npy", tensor_);
  save_safetensors(folder_ / "t.safetensors", {{{"t", tensor_}}, {{"k", "v"}}});
  EXPECT_EQ(element_bytes(load_npy(folder_ / "t.npy")), element_bytes(tensor_));
  const TensorFile file = load_safetensors(folder_ / "t.safetensors");
  EXPECT_EQ(element_bytes(file.tensors.at("t")), element_bytes(tensor_));
  EXPECT_EQ(file.metadata.at("k"), "v");
  EXPECT_EQ(listing(), (std::vector<std::string>{"t.npy", "t.safetensors"}));
}

// A process that is killed in the middle of writing leaves nothing.
TEST_F(Disk, NoNameBeforeTheCommit) {
  put(folder_ / "old.npy", "old");
  {
    files::ReplacingFile file(folder_ / "old.npy");
    file.write(std::as_bytes(std::span("new", 3)));
    if (listing().size() > 1) GTEST_SKIP() << "this file system has no files without a name";
    EXPECT_EQ(get(folder_ / "old.npy"), "old");
    file.commit();
    EXPECT_EQ(get(folder_ / "old.npy"), "new");
  }
  EXPECT_EQ(listing(), std::vector<std::string>{"old.npy"});
}

TEST_F(Disk, GoldenFiles) {
  put(folder_ / "g.safetensors", kGoldenSafetensors);
  EXPECT_EQ(load_safetensors(folder_ / "g.safetensors").tensors.size(), 9u);
  put(folder_ / "g.npy", kGoldenNpyFortran);
  EXPECT_EQ(elements(load_npy(folder_ / "g.npy")), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  // Sentences name the file.
  put(folder_ / "cut.npy", kGoldenNpyFortran.substr(0, 139));
  expect_error([&] { load_npy(folder_ / "cut.npy"); }, ErrorCode::io,
               "cannot read " + (folder_ / "cut.npy").string() +
                   ": it is truncated: [2, 3] i16 elements take 12 bytes, but 11 follow the header");
}

TEST_F(Disk, AnOldFileIsReplacedAndKeepsItsMode) {
  put(folder_ / "t.npy", "old and longer than the new one " + std::string(1000, 'x'));
  fs::permissions(folder_ / "t.npy", fs::perms(0640));
  save_npy(folder_ / "t.npy", tensor_);
  EXPECT_EQ(element_bytes(load_npy(folder_ / "t.npy")), element_bytes(tensor_));
  EXPECT_EQ(fs::status(folder_ / "t.npy").permissions(), fs::perms(0640));
  EXPECT_EQ(listing(), std::vector<std::string>{"t.npy"});
}

TEST_F(Disk, ANewFileHasTheUsualMode) {
  const mode_t mask = ::umask(027);
  save_npy(folder_ / "t.npy", tensor_);
  ::umask(mask);
  EXPECT_EQ(fs::status(folder_ / "t.npy").permissions(), fs::perms(0640));
}

TEST_F(Disk, RelativeNamesAndLongOnes) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  save_npy("t.npy", tensor_);
  fs::current_path(before);
  EXPECT_EQ(load_npy(folder_ / "t.npy").count(), 6);
  const std::string longest(255, 'n');
  save_npy(folder_ / longest, tensor_);
  EXPECT_EQ(load_npy(folder_ / longest).count(), 6);
}

TEST_F(Disk, ALinkStaysAndItsTargetIsReplaced) {
  fs::create_directory(folder_ / "data");
  put(folder_ / "data" / "t.npy", "old");
  fs::create_symlink(fs::path("data") / "t.npy", folder_ / "link");
  save_npy(folder_ / "link", tensor_);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(load_npy(folder_ / "data" / "t.npy").count(), 6);
  EXPECT_EQ(listing(), (std::vector<std::string>{"data", "link"}));
}

TEST_F(Disk, ALinkToWhatIsNotThereYetStaysToo) {
  fs::create_directory(folder_ / "data");
  fs::create_symlink(fs::path("data") / "next", folder_ / "link");
  fs::create_symlink("t", folder_ / "data" / "next");
  save_text(folder_ / "link", "text");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "data" / "next"));
  EXPECT_EQ(get(folder_ / "data" / "t"), "text");
  fs::create_symlink(fs::path("missing") / "t", folder_ / "far");
  cannot_write(folder_ / "far", "No such file or directory");
}

TEST_F(Disk, ALinkLoopIsToldAsOne) {
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  cannot_write(folder_ / "a", "Too many levels of symbolic links");
  EXPECT_EQ(listing(), (std::vector<std::string>{"a", "b"}));
}

// As /dev/stdout is one: the link of an open pipe reads as "pipe:[1234]", a name of nothing.
TEST_F(Disk, AnOpenPipeIsWrittenThroughItsLink) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  fs::create_symlink("/proc/self/fd/" + std::to_string(ends[1]), folder_ / "out");
  save_text(folder_ / "out", "text");
  ::close(ends[1]);
  std::array<char, 16> got{};
  EXPECT_EQ(::read(ends[0], got.data(), got.size()), 4);
  ::close(ends[0]);
  EXPECT_STREQ(got.data(), "text");
  EXPECT_TRUE(fs::is_symlink(folder_ / "out"));
  EXPECT_EQ(listing(), std::vector<std::string>{"out"});
}

TEST_F(Disk, AnOpenFileThatWasRemovedIsNotMadeAnew) {
  const int descriptor = ::open((folder_ / "t").c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_GE(descriptor, 0);
  fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor), folder_ / "out");
  fs::remove(folder_ / "t");
  cannot_write(folder_ / "out", "its file was removed");
  ::close(descriptor);
  EXPECT_EQ(listing(), std::vector<std::string>{"out"});
}

TEST_F(Disk, TextsAreWrittenAsTheyAre) {
  put(folder_ / "t", "old and longer");
  save_text(folder_ / "t", std::string_view("a\0\n", 3));
  EXPECT_EQ(get(folder_ / "t"), std::string("a\0\n", 3));
  save_text(folder_ / "t", "");
  EXPECT_EQ(get(folder_ / "t"), "");
}

TEST_F(Disk, WithoutACommitTheOldFileStays) {
  put(folder_ / "t", "old");
  {
    files::ReplacingFile file(folder_ / "t");
    file.write(std::as_bytes(std::span("half of the new one")));
    EXPECT_EQ(get(folder_ / "t"), "old");
  }
  EXPECT_EQ(get(folder_ / "t"), "old");
  EXPECT_EQ(listing(), std::vector<std::string>{"t"});
}

// By then the file has a name.
TEST_F(Disk, AFailedRenameLeavesNothing) {
  {
    files::ReplacingFile file(folder_ / "t");
    file.write(std::as_bytes(std::span("new", 3)));
    fs::create_directory(folder_ / "t");
    EXPECT_THROW(file.commit(), Error);
  }
  EXPECT_EQ(listing(), std::vector<std::string>{"t"});
}

TEST_F(Disk, AFullDiskLeavesTheOldFile) {
  put(folder_ / "t", "old");
  // The nearest thing to a full disk that needs no privileges: files may not grow as long as the shorter of the two.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  files::MemorySink whole;
  files::write_safetensors({{{"t", tensor_}}, {}}, whole);
  for (small.rlim_cur = 1; small.rlim_cur < whole.bytes.size(); ++small.rlim_cur) {
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    cannot_write(folder_ / "t", "File too large");
  }
  cannot_write(folder_ / "new", "File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(get(folder_ / "t"), "old");
  EXPECT_EQ(listing(), std::vector<std::string>{"t"});
}

TEST_F(Disk, AFullDeviceIsDetected) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "this machine has no /dev/full";
  const WithoutPrivileges other;
  cannot_write("/dev/full", "No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(Disk, DevicesAreWrittenNotReplaced) {
  // Nor could they be here, whatever the fault: root's rights are given up.
  const WithoutPrivileges other;
  if (!WithoutPrivileges::bound()) GTEST_SKIP() << "cannot give up root's privileges here";
  save_npy("/dev/null", tensor_);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(Disk, ARefusedTensorLeavesTheOldFile) {
  put(folder_ / "t", "old");
  EXPECT_THROW(save_npy(folder_ / "t", Tensor::zeros(DType::bf16, {1})), Error);
  EXPECT_THROW(save_safetensors(folder_ / "t", {{{"\xff", tensor_}}, {}}), Error);
  EXPECT_EQ(get(folder_ / "t"), "old");
  EXPECT_EQ(listing(), std::vector<std::string>{"t"});
}

TEST_F(Disk, PlacesThatCannotBeWritten) {
  cannot_write(folder_, "it is a directory");
  cannot_write(folder_ / "missing" / "t", "No such file or directory");
  cannot_write(folder_ / "missing" / "", "it names no file");
  cannot_write("", "it names no file");
  put(folder_ / "file", "");
  cannot_write(folder_ / "file" / "t", "Not a directory");
  cannot_write(folder_ / std::string(256, 'n'), "File name too long");
  EXPECT_EQ(listing(), std::vector<std::string>{"file"});
}

TEST_F(Disk, AFolderWithoutPermission) {
  put(folder_ / "t", "old");
  fs::permissions(folder_, fs::perms(0555));
  fs::permissions(folder_ / "t", fs::perms(0666));
  {
    const WithoutPrivileges other;
    if (!WithoutPrivileges::bound()) GTEST_SKIP() << "cannot give up root's privileges here";
    cannot_write(folder_ / "new", "Permission denied");
    cannot_write(folder_ / "t", "Permission denied");
  }
  EXPECT_EQ(get(folder_ / "t"), "old");
  EXPECT_EQ(listing(), std::vector<std::string>{"t"});
}

TEST_F(Disk, AProtectedFile) {
  put(folder_ / "t", "old");
  fs::permissions(folder_, fs::perms(0777));
  fs::permissions(folder_ / "t", fs::perms(0444));
  {
    const WithoutPrivileges other;
    if (!WithoutPrivileges::bound()) GTEST_SKIP() << "cannot give up root's privileges here";
    cannot_write(folder_ / "t", "Permission denied");
  }
  EXPECT_EQ(get(folder_ / "t"), "old");
  fs::permissions(folder_ / "t", fs::perms(0));
  {
    const WithoutPrivileges other;
    cannot_read(folder_ / "t", "Permission denied");
  }
}

TEST_F(Disk, PlacesThatCannotBeRead) {
  cannot_read(folder_ / "missing", "No such file or directory");
  cannot_read(folder_, "it is not a regular file");
  cannot_read("/dev/null", "it is not a regular file");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  cannot_read(folder_ / "pipe", "it is not a regular file");
}

TEST_F(Disk, AFileThatShrinksWhileItIsRead) {
  put(folder_ / "t", "0123456789");
  const files::FileSource source(folder_ / "t");
  EXPECT_EQ(source.size(), 10u);
  fs::resize_file(folder_ / "t", 5);
  std::vector<std::byte> bytes(10);
  expect_error([&] { source.read(0, bytes); }, ErrorCode::io,
               "cannot read " + (folder_ / "t").string() + ": it became shorter while it was read");
}

TEST_F(Disk, AReaderSeesOldOrNewNeverHalf) {
  const Tensor ones = Tensor::zeros(DType::u8, {100000});
  const Tensor twos = Tensor::zeros(DType::i16, {50});
  save_npy(folder_ / "t", ones);
  std::thread writer([&] {
    for (int i = 0; i < 10; ++i) save_npy(folder_ / "t", i % 2 == 0 ? twos : ones);
  });
  std::thread other([&] {
    for (int i = 0; i < 10; ++i) save_npy(folder_ / "t", i % 2 == 0 ? ones : twos);
  });
  for (int i = 0; i < 50; ++i) {
    const Tensor tensor = load_npy(folder_ / "t");
    EXPECT_TRUE(tensor.count() == 100000 || tensor.count() == 50);
  }
  writer.join();
  other.join();
  EXPECT_EQ(listing(), std::vector<std::string>{"t"});
}

TEST_F(Disk, AByteZeroInAPathIsRefused) {
  save_npy(folder_ / "x", tensor_);
  const std::string old = get(folder_ / "x"), path = (folder_ / "x").string() + std::string("\0y", 2);
  const auto refused = [&](auto call) {
    expect_error(call, ErrorCode::invalid_argument,
                 testing::AllOf(testing::HasSubstr("path has a byte 0 behind '"), testing::HasSubstr("/x'; a path")));
  };
  refused([&] { load_npy(path); });
  refused([&] { load_safetensors(path); });
  refused([&] { save_npy(path, tensor_); });
  refused([&] { save_safetensors(path, {}); });
  refused([&] { save_text(path, "other"); });
  EXPECT_EQ(get(folder_ / "x"), old);
}

}  // namespace
}  // namespace heddle
